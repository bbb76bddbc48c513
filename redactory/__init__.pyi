"""The types of Redactory's public names: what type checkers and editors read in place of __init__.py.

A name is added by one line, ``from module import name as name``: the package finds it here, too.
"""

from redactory.evaluation.one_run_audit import audit_plant as audit_plant
from redactory.evaluation.simulator import simulate as simulate
from redactory.foundation.errors import CheckFailed as CheckFailed
from redactory.foundation.errors import ConfigurationError as ConfigurationError
from redactory.foundation.errors import GuaranteeError as GuaranteeError
from redactory.foundation.errors import InputError as InputError
from redactory.foundation.errors import RedactoryError as RedactoryError
from redactory.foundation.errors import RunStateError as RunStateError
from redactory.pipelines.audit import evaluate_audit as evaluate_audit
from redactory.pipelines.choose import label_choose as label_choose
from redactory.pipelines.config import Redaction as Redaction
from redactory.pipelines.config import schema as schema
from redactory.pipelines.config import schemas as schemas
from redactory.pipelines.conversations import conversations as conversations
from redactory.pipelines.curate import curate as curate
from redactory.pipelines.describe import describe as describe
from redactory.pipelines.describe import explain as explain
from redactory.pipelines.erase import purge as purge
from redactory.pipelines.erase import takedown as takedown
from redactory.pipelines.evaluate import evaluate_canary as evaluate_canary
from redactory.pipelines.evaluate import evaluate_extraction as evaluate_extraction
from redactory.pipelines.evaluate import evaluate_membership as evaluate_membership
from redactory.pipelines.evaluate import evaluate_model as evaluate_model
from redactory.pipelines.evaluate import evaluate_synthetic as evaluate_synthetic
from redactory.pipelines.evaluate_detection import evaluate_against as evaluate_against
from redactory.pipelines.evaluate_detection import evaluate_detect as evaluate_detect
from redactory.pipelines.evaluate_detection import evaluate_recall as evaluate_recall
from redactory.pipelines.evaluate_detection import evaluate_redaction as evaluate_redaction
from redactory.pipelines.export import export as export
from redactory.pipelines.fit import fit as fit
from redactory.pipelines.fit_policy import fit_policy as fit_policy
from redactory.pipelines.gate import approve_release as approve_release
from redactory.pipelines.gate import reject_release as reject_release
from redactory.pipelines.keys import rotate_key as rotate_key
from redactory.pipelines.keys import shred_key as shred_key
from redactory.pipelines.label import audit_sample as audit_sample
from redactory.pipelines.label import audit_score as audit_score
from redactory.pipelines.ldp import ldp_encoder as ldp_encoder
from redactory.pipelines.ldp import ldp_evaluate as ldp_evaluate
from redactory.pipelines.ldp import ldp_train as ldp_train
from redactory.pipelines.nightly import nightly as nightly
from redactory.pipelines.plan import budget as budget
from redactory.pipelines.plan import plan as plan
from redactory.pipelines.policy import Hit as Hit
from redactory.pipelines.policy import Point as Point
from redactory.pipelines.policy import Policy as Policy
from redactory.pipelines.policy import policy_diff as policy_diff
from redactory.pipelines.policy import read as read
from redactory.pipelines.policy import redact_frame as redact_frame
from redactory.pipelines.predict import predict as predict
from redactory.pipelines.quarantine import quarantine_export as quarantine_export
from redactory.pipelines.quarantine import quarantine_list as quarantine_list
from redactory.pipelines.redact import redact as redact
from redactory.pipelines.release_log import list_releases as list_releases
from redactory.pipelines.release_log import release_log as release_log
from redactory.pipelines.run import run as run
from redactory.pipelines.scan import scan as scan
from redactory.pipelines.share import fetch as fetch
from redactory.pipelines.share import publish as publish
from redactory.pipelines.synthesize import synthesize as synthesize
from redactory.pipelines.train import guarantee as guarantee
from redactory.pipelines.train import train as train
from redactory.pipelines.unmask import unmask as unmask
from redactory.pipelines.verify import verify as verify

__version__: str
