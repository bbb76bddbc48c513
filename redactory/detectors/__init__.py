"""Detectors: what in a text is sensitive, by engines, and what two policies make of it.

The room promises that the detection of a text is a function of that text, the settings and the
versions in the policy hash: never of its batch, document or neighbours (``docs/guarantees.md``, side
channels 3 and 19).  A text that an engine cannot process is a failure with a reason code, never a
text without hits.  No message carries text.
"""

from redactory.detectors.blind import (
    Kind,
    blind_kinds,
    blind_of,
    blind_said,
    blind_words,
    blindness,
    languages_of,
)
from redactory.detectors.detector import Detection, Detector, TextDetector, masks_nothing
from redactory.detectors.engine import Reading, Span
from redactory.detectors.policy import (
    ConservativePolicy,
    StrictPolicy,
    changed_since,
    differing,
    policies_of,
    policy_hashes,
    policy_records,
    who_finds,
)
from redactory.detectors.settings import (
    ConservativeSettings,
    CustomRecognizer,
    DetectSettings,
    StrictSettings,
)

__all__ = [
    "ConservativePolicy",
    "ConservativeSettings",
    "CustomRecognizer",
    "Detection",
    "DetectSettings",
    "Detector",
    "Kind",
    "Reading",
    "Span",
    "StrictPolicy",
    "StrictSettings",
    "TextDetector",
    "blind_kinds",
    "blind_of",
    "blind_said",
    "blind_words",
    "blindness",
    "changed_since",
    "differing",
    "languages_of",
    "masks_nothing",
    "policies_of",
    "policy_hashes",
    "policy_records",
    "who_finds",
]
