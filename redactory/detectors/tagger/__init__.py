"""The token tagger: a head on the pretrained encoder, its spaCy component, fitting, calibration and inference.

A tagger gives each token P(non-entity) and its otherwise most probable label.
"""

from redactory.detectors.tagger.engine import DEFAULT as DEFAULT
from redactory.detectors.tagger.engine import DEFAULT_FOLDER as DEFAULT_FOLDER
from redactory.detectors.tagger.engine import TaggerEngine as TaggerEngine
from redactory.detectors.tagger.engine import find_tagger_folder as find_tagger_folder
from redactory.detectors.tagger.fitting import LabelledText as LabelledText
from redactory.detectors.tagger.fitting import calibrate_tagger as calibrate_tagger
from redactory.detectors.tagger.fitting import train_tagger as train_tagger
