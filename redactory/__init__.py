"""Redactory: audited training shards from raw text, and models trained on them with a guarantee.

The public functions are the commands of the command line, with the same names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redactory.evaluation.simulator import write_simulation as simulate
    from redactory.pipelines.curate import curate
    from redactory.pipelines.describe import describe
    from redactory.pipelines.evaluate import evaluate_canary, evaluate_perplexity, evaluate_recall
    from redactory.pipelines.run import run
    from redactory.pipelines.train import guarantee, train
    from redactory.pipelines.verify import verify

__version__ = "0.1.0"

_WHERE = {
    "curate": "redactory.pipelines.curate:curate",
    "describe": "redactory.pipelines.describe:describe",
    "evaluate_canary": "redactory.pipelines.evaluate:evaluate_canary",
    "evaluate_perplexity": "redactory.pipelines.evaluate:evaluate_perplexity",
    "evaluate_recall": "redactory.pipelines.evaluate:evaluate_recall",
    "guarantee": "redactory.pipelines.train:guarantee",
    "run": "redactory.pipelines.run:run",
    "simulate": "redactory.evaluation.simulator:write_simulation",
    "train": "redactory.pipelines.train:train",
    "verify": "redactory.pipelines.verify:verify",
}

__all__ = [
    "curate",
    "describe",
    "evaluate_canary",
    "evaluate_perplexity",
    "evaluate_recall",
    "guarantee",
    "run",
    "simulate",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    # imported on first use: spaCy and torch take seconds, a version number should not
    if name not in _WHERE:
        raise AttributeError(f"module 'redactory' has no attribute '{name}'")
    module, attribute = _WHERE[name].split(":")
    return getattr(importlib.import_module(module), attribute)
