"""Detectors find sensitive spans in texts with engines; two policies decide what to mask and what to keep private.

The detection of a text is a function of that text, the settings and the versions in the policy hash: never of its
batch, document or neighbours (``docs/guarantees.md``, side channels 3 and 19). A text that an engine cannot process is
a failure with a reason code, never a text without spans. No message contains text.
"""

from redactory.detectors.coverage import NameKind as NameKind
from redactory.detectors.coverage import describe_gaps as describe_gaps
from redactory.detectors.coverage import describe_languages as describe_languages
from redactory.detectors.coverage import detect_languages as detect_languages
from redactory.detectors.coverage import find_coverage_gaps as find_coverage_gaps
from redactory.detectors.coverage import find_uncovered_kinds as find_uncovered_kinds
from redactory.detectors.coverage import get_publishable_gaps as get_publishable_gaps
from redactory.detectors.detector import Detection as Detection
from redactory.detectors.detector import Detector as Detector
from redactory.detectors.detector import TextDetector as TextDetector
from redactory.detectors.detector import detector_masks_nothing as detector_masks_nothing
from redactory.detectors.engine import EngineOutput as EngineOutput
from redactory.detectors.engine import Span as Span
from redactory.detectors.policy import ConservativePolicy as ConservativePolicy
from redactory.detectors.policy import StrictPolicy as StrictPolicy
from redactory.detectors.policy import build_policies as build_policies
from redactory.detectors.policy import build_policy_records as build_policy_records
from redactory.detectors.policy import compute_policy_hashes as compute_policy_hashes
from redactory.detectors.policy import describe_label_coverage as describe_label_coverage
from redactory.detectors.policy import describe_policy_changes as describe_policy_changes
from redactory.detectors.policy import diff_records as diff_records
from redactory.detectors.settings import ConservativeSettings as ConservativeSettings
from redactory.detectors.settings import CustomRecognizer as CustomRecognizer
from redactory.detectors.settings import DetectSettings as DetectSettings
from redactory.detectors.settings import StrictSettings as StrictSettings
