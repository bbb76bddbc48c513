"""The names of this room: type checkers read them here, and lazy_loader imports each when it is asked for."""

from . import accounting as accounting
from . import data as data
from . import guarantee as guarantee
from . import histogram as histogram
from . import integrations as integrations
from . import ldp as ldp
from . import model as model
from . import numerics as numerics
from . import parameter_counts as parameter_counts
from . import train as train
from . import uedp as uedp
from . import vocabulary as vocabulary
from .guarantee.card import make_guarantee_card as make_guarantee_card
from .guarantee.card import render_guarantee_page as render_guarantee_page
from .model import LanguageModel as LanguageModel
from .model import load_model as load_model
from .models.recurrent import LstmLanguageModel as LstmLanguageModel
from .private_loop import PrivateLoop as PrivateLoop
from .settings import RecallMeasurement as RecallMeasurement
from .settings import TrainSettings as TrainSettings
from .shard_dataset import ShardDataset as ShardDataset
from .tokenizer import Tokenizer as Tokenizer
from .train import train_model as train_model
