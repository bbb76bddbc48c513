"""Public text that no step learns from: what it is, what its loss tells, and that looking changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training import loop, make_guarantee_card, train_model
from redactory.training.data import PublicText
from redactory.training.held_out import HeldOutText, find_saved_row
from redactory.training.loop import RemainingTimeEstimator, ScheduledStep, TrainingContext
from redactory.training.model import load_model
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import PUBLIC_TEXTS, make_initial_model, make_small_settings
from tests.training.test_resume import Killed, killing
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

MakeRun = Callable[[], RunFolder]


@pytest.fixture(scope="module")
def own_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("held") / "own.txt"
    path.write_text("\n".join(PUBLIC_TEXTS[::5]), encoding="utf-8")
    return path


def rows_of(run: RunFolder) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_json(run.get_model_folder("crt").held_out)["rows"]
    return rows


def test_a_file_is_measured_and_changes_no_bit(fresh_run: MakeRun, trained: RunFolder, own_text: Path) -> None:
    run, said = fresh_run(), list[str]()
    train_model(run, make_small_settings(held_out=own_text), lambda work, done, total, unit="": said.append(unit))
    assert file_sha256(run.get_model_folder("crt").weights) == file_sha256(trained.get_model_folder("crt").weights)
    assert [row["step"] for row in rows_of(run)] == [0, 10, 20]
    # nats a word of the model that was saved, by hand
    texts = PUBLIC_TEXTS[::5]
    scores = load_model(run.get_model_folder("crt")).compute_token_log_probs(texts)
    total = -sum(score.sum() for score in scores) / sum(len(text.split()) for text in texts)
    assert rows_of(run)[-1]["loss"] == pytest.approx(total)
    assert any(re.fullmatch(rf"steps, held-out loss {total:.3f}", unit) for unit in said)
    assert "held_out.json" in read_manifest(run.get_model_folder("crt"))["files"]
    head = read_records(run.get_model_folder("crt").ledger)[0].body
    assert head["settings"]["held_out"] == "own.txt"


@pytest.mark.parametrize("trainer", ["crt", "dpsgd", "redact-only"])
def test_weights_before_noisy_steps_are_saved_only_if_there_are_none(
    trainer: str, fresh_run: MakeRun, own_text: Path, tmp_path: Path
) -> None:
    run, public = fresh_run(), tmp_path / "public.txt"
    public.write_text("\n".join(PUBLIC_TEXTS), encoding="utf-8")
    # what comes after raises the loss
    rates = {"learning_rate": 0.3, "dp_learning_rate": 3.0, "pretraining_epochs": 3, "recipe": "auto"}
    given = {"trainer": trainer, "held_out": own_text, "public_text": public, "noise_multiplier": 50.0, **rates}
    train_model(run, make_small_settings(**given))
    rows = read_json(run.get_model_folder(trainer).held_out)["rows"]
    pretrained, has_noise = rows[1], trainer != "redact-only"
    assert pretrained["step"] == 18
    assert pretrained.get("before_noise", False) is has_noise
    assert min(rows, key=lambda row: row["loss"]).get("before_noise", False) is has_noise
    assert not find_saved_row(rows).get("before_noise", False)
    scores = load_model(run.get_model_folder(trainer)).compute_token_log_probs(PUBLIC_TEXTS[::5])
    total = -sum(score.sum() for score in scores) / sum(len(text.split()) for text in PUBLIC_TEXTS[::5])
    assert find_saved_row(rows)["loss"] == pytest.approx(total)


@pytest.mark.parametrize("trainer", ["crt", "redact-only"])
def test_a_share_of_the_public_side_is_learnt_by_no_step(trainer: str, trained: RunFolder) -> None:
    settings, stream = make_small_settings(trainer=trainer, held_out=0.25), RandomStream.from_seed(7)
    held: Any = HeldOutText.from_settings(trained, settings, stream, None)
    assert list(held.texts) == [PUBLIC_TEXTS[row] for row in held.rows]
    assert 0 < len(held.rows) < len(PUBLIC_TEXTS) / 2
    model = make_initial_model(settings, stream, build_vocabulary(trained, settings, None))
    made = TrainingContext(trained, settings, model.network, model.tokenizer, stream, held_out_rows=held.rows)
    plain: Any = made.make_step_kinds(None, None).noise_free
    assert sorted({*plain.rows.tolist(), *held.rows.tolist()}) == list(range(len(plain.examples)))
    assert not {*plain.rows.tolist()} & {*held.rows.tolist()}


def test_killed_and_resumed_the_curve_is_the_same(fresh_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_STEPS", 3)
    settings = {"held_out": 0.25}
    whole, run = fresh_run(), fresh_run()
    with killing(-1) as seen:
        train_model(whole, make_small_settings(**settings))
    for part in (3, 2):
        with killing(seen[0] // part), suppress(Killed):
            train_model(run, make_small_settings(**settings))
    train_model(run, make_small_settings(**settings))
    for name in ("held_out", "weights"):
        assert (
            getattr(run.get_model_folder("crt"), name).read_bytes()
            == getattr(whole.get_model_folder("crt"), name).read_bytes()
        )


def test_a_loss_that_rises_is_told_on_the_card(fresh_run: MakeRun, own_text: Path) -> None:
    run = fresh_run()
    card = train_model(run, make_small_settings(held_out=own_text, dp_learning_rate=5.0))["guarantee"]
    assert any("the training diverged" in one for one in card["remarks"])
    assert card == make_guarantee_card(run, "crt") == read_json(run.get_model_folder("crt").guarantee)
    assert "the training diverged" in run.get_model_folder("crt").card.read_text(encoding="utf-8")


def test_a_classifier_tells_errors_and_its_commonest_class(tmp_path: Path) -> None:
    """Of a file with both classes; the rows of a share of the public text are not learnt either."""
    run, classes = write_unit_run(tmp_path / "RUN", classes=True), ("letter", "meeting")
    public, held = tmp_path / "public.jsonl", tmp_path / "held.jsonl"
    write_public(public, kind="letter")
    rows = [{"words": "a letter came", "kind": "letter"}, {"words": "we met", "kind": "meeting"}]
    held.write_text("\n".join(map(json.dumps, [*rows, {"words": "of none", "kind": "x"}])), encoding="utf-8")
    # it learns from rows of one class alone, and noise drowns the rest
    own = {"task": "classify", "classes": classes, "pretraining_epochs": 30, "dp_learning_rate": 1e-9}
    card = train_model(run, training(public, **own, held_out=held))["guarantee"]
    (last, unit, texts) = (
        read_json(run.get_model_folder("uedp-bounded").held_out)[key] for key in ("rows", "unit", "texts")
    )
    assert (unit, texts) == ("nats a text", 2)
    assert (last[-1]["error_rate"], last[-1]["most_said"]) == (0.5, 1.0)
    assert any("one class for every" in one for one in card["remarks"])
    stream, text = RandomStream.from_seed(3), PublicText(public, "words", "kind")
    share = training(public, **own, held_out=0.4)
    found: Any = HeldOutText.from_settings(run, share, stream, text)
    model = make_initial_model(share, stream, build_vocabulary(run, share, text))
    made = TrainingContext(run, share, model.network, model.tokenizer, stream, None, text, held_out_rows=found.rows)
    pretraining: Any = made.make_pretraining_steps()
    assert len(found.rows)
    assert not {*pretraining.rows.tolist()} & {*found.rows.tolist()}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"held_out": 0.0}, "at most 0.5"),
        ({"held_out": 0.7}, "at most 0.5"),
        ({"held_out": 0.1, "trainer": "dpsgd"}, "does not use the public split"),
    ],
)
def test_shares_that_hold_nothing_out_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        make_small_settings(**changes)


def test_text_of_the_corpus_and_no_text_are_refused(trained: RunFolder, tmp_path: Path) -> None:
    stream, empty = RandomStream.from_seed(1), tmp_path / "empty.txt"
    empty.write_text("\n\n", encoding="utf-8")
    for given, says in (
        (trained.manifest, "train.held_out: .* part of the corpus"),
        (empty, "no text"),
        (1e-9, "no text"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            HeldOutText.from_settings(trained, make_small_settings(held_out=given), stream, None)


def test_the_time_left_is_told_once_every_kind_of_step_is_known() -> None:
    def step(work: str, noisy: bool) -> ScheduledStep:
        return ScheduledStep(None, 0, work, 0, 0, noisy, False)  # type: ignore[arg-type]

    plain, noisy = step("epoch 1, without noise", False), step("epoch 1, with noise", True)
    left = RemainingTimeEstimator([plain, plain, *([noisy] * 100)])
    assert left.format_time_left(plain, 30.0) == left.format_time_left(plain, 90.0) == ""
    assert left.format_time_left(noisy, 60.0) == ", 1 h 39 min left"
    assert left.format_time_left(noisy, 20.0) == ", 1 h 6 min left"
    assert RemainingTimeEstimator([noisy, noisy]).format_time_left(noisy, 0.5) == ", 1 min left"
