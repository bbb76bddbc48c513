"""Training: language models on a finished run, with a guarantee that is a theorem about the code that ran.

``crt`` (SGD on public points, DP-SGD on masked private ones) and its baselines ``dpsgd`` and ``sgd``
share one network, one tokenizer whose vocabulary is public, exact per-example clipping, true Poisson
sampling, one random stream and one ledger.  An epsilon comes from the ledger alone; an interrupted
training goes on bit for bit.  ``docs/guarantees.md`` has the proofs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from redactory.training.settings import RecallMeasurement, TrainSettings

if TYPE_CHECKING:
    from redactory.training.guarantee.card import guarantee_card, guarantee_page
    from redactory.training.model import LanguageModel, load_model
    from redactory.training.models.recurrent import LstmLanguageModel
    from redactory.training.own_loop import PrivateLoop
    from redactory.training.shard_dataset import ShardDataset
    from redactory.training.tokenizer import Tokenizer
    from redactory.training.train import train_model

__all__ = [
    "LanguageModel",
    "LstmLanguageModel",
    "PrivateLoop",
    "RecallMeasurement",
    "ShardDataset",
    "Tokenizer",
    "TrainSettings",
    "guarantee_card",
    "guarantee_page",
    "load_model",
    "train_model",
]

_WHERE = {
    "LanguageModel": "model",
    "LstmLanguageModel": "models.recurrent",
    "PrivateLoop": "own_loop",
    "ShardDataset": "shard_dataset",
    "Tokenizer": "tokenizer",
    "guarantee_card": "guarantee.card",
    "guarantee_page": "guarantee.card",
    "load_model": "model",
    "train_model": "train",
}


def __getattr__(name: str) -> Any:
    # on first use: the settings are read by rooms that must start without torch
    if name not in _WHERE:
        raise AttributeError(f"module 'redactory.training' has no attribute '{name}'")
    return getattr(importlib.import_module(f"redactory.training.{_WHERE[name]}"), name)
