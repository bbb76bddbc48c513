"""The names of this package: lazy_loader imports each when it is used, with its library."""

from .trackers import MlflowTracker as MlflowTracker
from .trackers import TensorBoardTracker as TensorBoardTracker
from .trackers import WandbTracker as WandbTracker
from .trackers import open_trackers as open_trackers
from .transformers_trainer import PrivateTrainer as PrivateTrainer
from .transformers_trainer import PrivateTrainerMixin as PrivateTrainerMixin
