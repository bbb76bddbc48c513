"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redactory.evaluation.simulator import write_simulation as simulate
    from redactory.evaluation.varied import write_varied as simulate_varied
    from redactory.pipelines.apply import apply
    from redactory.pipelines.audit import audit_sample
    from redactory.pipelines.audit_score import audit_score
    from redactory.pipelines.curate import curate
    from redactory.pipelines.describe import describe
    from redactory.pipelines.evaluate import evaluate_canary, evaluate_perplexity, evaluate_recall
    from redactory.pipelines.evaluate_accuracy import evaluate_accuracy
    from redactory.pipelines.evaluate_audit import audit_plant, evaluate_audit
    from redactory.pipelines.evaluate_detect import evaluate_detect
    from redactory.pipelines.evaluate_extraction import evaluate_extraction
    from redactory.pipelines.evaluate_membership import evaluate_membership
    from redactory.pipelines.evaluate_redaction import evaluate_redaction
    from redactory.pipelines.explain import explain
    from redactory.pipelines.export import export_run as export
    from redactory.pipelines.fetch import fetch
    from redactory.pipelines.fit import fit
    from redactory.pipelines.fit_policy import fit_policy
    from redactory.pipelines.key_rotation import rotate_key
    from redactory.pipelines.ldp import ldp_encoder, ldp_evaluate, ldp_train
    from redactory.pipelines.ldp_wire import ldp_ask, ldp_send, ldp_serve
    from redactory.pipelines.nightly.night import nightly
    from redactory.pipelines.plan import plan
    from redactory.pipelines.policy_diff import policy_diff
    from redactory.pipelines.publish import publish
    from redactory.pipelines.purge import purge
    from redactory.pipelines.quarantine.listing import quarantine_list
    from redactory.pipelines.quarantine.retry import quarantine_retry
    from redactory.pipelines.releases import approve_release, list_releases, reject_release, release_log
    from redactory.pipelines.reproduce import reproduce_crt
    from redactory.pipelines.run import run
    from redactory.pipelines.schemas import schema, schemas
    from redactory.pipelines.shredding import shred_key
    from redactory.pipelines.takedown.takedown import takedown
    from redactory.pipelines.train import guarantee, train
    from redactory.pipelines.verify import verify

__version__ = "0.1.0"

_WHERE = {
    "apply": "redactory.pipelines.apply:apply",
    "approve_release": "redactory.pipelines.releases:approve_release",
    "audit_plant": "redactory.pipelines.evaluate_audit:audit_plant",
    "audit_sample": "redactory.pipelines.audit:audit_sample",
    "audit_score": "redactory.pipelines.audit_score:audit_score",
    "curate": "redactory.pipelines.curate:curate",
    "describe": "redactory.pipelines.describe:describe",
    "evaluate_accuracy": "redactory.pipelines.evaluate_accuracy:evaluate_accuracy",
    "evaluate_audit": "redactory.pipelines.evaluate_audit:evaluate_audit",
    "evaluate_canary": "redactory.pipelines.evaluate:evaluate_canary",
    "evaluate_detect": "redactory.pipelines.evaluate_detect:evaluate_detect",
    "evaluate_extraction": "redactory.pipelines.evaluate_extraction:evaluate_extraction",
    "evaluate_membership": "redactory.pipelines.evaluate_membership:evaluate_membership",
    "evaluate_perplexity": "redactory.pipelines.evaluate:evaluate_perplexity",
    "evaluate_recall": "redactory.pipelines.evaluate:evaluate_recall",
    "evaluate_redaction": "redactory.pipelines.evaluate_redaction:evaluate_redaction",
    "explain": "redactory.pipelines.explain:explain",
    "export": "redactory.pipelines.export:export_run",
    "fetch": "redactory.pipelines.fetch:fetch",
    "fit": "redactory.pipelines.fit:fit",
    "fit_policy": "redactory.pipelines.fit_policy:fit_policy",
    "guarantee": "redactory.pipelines.train:guarantee",
    "ldp_ask": "redactory.pipelines.ldp_wire:ldp_ask",
    "ldp_encoder": "redactory.pipelines.ldp:ldp_encoder",
    "ldp_evaluate": "redactory.pipelines.ldp:ldp_evaluate",
    "ldp_send": "redactory.pipelines.ldp_wire:ldp_send",
    "ldp_serve": "redactory.pipelines.ldp_wire:ldp_serve",
    "ldp_train": "redactory.pipelines.ldp:ldp_train",
    "list_releases": "redactory.pipelines.releases:list_releases",
    "nightly": "redactory.pipelines.nightly.night:nightly",
    "plan": "redactory.pipelines.plan:plan",
    "policy_diff": "redactory.pipelines.policy_diff:policy_diff",
    "publish": "redactory.pipelines.publish:publish",
    "reject_release": "redactory.pipelines.releases:reject_release",
    "release_log": "redactory.pipelines.releases:release_log",
    "purge": "redactory.pipelines.purge:purge",
    "quarantine_list": "redactory.pipelines.quarantine.listing:quarantine_list",
    "quarantine_retry": "redactory.pipelines.quarantine.retry:quarantine_retry",
    "reproduce_crt": "redactory.pipelines.reproduce:reproduce_crt",
    "rotate_key": "redactory.pipelines.key_rotation:rotate_key",
    "run": "redactory.pipelines.run:run",
    "schema": "redactory.pipelines.schemas:schema",
    "schemas": "redactory.pipelines.schemas:schemas",
    "shred_key": "redactory.pipelines.shredding:shred_key",
    "simulate": "redactory.evaluation.simulator:write_simulation",
    "simulate_varied": "redactory.evaluation.varied:write_varied",
    "takedown": "redactory.pipelines.takedown.takedown:takedown",
    "train": "redactory.pipelines.train:train",
    "verify": "redactory.pipelines.verify:verify",
}

__all__ = [
    "apply",
    "approve_release",
    "audit_plant",
    "audit_sample",
    "audit_score",
    "curate",
    "describe",
    "evaluate_accuracy",
    "evaluate_audit",
    "evaluate_canary",
    "evaluate_detect",
    "evaluate_extraction",
    "evaluate_membership",
    "evaluate_perplexity",
    "evaluate_recall",
    "evaluate_redaction",
    "explain",
    "export",
    "fetch",
    "fit",
    "fit_policy",
    "guarantee",
    "ldp_ask",
    "ldp_encoder",
    "ldp_evaluate",
    "ldp_send",
    "ldp_serve",
    "ldp_train",
    "list_releases",
    "nightly",
    "plan",
    "policy_diff",
    "publish",
    "reject_release",
    "release_log",
    "purge",
    "quarantine_list",
    "quarantine_retry",
    "reproduce_crt",
    "rotate_key",
    "run",
    "schema",
    "schemas",
    "shred_key",
    "simulate",
    "simulate_varied",
    "takedown",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    # imported on first use: spaCy and torch take seconds, a version number should not
    if name not in _WHERE:
        raise AttributeError(f"module 'redactory' has no attribute '{name}'")
    module, attribute = _WHERE[name].split(":")
    return getattr(importlib.import_module(module), attribute)
