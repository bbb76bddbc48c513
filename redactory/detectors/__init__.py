"""Detectors: what in a text is sensitive, by engines, and what two policies make of it.

The room promises that the detection of a text is a function of that text, the settings and the
versions in the policy hash: never of its batch, document or neighbours (``docs/guarantees.md``, side
channels 3 and 19).  A text that an engine cannot process is a failure with a reason code, never a
text without hits.  No message carries text.
"""

from redactory.detectors.blind import Kind as Kind
from redactory.detectors.blind import blind_kinds as blind_kinds
from redactory.detectors.blind import blind_said as blind_said
from redactory.detectors.blind import blind_words as blind_words
from redactory.detectors.blind import blindness as blindness
from redactory.detectors.blind import languages_of as languages_of
from redactory.detectors.detector import Detection as Detection
from redactory.detectors.detector import Detector as Detector
from redactory.detectors.detector import TextDetector as TextDetector
from redactory.detectors.detector import masks_nothing as masks_nothing
from redactory.detectors.engine import Reading as Reading
from redactory.detectors.engine import Span as Span
from redactory.detectors.policy import ConservativePolicy as ConservativePolicy
from redactory.detectors.policy import StrictPolicy as StrictPolicy
from redactory.detectors.policy import changed_since as changed_since
from redactory.detectors.policy import differing as differing
from redactory.detectors.policy import policies_of as policies_of
from redactory.detectors.policy import policy_hashes as policy_hashes
from redactory.detectors.policy import policy_records as policy_records
from redactory.detectors.policy import who_finds as who_finds
from redactory.detectors.settings import ConservativeSettings as ConservativeSettings
from redactory.detectors.settings import CustomRecognizer as CustomRecognizer
from redactory.detectors.settings import DetectSettings as DetectSettings
from redactory.detectors.settings import StrictSettings as StrictSettings
