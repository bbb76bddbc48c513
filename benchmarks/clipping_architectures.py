"""Which networks of ``transformers`` the engine clips exactly: a table of fresh tiny configurations.

Run: ``PYTHONPATH=. python benchmarks/clipping_architectures.py`` (a minute).  Exact: the clipped sum was held
against autograd (:func:`check_exact_clipping`); "as one" are the blocks that are run again on each example alone.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping import check_exact_clipping
from redactory.training.clipping.engine import RECORD_AS_ONE
from redactory.training.data import Batch
from redactory.training.models.hugging_face import (
    CausalNetwork,
    SequenceClassifier,
    disable_dropout,
    require_exact_clipping,
)
from tests.training.architectures import CAUSAL, CLASSIFIERS, VOCABULARY, build_architecture

BEGIN, END, PAD = 0, 1, 2
LENGTHS = torch.tensor([5, 3, 2])


def tried(kind: str, task: str) -> str:
    """What became of the network of ``kind``, in words."""
    model: Any = disable_dropout(build_architecture(kind, task))
    network = (CausalNetwork if task == "next-word" else SequenceClassifier)(model)
    real = torch.arange(5) < LENGTHS[:, None]
    inputs = torch.randint(5, VOCABULARY, (3, 5), generator=torch.Generator().manual_seed(0))
    inputs[:, 0], inputs[torch.arange(3), LENGTHS - 1] = BEGIN, END
    targets = inputs.roll(-1, 1) if task == "next-word" else torch.arange(3)[:, None]
    batch = Batch(inputs.masked_fill(~real, PAD), targets, real)
    alone = [partial(network.example_losses, batch.select_example(row)) for row in range(3)]
    try:
        check_exact_clipping(network.train(), partial(network.example_losses, batch), alone)
    except ConfigurationError as error:
        return f"refused: {error}"
    blocks = ", ".join(sorted({type(m).__name__ for m in network.modules() if getattr(m, RECORD_AS_ONE, False)}))
    found = f"exact, as one: {blocks}" if blocks else "exact"
    try:
        require_exact_clipping(network, PAD, END, 12)
    except ConfigurationError as error:
        return f"{found}; refused by a training: {error}"
    return found


def main() -> None:
    """Print the table."""
    warnings.filterwarnings("ignore")
    for task, table in (("next-word", CAUSAL), ("classify", CLASSIFIERS)):
        for kind in table:
            print(f"{task:10} {kind:16} {tried(kind, task)}", flush=True)


if __name__ == "__main__":
    main()
