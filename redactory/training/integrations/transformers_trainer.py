"""``transformers``' trainers, and their subclasses in other libraries, with the steps of a private loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from redactory.foundation.errors import ConfigurationError
from redactory.training.loop import Tracker
from redactory.training.private_loop import PrivateLoop
from redactory.training.tokenizer import require_transformers
from redactory.training.train import require_public_metrics

require_transformers()
from datasets import Dataset  # noqa: E402
from transformers import Trainer  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402

# the class that it is mixed into is a trainer
if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class PrivateTrainerMixin(_Base):
    """Makes a subclass of ``transformers.Trainer`` take the steps of ``loop``: put it before that class.

        class PrivateSFTTrainer(PrivateTrainerMixin, SFTTrainer): ...

    The loop sets the number of steps and what they learn from, so there is no ``train_dataset``. Learning rate,
    schedule and optimizer are those of the trainer's arguments; ``max_grad_norm`` has no effect, since gradients are
    clipped and noised already. ``train`` resumes an interrupted loop, saves the model under its guarantee and sets
    ``summary``, as :meth:`redactory.training.PrivateLoop.finish` returns it. ``trackers`` are objects like those of
    :func:`redactory.training.integrations.open_trackers`; ``report_to`` must be none, because those callbacks also
    store times and the machine's load, which depend on how many private examples a step sampled.

    Raises ``ConfigurationError`` for arguments that would change steps, and what the loop raises.

    Formal guarantees: those of :class:`redactory.training.PrivateLoop`. Logs hold ``loss`` of noise-free steps only,
    ``epsilon`` and learning rates (:func:`redactory.training.loop.collect_step_metrics`), what the trainer measures on
    its ``eval_dataset``, which must be public, and no time.
    """

    def __init__(self, *args: Any, loop: PrivateLoop, trackers: Sequence[Tracker] = (), **kwargs: Any) -> None:
        if kwargs.pop("train_dataset", None) is not None:
            raise ConfigurationError("train_dataset: the loop draws the examples of every step; remove it")
        self.loop, self.summary = loop, dict[str, Any]()
        self._trackers, self._losses, self._all_losses = trackers, list[float](), list[float]()
        self._epsilon: float | None = None
        unread_row = Dataset.from_dict({"input_ids": [[0, 0]]})  # some trainers require a data set
        super().__init__(*args, train_dataset=unread_row, **kwargs)  # type: ignore[misc]
        _require_supported_arguments(self.args, self.accelerator.mixed_precision)
        require_public_metrics(loop.spec, trackers)
        self.args.num_train_epochs, self.args.max_steps, self.args.max_grad_norm = 1, -1, 0.0

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return one empty batch for each remaining step."""
        return DataLoader(range(len(self.loop)), batch_size=1, collate_fn=lambda _: {})  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the schedule over all steps of the loop, and move it to the first remaining one."""
        is_new = self.lr_scheduler is None
        finished_steps = self.loop.finished_steps
        scheduler: Any = super().create_scheduler(finished_steps + num_training_steps, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no optimizer step was taken here
            for _ in range(finished_steps if is_new else 0):
                scheduler.step()
        return scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Set the next step's gradient; return the loss of public examples, 0 in a noisy step."""
        step = next(self.loop)
        step.backward()
        metrics = step.metrics
        self._epsilon = metrics.get("epsilon", self._epsilon)
        if "loss" in metrics:
            self._losses.append(metrics["loss"])
            self._all_losses.append(metrics["loss"])
        return torch.tensor(metrics.get("loss", 0.0), device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean loss of the noise-free steps since the last time, epsilon, and no time."""
        is_step = "loss" in logs
        logs = _drop_unproved_metrics(logs)
        if is_step and self._losses:
            logs["loss"] = sum(self._losses) / len(self._losses)
        if is_step and self._epsilon is not None:
            logs["epsilon"] = self._epsilon
        self._losses = [] if is_step else self._losses
        super().log(logs)
        for tracker in self._trackers:
            tracker.log(logs, self.loop.finished_steps)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Take the remaining steps, save the model with its guarantee, and return the trainer's output.

        Its ``training_loss`` is the mean over the noise-free steps, NaN without one.
        """
        if any(args) or any(kwargs.values()):
            raise ConfigurationError("train: the loop resumes from its checkpoint; call train() without arguments")
        self.create_optimizer()
        assert self.optimizer is not None
        self.loop.begin(self.accelerator.unwrap_model(self.model), self.optimizer)
        output = super().train() if len(self.loop) else TrainOutput(0, float("nan"), {})
        self.summary = self.loop.finish()
        loss = sum(self._all_losses) / len(self._all_losses) if self._all_losses else float("nan")
        return output._replace(
            training_loss=loss, metrics={**_drop_unproved_metrics(output.metrics), "train_loss": loss}
        )


class PrivateTrainer(PrivateTrainerMixin, Trainer):
    """A ``transformers.Trainer`` that takes the steps of a private loop (:class:`PrivateTrainerMixin`)::

    with PrivateLoop("run", TrainSettings(epsilon=8.0)) as loop:
        trainer = PrivateTrainer(model, TrainingArguments("out", learning_rate=1e-3), loop=loop)
        trainer.train()
        card = trainer.summary["guarantee"]
    """


def _drop_unproved_metrics(logs: Mapping[str, float]) -> dict[str, float]:
    """Return ``logs`` without loss and gradient norm of the training's steps, and without times."""
    return {
        name: value
        for name, value in logs.items()
        if name not in ("loss", "grad_norm")
        and not name.startswith("train_")
        and not name.endswith(("_time", "_runtime", "_per_second"))
    }


def _require_supported_arguments(arguments: Any, precision: str) -> None:
    """Raise ``ConfigurationError`` for arguments of the trainer that change steps or weights, or report times."""
    if arguments.report_to:
        raise ConfigurationError(
            f"report_to: {', '.join(arguments.report_to)} would also store times and the machine's load, which depend "
            "on private examples; set it to none, and give trackers to the trainer"
        )
    if arguments.gradient_accumulation_steps != 1:
        raise ConfigurationError("gradient_accumulation_steps: the loop makes a whole step's gradient; set it to 1")
    if arguments.load_best_model_at_end:
        raise ConfigurationError("load_best_model_at_end: the loop saves its last weights; set it to False")
    if precision != "no":
        raise ConfigurationError(
            f"{precision}: noisy steps need float32; turn it off (TrainSettings.precision is for noise-free steps)"
        )
