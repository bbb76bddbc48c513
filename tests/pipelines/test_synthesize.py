"""Text that a model writes: what is promised of it, what it is drawn by, what leaves and what is refused."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import redactory
from redactory.foundation.bounds import format_upper
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, RunStateError
from redactory.foundation.files import read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.models import seal_result
from redactory.pipelines.curation.release_log import Event, read_history
from redactory.pipelines.curation.share import format_checksums, map_files_by_name
from redactory.pipelines.measure.evaluate import read_trainer_texts
from redactory.pipelines.modeling.synthesize import replace_values, select_by_length
from redactory.redaction import MASK, RunFolder, list_files, read_batches, read_manifest, write_manifest, write_success
from redactory.redaction.folder import SyntheticFolder
from redactory.training import TrainSettings
from redactory.training.accounting import compare_examples, confirm_epsilon
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.data import read_texts
from redactory.training.guarantee.budget import BudgetExceeded
from redactory.training.histogram import Histogram, find_length_bin
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.settings import TRAINERS
from tests.pipelines.kills import killed
from tests.pipelines.leaving import Numbers, configuration
from tests.pipelines.support import invoke_command, list_failed_checks, write_rows

CLASSES = ("rent", "health")
DEVIATION = 30.0
ROWS = [
    {
        "id": f"d{n}",
        "user_id": f"u{n % 9}",
        "kind": CLASSES[n % 5 == 0],
        "text": f"{'please call' if n % 5 else 'the doctor said'} {'very ' * (n % 7)}soon {n % 4}",
    }
    for n in range(60)
]
TRAINING: dict[str, Any] = {
    "trainer": "dpsgd",
    "prefix": "class",
    "epochs": 1,
    "sampling_rate": 1.0,
    "noise_multiplier": 8.0,
    "model": {"embedding_size": 4, "hidden_size": 4},
    "max_tokens": 24,
    "vocabulary_size": 200,
    "min_public_steps": 1,
    "group_sizes": (),
    "threads": 1,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A run with the models ``dpsgd`` and ``sgd``, its configuration, and what was told of a corpus."""
    root = tmp_path_factory.mktemp("synthesize")
    source = write_rows(root / "rows.jsonl", ROWS)
    train = {**TRAINING, "budget": {"path": str(root / "budget.jsonl"), "epsilon": 50.0}}
    config = configuration(source, train=train, dedup={"mode": "none"})
    config["input"] = {"path": str(source), "label": "kind"}
    config["evaluate"] = {"test": [str(source)]}
    run = root / "run"
    redactory.curate(config, output=run, detector=Numbers())
    redactory.train(config, output=run)
    plain = {**config, "train": {key: value for key, value in train.items() if key != "budget"}}
    redactory.train(plain, output=run, trainer="sgd")
    told = redactory.synthesize(
        run, "dpsgd", rows=40, out=root / "out", labels=CLASSES, histogram=DEVIATION, tokens=12, seed=3
    )
    return run, config, told


def corpus_of(run: Path) -> SyntheticFolder:
    return SyntheticFolder(run.parent / "out")


def rows_of(corpus: SyntheticFolder) -> list[dict[str, Any]]:
    return [row for batch in read_batches(corpus.public) for row in batch.to_pylist()]


def test_a_corpus_says_what_is_promised_and_anybody_can_check_it(made: Any) -> None:
    run, _, told = made
    corpus = corpus_of(run)
    card, own = read_json(corpus.guarantee), read_json(RunFolder(run).get_model_folder("dpsgd").guarantee)
    assert told["holds"] == card["holds"] is True
    assert told["epsilon"] == card["epsilon"] > own["epsilon"]  # the histogram costs something too
    assert f"epsilon = {format_upper(card['epsilon'])}" in corpus.card.read_text(encoding="utf-8")
    assert [set(row) for row in rows_of(corpus)] == [{"example_id", "text", "class"}] * 40
    assert list_failed_checks(corpus.root) == set()
    assert list_failed_checks(run) == set()


def test_classes_and_lengths_are_drawn_by_the_released_counts(made: Any) -> None:
    """Drawn by the true ones, they would not fit what the manifest says, nor that be noisy."""
    run, _, _ = made
    said = read_manifest(corpus_of(run))["histogram"]
    due = Histogram(said["deviation"], said["counts"]).compute_quotas(40)
    assert Counter(row["class"] for row in rows_of(corpus_of(run))) == {
        name: sum(bins) for name, bins in due.items() if sum(bins)
    }
    exact = np.zeros((2, 6))
    for row in ROWS:
        exact[CLASSES.index(str(row["kind"])), find_length_bin(str(row["text"]))] += 1
    noise = (np.array([said["counts"][name] for name in CLASSES]) - exact).ravel() / DEVIATION
    # of twelve standard normals, all but in a case of a million
    assert 0.15 < math.sqrt((noise**2).mean()) < 2.5


def test_a_manifest_holds_no_other_number_of_the_corpus(made: Any) -> None:
    run, _, _ = made
    said = read_manifest(corpus_of(run))
    schema = redactory.schema("synthetic-manifest")
    good = Draft202012Validator(schema).is_valid
    assert good(said)
    for key in said:  # nothing may be there besides, nothing lack, nothing be another thing
        assert not good({**said, key: object()})
        assert not good({name: value for name, value in said.items() if name != key})
    assert not good({**said, "examples": 60})
    assert not good({**said, "counts": {"public": 40, "private": 20}})
    assert said["counts"] == {"public": 40}
    page = json.dumps(said) + json.dumps(read_json(corpus_of(run).guarantee))
    assert str(run.parent) not in page
    assert "rows.jsonl" not in page


def test_a_histogram_is_drawn_once_and_booked(made: Any, tmp_path: Path) -> None:
    run, config, _ = made
    again = redactory.synthesize(
        run, "dpsgd", rows=4, out=tmp_path / "again", labels=CLASSES, histogram=DEVIATION, tokens=4
    )
    first, second = (read_manifest(one) for one in (corpus_of(run), SyntheticFolder(tmp_path / "again")))
    assert first["histogram"] == second["histogram"]
    assert again["epsilon"] == read_json(corpus_of(run).guarantee)["epsilon"]
    booked = [row["training"] for row in redactory.budget(config)["trainings"]]
    assert booked == ["run/dpsgd", "run/dpsgd/histogram"]
    with pytest.raises(RunStateError, match="another one would spend the same again"):
        redactory.synthesize(run, "dpsgd", rows=4, out=tmp_path / "x", labels=CLASSES, histogram=2.0)
    # what is composed with it elsewhere counts it
    assert redactory.guarantee(run, ["dpsgd"])["epsilon"] == again["epsilon"]


def test_two_copies_of_a_run_draw_different_noise_from_the_operating_system(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the run, its name or what is asked decides the noise; the system's entropy alone does."""

    def drawn(name: str) -> dict[str, Any]:
        copy = RunFolder(shutil.copytree(made[0], tmp_path / name / "run"))
        shutil.rmtree(copy.get_model_folder("dpsgd").get_result_folder("histogram").root)
        out = tmp_path / name / "out"
        redactory.synthesize(copy.root, "dpsgd", rows=1, out=out, labels=CLASSES, histogram=DEVIATION, tokens=1, seed=1)
        counts: dict[str, Any] = read_manifest(SyntheticFolder(out))["histogram"]["counts"]
        return counts

    first, second = drawn("first"), drawn("second")
    pairs = [pair for name in CLASSES for pair in zip(first[name], second[name], strict=True)]
    assert all(one != other for one, other in pairs)
    monkeypatch.setattr("secrets.token_bytes", bytes)  # zeros: the only source there is
    assert drawn("third") == drawn("fourth") != first


def spent_of(config: dict[str, Any]) -> list[str]:
    return [row["training"] for row in redactory.budget(config)["trainings"]]


def with_budget(config: dict[str, Any], budget: dict[str, Any] | None) -> dict[str, Any]:
    train = {key: value for key, value in config["train"].items() if key != "budget"}
    return {**config, "train": {**train, **({} if budget is None else {"budget": budget})}}


@pytest.mark.parametrize("curated", ["none", "another file", "a lower limit"])
def test_a_histogram_is_booked_in_the_budget_of_its_model(made: Any, tmp_path: Path, curated: str) -> None:
    """Whatever the configuration named when the run was curated."""
    _, config, _ = made
    named = {"path": str(tmp_path / "spent.jsonl"), "epsilon": 50.0}
    before = {
        "none": None,
        "another file": {**named, "path": str(tmp_path / "other.jsonl")},
        "a lower limit": {**named, "epsilon": 1e-3},
    }[curated]
    run = tmp_path / "run"
    redactory.curate(with_budget(config, before), output=run, detector=Numbers())
    redactory.train(with_budget(config, named), output=run)
    asked: dict[str, Any] = {"rows": 2, "labels": CLASSES, "histogram": DEVIATION, "tokens": 2}
    told = redactory.synthesize(run, "dpsgd", out=tmp_path / "out", **asked)
    assert spent_of(with_budget(config, named)) == ["run/dpsgd", "run/dpsgd/histogram"]
    assert redactory.budget(with_budget(config, named))["spent"] == pytest.approx(told["epsilon"], abs=1e-3)
    assert not (tmp_path / "other.jsonl").exists()


def test_a_histogram_is_not_drawn_beyond_the_budget_of_its_model(made: Any, tmp_path: Path) -> None:
    _, config, _ = made
    run, path = tmp_path / "run", tmp_path / "spent.jsonl"
    shutil.copytree(made[0], run)
    asked: dict[str, Any] = {"rows": 2, "out": tmp_path / "out", "labels": CLASSES, "tokens": 2}
    cost = redactory.guarantee(run, "dpsgd")["epsilon"]
    tight = with_budget(config, {"path": str(path), "epsilon": cost + 0.01})
    for name, own in (("tight", tight), ("free", with_budget(config, None))):
        redactory.train(own, output=run, name=name)
    with pytest.raises(BudgetExceeded, match=r"run/tight/histogram would raise epsilon to .* Nothing was counted"):
        redactory.synthesize(run, "tight", histogram=DEVIATION, **asked)
    # a record that is gone, or another one in its place, is not begun anew
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(BudgetExceeded, match=r"spent\.jsonl: run/tight is not recorded in it"):
        redactory.synthesize(run, "tight", histogram=DEVIATION, **asked)
    assert not path.exists()
    path.write_bytes(kept)
    assert Histogram.read_model_histogram(RunFolder(run), "tight") is None
    assert not (tmp_path / "out").exists()
    redactory.synthesize(run, "free", histogram=DEVIATION, **asked)
    assert spent_of(tight) == ["run/tight"]


@pytest.mark.parametrize("change", [{"path": "other.jsonl"}, {"epsilon": 60.0}, {"delta": 1e-6}])
def test_a_finished_model_is_not_taken_for_one_of_another_budget(made: Any, change: dict[str, Any]) -> None:
    run, config, _ = made
    named = {**config["train"]["budget"], **change}
    with pytest.raises(ConfigurationError, match=r"budget\.jsonl with limit 50 .* got /.*jsonl with limit"):
        redactory.train(with_budget(config, named), output=run)
    with pytest.raises(ConfigurationError, match=r"expected none, under which models/sgd"):
        redactory.train(with_budget(config, named), output=run, trainer="sgd")
    beside = run / ".." / run.name / ".." / "budget.jsonl"  # the same by another name
    redactory.train(with_budget(config, {"path": str(beside), "epsilon": 50.0}), output=run)
    redactory.train(with_budget(config, None), output=run)


def test_the_figure_is_that_of_two_gaussians_by_both_accountants(made: Any) -> None:
    """All points in every step, so that there is a closed form: an oracle for what is composed."""
    _run, _, told = made
    shift = math.hypot(2.0 / TRAINING["noise_multiplier"], 2.0 / DEVIATION)
    assert told["epsilon"] == pytest.approx(compute_gaussian_epsilon(shift, 1e-5), rel=1e-3)
    spent = (Histogram(DEVIATION, {}).compute_spending(1),)
    found = confirm_epsilon(compare_examples(spent, Relation.SUBSTITUTION), 1e-5, "a histogram")
    assert found.bounds is not None
    assert found.value is not None
    assert found.bounds.lower <= found.value <= found.bounds.upper
    assert found.value == pytest.approx(compute_gaussian_epsilon(2.0 / DEVIATION, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    "cut_off_in",
    [
        *("modeling.synthesize.write_part", "modeling.synthesize.render_synthetic_card"),
        *("curation.share.write_manifest", "curation.share.write_success", "curation.share.make_world_readable"),
    ],
)
def test_no_killed_attempt_remains(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_off_in: str) -> None:
    run, _, _ = made
    asked: dict[str, Any] = {"out": tmp_path / "out", "labels": CLASSES, "tokens": 2, "seed": 1}

    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(f"redactory.pipelines.{cut_off_in}", kill)
        if cut_off_in != "modeling.synthesize.write_part":
            patch.setattr("redactory.pipelines.modeling.synthesize._PART_ROWS", 2)  # more parts than the next one has
        with pytest.raises(Killed):
            redactory.synthesize(run, "dpsgd", rows=6, **asked)
    staging = tmp_path / ".out.unfinished" / "content"
    assert staging.is_dir()
    (staging / "public" / "part-00009.parquet").write_bytes(b"torn")
    (staging / ".tmp-1-README.md").write_bytes(b"torn")
    redactory.synthesize(run, "dpsgd", rows=2, **asked)
    assert list_failed_checks(tmp_path / "out") == set()
    assert len(rows_of(SyntheticFolder(tmp_path / "out"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def synthesized(run: Path) -> dict[str, Any]:
    """The same each time, once the histogram is there."""
    asked: dict[str, Any] = {"labels": CLASSES, "histogram": DEVIATION, "tokens": 4, "seed": 1}
    return redactory.synthesize(run, "dpsgd", rows=6, out=run.parent / "out", **asked)


def files_below(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def killed_and_asked_again(run: Path, moments: Iterable[int]) -> int:
    """Kill ``synthesized`` of ``run`` at each of these moments and ask again; how often it was killed."""
    out, told = run.parent / "out", synthesized(run)
    whole, there, kills = files_below(out), names_below(run.parent), 0
    for moment in moments:
        shutil.rmtree(out)
        if not killed(partial(synthesized, run), moment):
            break
        kills += 1
        if out.exists():  # all that was left to do was to take away an empty folder
            with pytest.raises(RunStateError, match="out exists"):
                synthesized(run)
        else:
            assert synthesized(run) == told, moment
        assert files_below(out) == whole, moment
        assert names_below(run.parent) == there, moment
        assert list_failed_checks(out) == set(), moment
    assert list_failed_checks(run) == set()
    return kills


def killed_at_the_histogram_and_asked_again(source: Path, folder: Path, moments: Iterable[int]) -> int:
    """As :func:`killed_and_asked_again`, of a run whose histogram is still to be drawn."""
    kills = 0
    for moment in moments:
        run = Path(shutil.copytree(source, folder / str(moment) / "run"))
        drawn = RunFolder(run).get_model_folder("dpsgd").get_result_folder("histogram")
        there = [name for name in names_below(run) if not name.startswith("state/lock")]
        shutil.rmtree(drawn.root)
        kills += killed(partial(synthesized, run), moment)
        kept = drawn.success.exists() and files_below(drawn.root)
        shutil.rmtree(run.parent / "out", ignore_errors=True)
        synthesized(run)
        assert not kept or files_below(drawn.root) == kept, moment  # another one would cost as much again
        assert names_below(run) == there, moment
        assert (list_failed_checks(run), list_failed_checks(run.parent / "out")) == (set(), set()), moment
    return kills


def test_killed_and_retried_the_corpus_is_the_same(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment in ``make soak``."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    run = Path(shutil.copytree(made[0], tmp_path / "run"))
    assert killed_and_asked_again(run, (4, 15, 25)) == 3
    assert killed_at_the_histogram_and_asked_again(made[0], tmp_path, (3, 5, 8)) == 3


row = st.tuples(st.text(st.sampled_from("a "), max_size=60), st.sampled_from(["a", "b", "other", None]))


@given(st.lists(row, max_size=8), row, row)
@settings(max_examples=40)
def test_one_exchanged_point_moves_a_histogram_by_no_more_than_accounted(
    rows: list[tuple[str, str | None]], one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    def counts(*more: tuple[str, str | None]) -> Any:
        # equal draws of noise: what differs is the counts
        found = Histogram.draw_noisy_counts([*rows, *more], ("a", "b"), 1.0, RandomStream.from_seed(1))
        return np.array(list(found.counts.values()))

    spending = Histogram(1.0, {}).compute_spending(1).mechanism
    assert np.linalg.norm(counts(one) - counts(other)) <= math.sqrt(2) + 1e-5
    assert math.sqrt(2) <= spending.get_sensitivity(Relation.SUBSTITUTION)
    assert np.linalg.norm(counts(one) - counts()) <= spending.get_sensitivity(Relation.ADD_OR_REMOVE) + 1e-5


@given(st.lists(st.integers(0, 20), min_size=6, max_size=6), st.lists(st.integers(0, 60), max_size=60))
def test_lengths_are_met_as_far_as_there_are_texts(bins: list[int], words: list[int]) -> None:
    given_ = ["w " * count for count in words]
    kept, met = select_by_length(given_, bins, find_length_bin)
    there = Counter(map(find_length_bin, given_))
    assert len(kept) == min(sum(bins), len(given_))
    assert met == sum(min(due, there[place]) for place, due in enumerate(bins))
    assert not Counter(kept) - Counter(given_)


def test_a_model_without_a_guarantee_writes_nothing_that_leaves(made: Any, tmp_path: Path) -> None:
    run, _, _ = made
    asked: dict[str, Any] = {"rows": 12, "out": tmp_path / "open", "labels": CLASSES, "tokens": 4}
    with pytest.raises(GuaranteeError, match="--no-guarantee"):
        redactory.synthesize(run, "sgd", **asked)
    assert not (tmp_path / "open").exists()
    told = redactory.synthesize(run, "sgd", no_guarantee=True, **asked)
    corpus = SyntheticFolder(tmp_path / "open")
    assert not told["holds"]
    assert "Nothing is guaranteed" in corpus.card.read_text(encoding="utf-8")
    assert list_failed_checks(corpus.root) == {"guarantee"}
    with pytest.raises(GuaranteeError, match="it has no guarantee"):
        redactory.export(run, tmp_path / "left", synthetic=corpus.root)
    # nor where the card claims what the ledger does not say
    forged(corpus, read_json(corpus_of(run).guarantee))
    with pytest.raises(CheckFailed, match="ledger"):
        redactory.export(run, tmp_path / "left", synthetic=corpus.root)
    assert not (tmp_path / "left").exists()


def forged(corpus: SyntheticFolder, card: dict[str, Any]) -> None:
    """The same texts sealed anew with another card."""
    said = read_manifest(corpus) | {"holds": True}
    del said["files"]
    for path in (corpus.manifest, corpus.success, corpus.sums):
        path.unlink()
    write_json(corpus.guarantee, card)
    write_manifest(corpus, said, list_files(corpus, map_files_by_name(corpus.root).values()))
    corpus.sums.write_text(format_checksums({n: file_sha256(p) for n, p in map_files_by_name(corpus.root).items()}))
    write_success(corpus)


def test_what_is_exported_was_measured_and_shows_no_more_than_chance(made: Any, tmp_path: Path) -> None:
    run, _, _ = made
    corpus, model = corpus_of(run), RunFolder(run).get_model_folder("dpsgd")
    with pytest.raises(RunStateError, match="evaluate synthetic"):
        redactory.export(run, tmp_path / "left", synthetic=corpus.root)
    # held-out text that is the training text: nothing can tell them apart
    found = redactory.evaluate_synthetic(run, corpus.root, "dpsgd")
    assert found["holds"]
    assert found["nearest"]["value"] == pytest.approx(0.5)
    told = redactory.export(run, tmp_path / "left", synthetic=corpus.root)
    assert told["public"] == 40
    assert map_files_by_name(tmp_path / "left").keys() == map_files_by_name(corpus.root).keys()
    assert list_failed_checks(tmp_path / "left") == set()
    assert read_history(RunFolder(run))[-1].type == Event.EXPORTED
    page = model.measured.read_text(encoding="utf-8")
    assert "nearest to training text" in page
    assert "likeness to real text" in page
    body = {"format": "redactory-evaluation/1", "evaluation": "synthetic"}
    leaking = {**found, "holds": False, "above_chance": ["nearest"]}
    seal_result(model.get_result_folder("synthetic"), leaking, {**body, "parent": file_sha256(model.manifest)})
    with pytest.raises(GuaranteeError, match="nearest"):
        redactory.export(run, tmp_path / "again", synthetic=corpus.root)
    seal_result(model.get_result_folder("synthetic"), found, {**body, "parent": file_sha256(model.manifest)})


@pytest.mark.parametrize(
    ("asked", "error", "named"),
    [
        ({}, ConfigurationError, "--label"),
        ({"labels": CLASSES, "histogram": 0.0}, ConfigurationError, "--histogram"),
        ({"labels": CLASSES, "rows": 0}, ConfigurationError, "--rows"),
        ({"labels": CLASSES, "top_p": 0.0}, ConfigurationError, "top_p"),
        ({"labels": CLASSES, "model": "other"}, RunStateError, "other"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    made: Any, tmp_path: Path, asked: dict[str, Any], error: type[Exception], named: str
) -> None:
    run, _, _ = made
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(RunFolder(copy).get_model_folder("dpsgd").get_result_folder("histogram").root)
    given_ = {"model": "dpsgd", "rows": 3, "out": tmp_path / "out", **asked}
    with pytest.raises(error, match=named):
        redactory.synthesize(copy, **given_)
    assert not (tmp_path / "out").exists()


def test_what_a_policy_caught_is_in_no_count_of_a_model_that_learns_masked_text(made: Any) -> None:
    run = RunFolder(made[0])
    masked, originals = (
        list(read_trainer_texts(run, TRAINERS[name].list_data_folders(run))) for name in ("crt", "dpsgd")
    )
    assert sorted(originals) == sorted((row["text"], row["kind"]) for row in ROWS)
    expected = [(re.sub(r"\d+", MASK, row["text"]), row["kind"]) for row in ROWS]
    assert sorted(masked) == sorted(expected) != sorted(originals)


def test_classes_stand_before_texts_where_a_training_asks_for_them(made: Any) -> None:
    run, _, _ = made
    read = list(read_texts(RunFolder(run), RunFolder(run).vault, "class"))
    assert read == [f"{row['kind']}: {row['text']}" for row in ROWS]
    with pytest.raises(ValueError, match=r"train\.prefix"):
        TrainSettings(trainer="dpsgd", prefix="class", task="classify", classes=CLASSES, model={"kind": "bag"})
    with pytest.raises(ValueError, match=r"train\.prefix"):
        TrainSettings(trainer="user-level", prefix="class")


def test_spans_and_masks_become_invented_values_and_suspected_texts_can_go(made: Any) -> None:
    run, _, _ = made
    given_ = [f"my name is {MASK}, said {MASK}", f"my name is {MASK}", "plain words", f"write an email to {MASK}"]
    every, changed = replace_values(RunFolder(run), [*given_, "ask for Zelda Quibble"], 5)
    assert changed == 4
    found = [text for text in every if text is not None]
    assert len(found) == 5
    assert MASK not in "".join(found)
    assert "Zelda" not in "".join(found)
    assert found[2] == given_[2]
    assert "@example." in found[3]
    assert found[1] not in found[0]  # another row is about another person
    # a capital is suspected, and marked by nothing; Zelda Quibble is marked
    given_ = ["we saw Bergamo there", "ask for Zelda Quibble", "plain words"]
    every, changed = replace_values(RunFolder(run), given_, 5, drop_suspected=True)
    assert ([text is None for text in every], changed) == ([True, False, False], 1)


def test_a_model_of_conversations_writes_no_rows(made: Any, tmp_path: Path) -> None:
    run, _, _ = made
    copy = RunFolder(shutil.copytree(run, tmp_path / "run"))
    model = copy.get_model_folder("dpsgd")
    said = read_manifest(model)
    said["settings"]["chat"] = {}
    write_json(model.manifest, said)
    write_success(model)
    with pytest.raises(ConfigurationError, match=r"train\.chat"):
        redactory.synthesize(copy.root, "dpsgd", rows=2, out=tmp_path / "out", labels=CLASSES)


def test_the_command_writes_and_says_what_is_promised(made: Any, tmp_path: Path) -> None:
    run, _, _ = made
    labels = [part for name in CLASSES for part in ("--label", name)]
    given_ = ["synthesize", run, "--model", "dpsgd", "--rows", "4", "--out", tmp_path / "out", *labels]
    shown = invoke_command(*given_, "--tokens", "5", "--top-p", "0.5", "--stop", ".")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^epsilon [\d.]+ at delta ", shown.output, re.MULTILINE)
    assert "evaluate synthetic" in shown.output
    assert Counter(row["class"] for row in rows_of(SyntheticFolder(tmp_path / "out"))) == {"rent": 2, "health": 2}
