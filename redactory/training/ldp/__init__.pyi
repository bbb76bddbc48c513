"""The names of local privacy: lazy_loader imports each when it is asked for."""

from .accounting import HiddenSampling as HiddenSampling
from .card import LdpPlanSettings as LdpPlanSettings
from .card import compute_query_metrics as compute_query_metrics
from .card import make_service_card as make_service_card
from .card import plan_message_guarantee as plan_message_guarantee
from .encoder import SentenceEncoder as SentenceEncoder
from .encoder import pretrain_encoder as pretrain_encoder
from .server import LdpServer as LdpServer
from .server import Message as Message
from .settings import EncoderSettings as EncoderSettings
from .settings import LdpSettings as LdpSettings
from .user import BudgetFolder as BudgetFolder
from .user import DPLayer as DPLayer
from .user import LdpClient as LdpClient
