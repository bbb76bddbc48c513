"""``PrivateTrainer`` and its mixin, with the real libraries: their steps are the loop's, and logs are public."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import list_broken_files
from redactory.training import PrivateLoop
from redactory.training import loop as training_loop
from redactory.training.integrations import PrivateTrainer
from redactory.training.private_loop import PrivateLoopStep
from tests.training.conftest import make_small_settings
from tests.training.test_trackers import Recorder

MakeRun = Callable[[], RunFolder]


def make_trainer(
    run: RunFolder, folder: Path, settings: dict[str, Any], trainer: dict[str, Any] | None = None, **arguments: Any
) -> PrivateTrainer:
    """A trainer of a tiny Llama; ``settings`` are the loop's, ``arguments`` those of transformers."""
    loop = PrivateLoop(run, make_small_settings(**{"seed": None, "max_tokens": 32, **settings}))
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=loop.tokenizer.size, **sizes))  # type: ignore[arg-type]
    quiet = {"use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "learning_rate": 0.01, "logging_steps": 1}
    return PrivateTrainer(network, TrainingArguments(str(folder), **{**quiet, **arguments}), loop=loop, **trainer or {})


def test_logs_have_the_loss_of_public_steps_epsilon_and_no_time(
    fresh_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, recorder, batches, backward = fresh_run(), Recorder(), list[float](), PrivateLoopStep.backward

    def measure_first(step: PrivateLoopStep) -> None:
        if not step.noisy:
            with torch.no_grad():
                total = float(step._network.example_losses(step.batch).sum())
            batches.append(total / int(step.batch.real.sum()))
        backward(step)

    monkeypatch.setattr(PrivateLoopStep, "backward", measure_first)
    trainer = make_trainer(run, tmp_path / "out", {"trainer": "crt"}, {"trackers": [recorder]})
    output = trainer.train()
    card = trainer.summary["guarantee"]
    assert list_broken_files(run.get_model_folder("crt")) == []
    rows = [row for row in trainer.state.log_history if "learning_rate" in row]
    allowed = {"loss", "epsilon", "learning_rate", "epoch", "step", "total_flos"}
    assert all(row.keys() <= allowed for row in trainer.state.log_history)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == len(batches) == len(rows) - card["steps"] == 12
    assert losses == pytest.approx(batches, rel=1e-5)
    assert output.training_loss == output.metrics["train_loss"] == pytest.approx(sum(batches) / len(batches))
    assert output.metrics.keys() <= {"train_loss", "total_flos", "epoch"}
    assert rows[-1]["epsilon"] == pytest.approx(card["epsilon"], rel=1e-3)
    assert recorder.rows[1]["loss"] == losses[0]


def test_an_evaluation_logs_its_loss_and_no_time(fresh_run: MakeRun, tmp_path: Path) -> None:
    ids, recorder = {"input_ids": [3, 4, 5], "labels": [3, 4, 5]}, Recorder()
    trainer = make_trainer(fresh_run(), tmp_path / "out", {}, {"eval_dataset": [ids] * 2, "trackers": [recorder]})
    trainer.evaluate()
    (row,) = [row for row in trainer.state.log_history if "eval_loss" in row]
    assert row.keys() <= {"eval_loss", "epoch", "step"}
    assert recorder.rows[0].keys() <= {"eval_loss", "epoch"}


def test_the_environment_turns_no_mixed_precision_on(
    fresh_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ConfigurationError, match="bf16: noisy steps need float32"):
        make_trainer(fresh_run(), tmp_path / "out", {})


def test_a_trainer_without_public_steps_logs_no_loss(fresh_run: MakeRun, tmp_path: Path) -> None:
    trainer = make_trainer(fresh_run(), tmp_path / "out", {"trainer": "dpsgd"})
    assert math.isnan(trainer.train().training_loss)
    assert not any("loss" in row for row in trainer.state.log_history)


def test_without_a_guarantee_only_the_trainers_rate_is_logged(fresh_run: MakeRun, tmp_path: Path) -> None:
    trainer = make_trainer(fresh_run(), tmp_path / "out", {"trainer": "crt", "seed": 7})
    trainer.train()
    assert all(not row.keys() & {"loss", "epsilon", "train_loss"} for row in trainer.state.log_history)
    with pytest.raises(ConfigurationError, match="nothing is guaranteed"):
        make_trainer(fresh_run(), tmp_path / "out", {"seed": 7}, {"trackers": [Recorder()]})


class Interruption(TrainerCallback):
    """Stops the program after ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.steps:
            raise KeyboardInterrupt


def test_an_interrupted_training_resumes_with_its_schedule(
    fresh_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "CHECKPOINT_STEPS", 1)
    whole, run = fresh_run(), fresh_run()
    complete = make_trainer(whole, tmp_path / "a", {"trainer": "crt"})
    complete.train()
    interrupted = make_trainer(run, tmp_path / "b", {"trainer": "crt"})
    interrupted.add_callback(Interruption(7))
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    interrupted.loop.close()
    resumed = make_trainer(run, tmp_path / "b", {"trainer": "crt"})
    resumed.train()
    rates = [
        [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
        for trainer in (complete, resumed)
    ]
    assert rates[1] == pytest.approx(rates[0][6:])  # a step is saved when the next one begins
    assert len(set(rates[0])) == 20
    again = make_trainer(run, tmp_path / "b", {"trainer": "crt"})
    again.train()
    assert again.summary["guarantee"] == resumed.summary["guarantee"]


def test_a_training_that_stops_early_is_not_sealed(fresh_run: MakeRun, tmp_path: Path) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    trainer = make_trainer(fresh_run(), tmp_path / "out", {"trainer": "crt"}, {"callbacks": [Stop()]})
    with pytest.raises(RunStateError, match="steps are not done"):
        trainer.train()


BEST = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}


@pytest.mark.parametrize(
    ("trainer", "arguments", "message"),
    [
        ({"train_dataset": [0]}, {}, "the loop draws the examples of every step"),
        ({}, {"gradient_accumulation_steps": 2}, "a whole step's gradient; set it to 1"),
        ({}, {"bf16": True}, "bf16: noisy steps need float32"),
        ({"eval_dataset": [0]}, BEST, "its last weights"),
        ({}, {"report_to": "tensorboard"}, "would also store times"),
    ],
)
def test_arguments_that_change_steps_are_refused(
    trainer: dict[str, Any], arguments: dict[str, Any], message: str, fresh_run: MakeRun, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(fresh_run(), tmp_path / "out", {}, trainer, **arguments)


def test_a_trainers_own_checkpoint_is_refused(fresh_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the loop resumes from its checkpoint"):
        make_trainer(fresh_run(), tmp_path / "out", {}).train(resume_from_checkpoint=True)
