"""What makes a ``Trainer``, or any class that is one (trl's ``SFTTrainer``), take the steps of a loop."""

from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from redactory.training import PrivateLoop


class PrivateSteps:
    """Stands before the trainer's class: ``class PrivateTrainer(PrivateSteps, Trainer)``.

    The loop says how many steps there are and what is in them, so there is no ``train_dataset``.  No loss is
    logged: that of private points would be a release.
    """

    def __init__(self, *given: Any, loop: PrivateLoop, **named: Any) -> None:
        if named.pop("train_dataset", None) is not None:
            raise ValueError("train_dataset: the loop draws the points of every step by itself; leave it out")
        self.loop, self.summary = loop, dict[str, Any]()
        # a row that nobody reads, for trainers that ask for one
        super().__init__(*given, train_dataset=Dataset.from_dict({"input_ids": [[0, 0]]}), **named)
        self.args.num_train_epochs, self.args.max_steps = 1, -1

    def get_train_dataloader(self) -> DataLoader:
        """Nothing, as many times as steps are left."""
        self.create_optimizer()
        self.loop.begin(self.accelerator.unwrap_model(self.model), self.optimizer)
        return DataLoader(range(len(self.loop)), batch_size=1, collate_fn=lambda _: {})

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The next step's gradient; the optimizer's step along it is the trainer's."""
        next(self.loop).backward()
        return torch.zeros((), device=self.args.device)

    def train(self, *given: Any, **named: Any) -> Any:
        """Every step that is left, and the model's folder with its card."""
        told = super().train(*given, **named)
        self.summary = self.loop.finish()
        return told
