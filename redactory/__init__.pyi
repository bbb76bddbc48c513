"""The types of Redactory's public names: what type checkers and editors read in place of __init__.py.

A name is added by one line, ``from module import name as name``: the package finds it here, too.
"""

from .evaluation.one_run_audit import plant_canaries as plant_canaries
from .evaluation.simulator import simulate as simulate
from .foundation.errors import CheckFailed as CheckFailed
from .foundation.errors import ConfigurationError as ConfigurationError
from .foundation.errors import GuaranteeError as GuaranteeError
from .foundation.errors import InputError as InputError
from .foundation.errors import RedactoryError as RedactoryError
from .foundation.errors import RunStateError as RunStateError
from .pipelines.audit import evaluate_audit as evaluate_audit
from .pipelines.choose import label_active as label_active
from .pipelines.config import Redaction as Redaction
from .pipelines.config import schema as schema
from .pipelines.config import schemas as schemas
from .pipelines.conversations import conversations as conversations
from .pipelines.curate import curate as curate
from .pipelines.describe import describe as describe
from .pipelines.describe import explain as explain
from .pipelines.erase import erase as erase
from .pipelines.erase import purge as purge
from .pipelines.evaluate import evaluate_canary as evaluate_canary
from .pipelines.evaluate import evaluate_extraction as evaluate_extraction
from .pipelines.evaluate import evaluate_membership as evaluate_membership
from .pipelines.evaluate import evaluate_model as evaluate_model
from .pipelines.evaluate import evaluate_synthetic as evaluate_synthetic
from .pipelines.evaluate_detection import evaluate_against as evaluate_against
from .pipelines.evaluate_detection import evaluate_detect as evaluate_detect
from .pipelines.evaluate_detection import evaluate_recall as evaluate_recall
from .pipelines.evaluate_detection import evaluate_redaction as evaluate_redaction
from .pipelines.export import export as export
from .pipelines.fit import fit_tagger as fit_tagger
from .pipelines.fit_policy import fit_policy as fit_policy
from .pipelines.gate import approve_release as approve_release
from .pipelines.gate import reject_release as reject_release
from .pipelines.keys import rotate_key as rotate_key
from .pipelines.keys import shred_key as shred_key
from .pipelines.label import label_random as label_random
from .pipelines.label import label_score as label_score
from .pipelines.ldp import ldp_encoder as ldp_encoder
from .pipelines.ldp import ldp_evaluate as ldp_evaluate
from .pipelines.ldp import ldp_train as ldp_train
from .pipelines.nightly import nightly as nightly
from .pipelines.plan import budget as budget
from .pipelines.plan import plan as plan
from .pipelines.policy import Hit as Hit
from .pipelines.policy import Point as Point
from .pipelines.policy import Policy as Policy
from .pipelines.policy import policy_diff as policy_diff
from .pipelines.policy import read as read
from .pipelines.policy import redact_frame as redact_frame
from .pipelines.predict import predict as predict
from .pipelines.quarantine import quarantine_export as quarantine_export
from .pipelines.quarantine import quarantine_list as quarantine_list
from .pipelines.redact import redact as redact
from .pipelines.release_log import list_releases as list_releases
from .pipelines.release_log import release_log as release_log
from .pipelines.run import run as run
from .pipelines.scan import scan as scan
from .pipelines.share import fetch as fetch
from .pipelines.share import publish as publish
from .pipelines.synthesize import synthesize as synthesize
from .pipelines.train import guarantee as guarantee
from .pipelines.train import train as train
from .pipelines.unmask import unmask as unmask
from .pipelines.verify import verify as verify

__version__: str
