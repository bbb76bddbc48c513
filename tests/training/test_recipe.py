"""The recipe: what it chooses, that set keys win, and that public losses decide which weights are saved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.foundation.records import read_records
from redactory.redaction.folder import RunFolder
from redactory.training import TrainSettings, loop, train_model
from redactory.training.held_out import find_saved_row
from redactory.training.loop import MAX_PUBLIC_PASSES, schedule_steps
from redactory.training.mechanisms.ledger import NOISY_STEP
from redactory.training.model import load_model
from redactory.training.steps import NoiseFreeSteps
from tests.training.conftest import PUBLIC_TEXTS, SMALL_SETTINGS, make_small_settings, write_run
from tests.training.test_resume import Killed, killing
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

MakeRun = Callable[[], RunFolder]
CLASSIFIER: dict[str, Any] = {"trainer": "dpsgd", "task": "classify", "classes": ("a", "b")}
OTHER_VALUES: dict[str, Any] = {
    "sampling_rate": 0.37,
    "epochs": 7,
    "dp_learning_rate": 0.0123,
    "learning_rate": 0.0321,
    "learning_rate_schedule": "cosine",
    "clip_norm": 0.77,
    "expected_batch_size": 123.0,
    "held_out": 0.22,
}


def get_choices(**values: Any) -> dict[str, Any]:
    made = TrainSettings(**values)
    return {key: value for key, value in made.choose_values().items() if f"{key} {value}" in made.describe_choices()}


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(["encoder", "bag", "lstm", "gpt2"]),
    is_set=st.sets(st.sampled_from(sorted(OTHER_VALUES))),
    max_examples=st.sampled_from([None, 500, 50_000, 10**7]),
    trainer=st.sampled_from(["crt", "dpsgd"]),
)
def test_a_set_key_wins_and_the_others_are_chosen(
    kind: str, is_set: set[str], max_examples: int | None, trainer: str
) -> None:
    is_classifier = kind in ("encoder", "bag")
    if trainer == "dpsgd" or is_classifier:
        is_set = is_set - {"held_out"}
    values = {"model": {"kind": kind}, "max_examples": max_examples, **(CLASSIFIER if is_classifier else {})}
    values["trainer"] = trainer
    explicit = {key: OTHER_VALUES[key] for key in is_set}
    made = TrainSettings(**values, **explicit)
    chosen = made.choose_values()
    for key, value in {**chosen, **explicit}.items():
        assert getattr(made, key) == value
    assert made.model_fields_set == {*values, *explicit}
    assert {choice.split()[0] for choice in made.describe_choices()} == chosen.keys() - is_set
    # read again from a ledger, where every value is set, nothing changes
    assert TrainSettings.model_validate(made.model_dump()) == made


def test_a_command_that_changes_the_network_does_not_inherit_the_size_of_the_last() -> None:
    lstm = TrainSettings(**CLASSIFIER, model={"kind": "lstm", "layers": 2})
    assert lstm.model.hidden_size == 64
    kept = lstm.model_dump(exclude_unset=True)
    assert kept["model"] == {"kind": "lstm", "layers": 2}
    assert TrainSettings(**kept) == lstm
    assert TrainSettings(**{**kept, "recipe": "fixed"}).model.hidden_size == 200
    explicit = TrainSettings(**CLASSIFIER, model={"kind": "lstm", "hidden_size": 64})
    assert explicit.model_dump(exclude_unset=True)["model"] == {"kind": "lstm", "hidden_size": 64}


def test_choices_of_classifiers_and_language_models() -> None:
    bag = get_choices(**CLASSIFIER, model={"kind": "bag"})
    assert bag == {"sampling_rate": 0.1, "epochs": 20, "dp_learning_rate": 0.1, "learning_rate_schedule": "linear"}
    many = get_choices(**CLASSIFIER, model={"kind": "bag"}, max_examples=100_000)
    # 200 steps in all; the batch is what a step draws at most
    assert (many["epochs"], many["sampling_rate"], many["expected_batch_size"]) == (4, 0.02, 2_000.0)
    pretrained = get_choices(trainer="dpsgd", public_text=Path("text"))
    assert pretrained == {"pretraining_epochs": 10, "dp_learning_rate": 0.01}
    noisier = get_choices(trainer="dpsgd", public_text=Path("text"), epsilon=3.0)
    assert noisier == {"pretraining_epochs": 10, "dp_learning_rate": 0.003}
    assert get_choices(trainer="dpsgd", model={"kind": "lstm"}) == {}
    folder = get_choices(trainer="dpsgd", public_text=Path("text"), model={"folder": "gpt2"})
    assert (folder["pretraining_epochs"], folder["dp_learning_rate"]) == (3, 5e-4)
    assert get_choices(recipe="fixed", **CLASSIFIER) == get_choices(trainer="sgd") == {}
    assert TrainSettings(recipe="fixed", **CLASSIFIER).epochs == TrainSettings.model_fields["epochs"].default


def test_more_examples_than_declared_are_refused(tmp_path: Path) -> None:
    counts = {"examples": 50, "private": 27, "private_duplicate": 2, "quarantined": 1, "public": 20}
    run = write_run(tmp_path / "RUN", counts=counts)
    with pytest.raises(ConfigurationError, match="max_examples is 29, but noisy steps draw from 30 examples"):
        train_model(run, make_small_settings(max_examples=29))
    assert not run.get_model_folder("crt").root.exists()
    assert train_model(run, make_small_settings(max_examples=30))["guarantee"]["training"]["bound_on_examples"] == 30


def test_a_bound_that_nothing_is_compared_with_says_so(tmp_path: Path) -> None:
    """Of users and entities the number of examples is secret."""
    run = write_unit_run(tmp_path / "RUN")
    card = train_model(run, training(write_public(tmp_path / "public.jsonl"), max_examples=3))["guarantee"]
    assert card["training"]["bound_on_examples"].startswith("3, declared, and not compared")


@pytest.fixture
def held_out_file(tmp_path: Path) -> Path:
    path = tmp_path / "other.txt"
    path.write_text("\n".join(PUBLIC_TEXTS[::5]), encoding="utf-8")
    return path


def compute_loss(run: RunFolder) -> float:
    """Nats a word of the saved model on the held-out file."""
    texts = PUBLIC_TEXTS[::5]
    scores = load_model(run.get_model_folder("crt")).compute_token_log_probs(texts)
    return -float(sum(score.sum() for score in scores)) / sum(len(text.split()) for text in texts)


@pytest.mark.parametrize("dp_learning_rate", [0.001, 1.0])
def test_the_weights_with_the_least_public_loss_are_saved(
    dp_learning_rate: float, fresh_run: MakeRun, held_out_file: Path
) -> None:
    """Noise at a large learning rate spoils what noise-free steps learned: then earlier weights are the best."""
    run = fresh_run()
    made = make_small_settings(
        recipe="auto", held_out=held_out_file, epochs=3, dp_learning_rate=dp_learning_rate, learning_rate=0.01
    )
    train_model(run, made)
    rows = read_json(run.get_model_folder("crt").held_out)["rows"]
    losses = [row["loss"] for row in rows[1:] if not row.get("before_noise")]
    assert len(losses) == 3
    card = read_json(run.get_model_folder("crt").guarantee)
    assert card["training"]["saved_weights"].startswith("those after the epoch with the least loss")
    assert compute_loss(run) == pytest.approx(min(losses)) == pytest.approx(find_saved_row(rows)["loss"])
    assert (min(losses) < losses[-1]) is (dp_learning_rate == 1.0)


def test_killed_and_resumed_the_same_weights_are_saved(
    fresh_run: MakeRun, held_out_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_STEPS", 3)
    made = make_small_settings(
        recipe="auto", held_out=held_out_file, epochs=4, dp_learning_rate=0.3, learning_rate=0.2, min_public_steps=6
    )
    whole, run = fresh_run(), fresh_run()
    with killing(-1) as seen:
        train_model(whole, made)
    for part in (7, 4, 3, 2):
        with killing(seen[0] // part), suppress(Killed):
            train_model(run, made)
    train_model(run, made)
    for name in ("held_out", "weights"):
        assert (
            getattr(run.get_model_folder("crt"), name).read_bytes()
            == getattr(whole.get_model_folder("crt"), name).read_bytes()
        )


@pytest.mark.parametrize(("learning_rate", "epochs"), [(0.01, 3), (3.0, 1)])
def test_noise_free_steps_end_once_they_raise_the_public_loss(
    learning_rate: float, epochs: int, fresh_run: MakeRun, held_out_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noisy steps stay all that were accounted for."""
    run, numbers = fresh_run(), list[int]()
    take = NoiseFreeSteps.step

    def record(self: NoiseFreeSteps, number: int) -> None:
        numbers.append(number)
        take(self, number)

    monkeypatch.setattr(NoiseFreeSteps, "step", record)
    train_model(run, make_small_settings(recipe="auto", held_out=held_out_file, epochs=3, learning_rate=learning_rate))
    assert numbers == list(range(len(numbers)))
    steps_in_epoch = len(numbers) // epochs
    assert len(numbers) == epochs * steps_in_epoch
    records = [record for record in read_records(run.get_model_folder("crt").ledger) if record.type == NOISY_STEP]
    assert len(records) == 3 * round(1 / SMALL_SETTINGS["sampling_rate"])


@pytest.mark.parametrize("values", [{}, {"min_public_steps": 100}, {"recipe": "fixed"}])
def test_a_small_split_is_passed_over_ten_times_an_epoch(values: dict[str, Any]) -> None:
    made = TrainSettings(sampling_rate=0.5, epochs=2, **values)

    class Kind:
        rows, steps_per_pass = range(8), 1
        scheduled_optimizer: Any = type("Optimizer", (), {})()

    kinds: Any = (None, Kind(), Kind())
    noise_free = [step for step in schedule_steps(made, kinds, None) if not step.is_noisy]  # type: ignore[arg-type]
    assert len(noise_free) == 2 * (100 if values else MAX_PUBLIC_PASSES)


def test_too_few_public_texts_are_not_held_out(fresh_run: MakeRun) -> None:
    run = fresh_run()
    card = train_model(run, make_small_settings(recipe="auto"))["guarantee"]
    assert not run.get_model_folder("crt").held_out.exists()
    # the best weights cannot be told without a measurement
    assert card["training"]["saved_weights"].startswith("those after the last step")
    with pytest.raises(ConfigurationError, match="no text is held out"):
        train_model(fresh_run(), make_small_settings(recipe="auto", held_out=1e-9))
