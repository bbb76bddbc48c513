"""Our own token taggers: trained, calibrated and read on spaCy's components.

A tagger says for each token how likely it is plain and which label it has otherwise.  It sees the four
tokens to either side and nothing else, so a text's reading needs no document around it.
"""

from redactory.detectors.tagger.engine import DEFAULT as DEFAULT
from redactory.detectors.tagger.engine import TaggerEngine as TaggerEngine
from redactory.detectors.tagger.engine import choose_builtin_tagger as choose_builtin_tagger
from redactory.detectors.tagger.engine import find_tagger_folder as find_tagger_folder
from redactory.detectors.tagger.fitting import LabelledText as LabelledText
from redactory.detectors.tagger.fitting import Reliability as Reliability
from redactory.detectors.tagger.fitting import calibrate_tagger as calibrate_tagger
from redactory.detectors.tagger.fitting import train_tagger as train_tagger
