"""Our own token taggers: trained, calibrated and read on spaCy's components.

A tagger says for each token how likely it is plain and which label it has otherwise.  It sees the four
tokens to either side and nothing else, so a text's reading needs no document around it.
"""

from redactory.detectors.tagger.engine import DEFAULT as DEFAULT
from redactory.detectors.tagger.engine import TaggerEngine as TaggerEngine
from redactory.detectors.tagger.engine import shipped_for as shipped_for
from redactory.detectors.tagger.engine import tagger_folder as tagger_folder
from redactory.detectors.tagger.fitting import LabelledText as LabelledText
from redactory.detectors.tagger.fitting import Reliability as Reliability
from redactory.detectors.tagger.fitting import calibrate as calibrate
from redactory.detectors.tagger.fitting import train_tagger as train_tagger
