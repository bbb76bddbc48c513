"""Our own token taggers: trained, calibrated and read on spaCy's components.

A tagger says for each token how likely it is plain and which label it has otherwise.  It sees the four
tokens to either side and nothing else, so a text's reading needs no document around it.
"""

from redactory.detectors.tagger.engine import DEFAULT, TaggerEngine, shipped_for, tagger_folder
from redactory.detectors.tagger.fitting import LabelledText, Reliability, calibrate, train_tagger

__all__ = [
    "DEFAULT",
    "LabelledText",
    "Reliability",
    "TaggerEngine",
    "calibrate",
    "shipped_for",
    "tagger_folder",
    "train_tagger",
]
