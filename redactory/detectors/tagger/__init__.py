"""Token taggers based on spaCy's components: training, calibration and inference.

A tagger gives each token P(non-entity) and its otherwise most probable label. It sees only four tokens on either side,
so its output needs no surrounding document.
"""

from redactory.detectors.tagger.engine import DEFAULT as DEFAULT
from redactory.detectors.tagger.engine import TaggerEngine as TaggerEngine
from redactory.detectors.tagger.engine import choose_builtin_tagger as choose_builtin_tagger
from redactory.detectors.tagger.engine import find_tagger_folder as find_tagger_folder
from redactory.detectors.tagger.fitting import LabelledText as LabelledText
from redactory.detectors.tagger.fitting import Reliability as Reliability
from redactory.detectors.tagger.fitting import calibrate_tagger as calibrate_tagger
from redactory.detectors.tagger.fitting import train_tagger as train_tagger
