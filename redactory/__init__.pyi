"""The types of Redactory's public names: what type checkers and editors read in place of __init__.py.

A name is added by one line, ``from module import name as name``: the package finds it here, too.
"""

from .evaluation.agreement import label_agreement as label_agreement
from .evaluation.one_run_audit import plant_canaries as plant_canaries
from .evaluation.simulator import simulate as simulate
from .flows.show import report_progress as report_progress
from .foundation.errors import CheckFailed as CheckFailed
from .foundation.errors import ConfigurationError as ConfigurationError
from .foundation.errors import GuaranteeError as GuaranteeError
from .foundation.errors import InputError as InputError
from .foundation.errors import RedactoryError as RedactoryError
from .foundation.errors import RunStateError as RunStateError
from .pipelines.curation.config import Redaction as Redaction
from .pipelines.curation.config import schema as schema
from .pipelines.curation.config import schemas as schemas
from .pipelines.curation.conversations import conversations as conversations
from .pipelines.curation.curate import curate as curate
from .pipelines.curation.keys import rotate_key as rotate_key
from .pipelines.curation.keys import shred_key as shred_key
from .pipelines.curation.policy import Example as Example
from .pipelines.curation.policy import FoundSpan as FoundSpan
from .pipelines.curation.policy import Policy as Policy
from .pipelines.curation.policy import policy_diff as policy_diff
from .pipelines.curation.policy import read as read
from .pipelines.curation.policy import redact_frame as redact_frame
from .pipelines.curation.release_log import list_releases as list_releases
from .pipelines.curation.release_log import release_log as release_log
from .pipelines.curation.share import fetch as fetch
from .pipelines.curation.share import publish as publish
from .pipelines.documents.redact import redact as redact
from .pipelines.documents.scan import scan as scan
from .pipelines.documents.serve_http import serve_http as serve_http
from .pipelines.documents.unmask import unmask as unmask
from .pipelines.measure.evaluate import evaluate_canary as evaluate_canary
from .pipelines.measure.evaluate import evaluate_model as evaluate_model
from .pipelines.measure.evaluate import evaluate_synthetic as evaluate_synthetic
from .pipelines.measure.evaluate_attacks import evaluate_audit as evaluate_audit
from .pipelines.measure.evaluate_attacks import evaluate_extraction as evaluate_extraction
from .pipelines.measure.evaluate_attacks import evaluate_membership as evaluate_membership
from .pipelines.measure.evaluate_detection import evaluate_against as evaluate_against
from .pipelines.measure.evaluate_detection import evaluate_detect as evaluate_detect
from .pipelines.measure.evaluate_detection import evaluate_errors as evaluate_errors
from .pipelines.measure.evaluate_detection import evaluate_recall as evaluate_recall
from .pipelines.measure.evaluate_detection import evaluate_redaction as evaluate_redaction
from .pipelines.measure.fit import fit_tagger as fit_tagger
from .pipelines.measure.fit_policy import fit_policy as fit_policy
from .pipelines.measure.label import label_active as label_active
from .pipelines.measure.label import label_random as label_random
from .pipelines.measure.label import label_score as label_score
from .pipelines.measure.predict import predict as predict
from .pipelines.modeling.describe import describe as describe
from .pipelines.modeling.describe import explain as explain
from .pipelines.modeling.ldp import ldp_encoder as ldp_encoder
from .pipelines.modeling.ldp import ldp_evaluate as ldp_evaluate
from .pipelines.modeling.ldp import ldp_train as ldp_train
from .pipelines.modeling.plan import budget as budget
from .pipelines.modeling.plan import plan as plan
from .pipelines.modeling.run import run as run
from .pipelines.modeling.synthesize import synthesize as synthesize
from .pipelines.modeling.train import guarantee as guarantee
from .pipelines.modeling.train import train as train
from .pipelines.operations.access import access as access
from .pipelines.operations.erase import erase as erase
from .pipelines.operations.erase import purge as purge
from .pipelines.operations.export import export as export
from .pipelines.operations.gate import approve_release as approve_release
from .pipelines.operations.gate import reject_release as reject_release
from .pipelines.operations.gate import show_release as show_release
from .pipelines.operations.nightly import nightly as nightly
from .pipelines.operations.quarantine import quarantine_export as quarantine_export
from .pipelines.operations.quarantine import quarantine_list as quarantine_list
from .pipelines.operations.verify import verify as verify

__version__: str
