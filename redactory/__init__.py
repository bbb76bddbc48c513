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
    "predict": "pipelines.predict.predict",
    "budget": "pipelines.plan.budget",
    "curate": "pipelines.curate.curate",
    "describe": "pipelines.describe.describe",
    "audit_plant": "pipelines.evaluate.audit_plant",
    "evaluate_audit": "pipelines.evaluate.evaluate_audit",
    "evaluate_canary": "pipelines.evaluate.evaluate_canary",
    "evaluate_detect": "pipelines.evaluate_detection.evaluate_detect",
    "evaluate_extraction": "pipelines.evaluate.evaluate_extraction",
    "evaluate_membership": "pipelines.evaluate.evaluate_membership",
    "evaluate_model": "pipelines.evaluate.evaluate_model",
    "evaluate_recall": "pipelines.evaluate_detection.evaluate_recall",
    "evaluate_redaction": "pipelines.evaluate_detection.evaluate_redaction",
    "explain": "pipelines.describe.explain",
    "export": "pipelines.export.export_run",
    "fit": "pipelines.fit.fit",
    "read": "pipelines.frames.read",
    "redact_frame": "pipelines.frames.redact_frame",
    "rotate_key": "pipelines.keys.rotate_key",
    "shred_key": "pipelines.keys.shred_key",
    "audit_sample": "pipelines.label.audit_sample",
    "audit_score": "pipelines.label.audit_score",
    "ldp_encoder": "pipelines.ldp.ldp_encoder",
    "ldp_evaluate": "pipelines.ldp.ldp_evaluate",
    "ldp_train": "pipelines.ldp.ldp_train",
    "LdpUser": "pipelines.ldp.LdpUser",
    "ldp_new_service": "pipelines.ldp.ldp_new_service",
    "ldp_service": "pipelines.ldp.ldp_service",
    "approve_release": "pipelines.gate.approve_release",
    "list_releases": "pipelines.release_log.list_releases",
    "reject_release": "pipelines.gate.reject_release",
    "release_log": "pipelines.release_log.release_log",
    "nightly": "pipelines.nightly.nightly",
    "plan": "pipelines.plan.plan",
    "policy_diff": "pipelines.policy.policy_diff",
    "fit_policy": "pipelines.fit_policy.fit_policy",
    "Hit": "pipelines.policy.Hit",
    "Point": "pipelines.policy.Point",
    "Policy": "pipelines.policy.Policy",
    "purge": "pipelines.erase.purge",
    "quarantine_list": "pipelines.quarantine.quarantine_list",
    "quarantine_retry": "pipelines.quarantine.quarantine_retry",
    "run": "pipelines.run.run",
    "scan": "pipelines.scan.scan",
    "schema": "pipelines.schemas.schema",
    "schemas": "pipelines.schemas.schemas",
    "fetch": "pipelines.share.fetch",
    "publish": "pipelines.share.publish",
    "takedown": "pipelines.erase.takedown",
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
