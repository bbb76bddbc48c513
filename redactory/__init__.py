"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.  Their types are in the stub
beside this file (``__init__.pyi``), which has the same names.
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from typing import Any as _Any

if _sys.version_info < (3, 11):  # noqa: UP036 (a source tree can be run by any Python)
    _sys.stderr.write(
        "redactory: Python 3.11 or newer is needed, and this is "
        + _sys.version.split()[0]
        + ": install it there "
        "(python3.11 -m pip install redactory)\n"
    )
    raise SystemExit(2)

_PUBLIC = {
    "simulate": "evaluation.simulator.write_simulation",
    "CheckFailed": "foundation.errors.CheckFailed",
    "ConfigurationError": "foundation.errors.ConfigurationError",
    "GuaranteeError": "foundation.errors.GuaranteeError",
    "InputError": "foundation.errors.InputError",
    "RedactoryError": "foundation.errors.RedactoryError",
    "RunStateError": "foundation.errors.RunStateError",
    "apply": "pipelines.apply.apply",
    "budget": "pipelines.budget.budget",
    "curate": "pipelines.curate.curate",
    "describe": "pipelines.describe.describe",
    "evaluate_accuracy": "pipelines.evaluations.accuracy.evaluate_accuracy",
    "audit_plant": "pipelines.evaluations.audit.audit_plant",
    "evaluate_audit": "pipelines.evaluations.audit.evaluate_audit",
    "evaluate_canary": "pipelines.evaluations.canary.evaluate_canary",
    "evaluate_detect": "pipelines.evaluations.detect.evaluate_detect",
    "evaluate_extraction": "pipelines.evaluations.extraction.evaluate_extraction",
    "evaluate_membership": "pipelines.evaluations.membership.evaluate_membership",
    "evaluate_perplexity": "pipelines.evaluations.perplexity.evaluate_perplexity",
    "evaluate_recall": "pipelines.evaluations.recall.evaluate_recall",
    "evaluate_redaction": "pipelines.evaluations.redaction.evaluate_redaction",
    "explain": "pipelines.explain.explain",
    "export": "pipelines.exports.export.export_run",
    "fit": "pipelines.fit.fit",
    "generate": "pipelines.generate.generate",
    "rotate_key": "pipelines.keys.rotation.rotate_key",
    "shred_key": "pipelines.keys.shredding.shred_key",
    "from_label_studio": "pipelines.labelling.label_studio.from_label_studio",
    "to_label_studio": "pipelines.labelling.label_studio.to_label_studio",
    "audit_sample": "pipelines.labelling.sample.audit_sample",
    "audit_score": "pipelines.labelling.score.audit_score",
    "ldp_encoder": "pipelines.ldp.local.ldp_encoder",
    "ldp_evaluate": "pipelines.ldp.local.ldp_evaluate",
    "ldp_train": "pipelines.ldp.local.ldp_train",
    "ldp_ask": "pipelines.ldp.wire.ldp_ask",
    "ldp_send": "pipelines.ldp.wire.ldp_send",
    "ldp_serve": "pipelines.ldp.wire.ldp_serve",
    "approve_release": "pipelines.nightly.decisions.approve_release",
    "list_releases": "pipelines.nightly.decisions.list_releases",
    "reject_release": "pipelines.nightly.decisions.reject_release",
    "release_log": "pipelines.nightly.decisions.release_log",
    "nightly": "pipelines.nightly.night.nightly",
    "plan": "pipelines.plan.plan",
    "policy_diff": "pipelines.policies.diff.policy_diff",
    "fit_policy": "pipelines.policies.fit.fit_policy",
    "Hit": "pipelines.policies.policy.Hit",
    "Point": "pipelines.policies.policy.Point",
    "Policy": "pipelines.policies.policy.Policy",
    "purge": "pipelines.purge.purge",
    "quarantine_list": "pipelines.quarantine.listing.quarantine_list",
    "quarantine_retry": "pipelines.quarantine.retry.quarantine_retry",
    "ComposedGuarantee": "pipelines.results.ComposedGuarantee",
    "ComposedUnitGuarantee": "pipelines.results.ComposedUnitGuarantee",
    "CurationSummary": "pipelines.results.CurationSummary",
    "PointGuarantee": "pipelines.results.PointGuarantee",
    "ScanSummary": "pipelines.results.ScanSummary",
    "TrainingSummary": "pipelines.results.TrainingSummary",
    "UnitGuarantee": "pipelines.results.UnitGuarantee",
    "run": "pipelines.run.run",
    "scan": "pipelines.scan.scan",
    "schema": "pipelines.schemas.schema",
    "schemas": "pipelines.schemas.schemas",
    "fetch": "pipelines.stores.fetch.fetch",
    "publish": "pipelines.stores.publish.publish",
    "takedown": "pipelines.takedown.takedown.takedown",
    "track": "pipelines.track.track",
    "guarantee": "pipelines.train.guarantee",
    "train": "pipelines.train.train",
    "verify": "pipelines.verify.verify",
}
"""Every public name, and where in the package it is defined."""

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        # of the installed package, as it stands in every manifest; looked up when somebody asks
        from importlib.metadata import version

        return version(__name__)
    if name not in _PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    # imported on first use: spaCy and torch take seconds, a version number should not
    module, _, attribute = _PUBLIC[name].rpartition(".")
    return getattr(_import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
