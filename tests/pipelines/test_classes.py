"""The class of a row: into the vault and nowhere else; without one, a run is what it always was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import redactory
from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import validate_config
from redactory.pipelines.readers import Document, InputSettings
from redactory.redaction import RunFolder, list_parts, read_column, read_manifest
from redactory.redaction.shards import CLASS, LABELLED_VAULT, VAULT
from redactory.training import TrainSettings, train_model
from redactory.training.data import read_classes
from tests.pipelines.support import DigitDetector, read_entries, read_files, read_rows, write_rows

CONFIG: dict[str, Any] = {
    "segment": {"mode": "line"},
    "partition": {"documents": 3},
    "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["nobody"]}]}},
}
KINDS = ["rent", None, "xyzzy-class", 7, ""]
ROWS = [{"id": f"d{i}", "text": f"call {i} now\nhello there\nbroken {i}", "kind": KINDS[i % 5]} for i in range(11)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """The same rows, with and without the column of classes."""
    root = tmp_path_factory.mktemp("classes")
    path = write_rows(root / "rows.jsonl", ROWS)
    for name, section in (("with", {"label": "kind"}), ("without", {})):
        given = {**CONFIG, "input": {"path": str(path), **section}}
        redactory.curate(given, output=root / name, detector=DigitDetector())
    return {name: RunFolder(root / name) for name in ("with", "without")}


def test_every_point_has_the_class_of_its_row(runs: dict[str, RunFolder]) -> None:
    known = {str(row["id"]): None if row["kind"] in (None, "") else str(row["kind"]) for row in ROWS}
    found = read_rows(runs["with"].vault)
    assert len(found) == 22  # the points with "broken" are quarantined
    assert all(row[CLASS] == known[row["doc_id"]] for row in found)
    assert {row[CLASS] for row in found} == {"rent", None, "xyzzy-class", "7"}


def test_a_class_is_in_vault_and_quarantine_alone(runs: dict[str, RunFolder]) -> None:
    run, plain = runs["with"], runs["without"]
    for folder, same in zip(run.data_folders, plain.data_folders, strict=True):
        ours, theirs = list_parts(folder), list_parts(same)
        assert [p.name for p in ours] == [p.name for p in theirs]
        if folder not in (run.vault, run.quarantine):
            assert [p.read_bytes() for p in ours] == [p.read_bytes() for p in theirs]
    places = {path.parent for path, data in read_files(run.root).items() if b"xyzzy-class" in data}
    assert places <= {run.vault, run.quarantine}


def test_without_a_column_nothing_changes(runs: dict[str, RunFolder]) -> None:
    assert all(pq.read_schema(p).equals(VAULT) for p in list_parts(runs["without"].vault))
    assert all(pq.read_schema(p).equals(LABELLED_VAULT) for p in list_parts(runs["with"].vault))
    plain, labelled = (Config(input=InputSettings(path=("x",))), Config(input=InputSettings(path=("x",), label="k")))
    assert labelled.select_curation_settings()["input"]["label"] == "k"
    assert plain.compute_curation_hash() != labelled.compute_curation_hash()


def test_a_run_is_not_resumed_with_another_column(runs: dict[str, RunFolder]) -> None:
    path = runs["with"].root.parent / "rows.jsonl"
    for name, section in (("with", {}), ("without", {"label": "kind"}), ("with", {"label": "id"})):
        given = {**CONFIG, "input": {"path": str(path), **section}}
        with pytest.raises(RunStateError, match=r"input\.label"):
            redactory.curate(given, output=runs[name].root, resume=True)
    assert read_manifest(runs["with"])["configuration"]["input"]["label"] == "kind"


def test_a_split_has_the_classes_of_its_originals(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [{**row, "text": f"hello\ncall {n % 3}"} for n, row in enumerate(ROWS)])
    given = {**CONFIG, "input": {"path": str(rows), "label": "kind"}, "dedup": {"mode": "none"}}
    redactory.curate(given, output=tmp_path / "run", detector=DigitDetector())
    run = RunFolder(tmp_path / "run")
    original = dict(zip(read_column(run.examples, "released_id"), read_column(run.vault, CLASS), strict=True))
    for split in (run.public, run.private):
        ids = read_column(split, "example_id")
        assert list(read_classes(run, split)) == [original[one] for one in ids]
        assert len(ids) == len(ROWS)
    training: dict[str, Any] = {"model": {"kind": "bag", "embedding_size": 4}, "epochs": 1, "sampling_rate": 0.5}
    training |= {"min_public_steps": 2, "noise_multiplier": 1.0, "group_sizes": (), "threads": 1}
    settings = TrainSettings(trainer="crt", task="classify", classes=("rent", "xyzzy-class"), **training)
    assert train_model(run, settings)["guarantee"]["epsilon_substitution"] > 0
    with pytest.raises(ConfigurationError, match=r"dedup\.mode none"):
        list(read_classes(runs["with"], runs["with"].private))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_formats_agree_on_classes(kind: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "one", "kind": "a"}, {"text": "two", "kind": None}]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        write_rows(path, rows)
    elif kind == "csv":
        path.write_text("text,kind\none,a\ntwo,\n")
    else:
        import pyarrow as pa

        pq.write_table(pa.Table.from_pylist(rows), path)
    assert [e.label for e in read_entries(path, label="kind") if isinstance(e, Document)] == ["a", None]
    assert [e.label for e in read_entries(path) if isinstance(e, Document)] == [None, None]


def test_a_class_that_is_no_name_is_rejected_and_a_missing_column_refused(tmp_path: Path) -> None:
    bad: list[tuple[Any, str | None]] = [
        (["a"], "label_not_string"),
        (True, "label_not_string"),
        (1.5, "label_not_string"),
        ("x\0", "label_not_string"),
        ("x" * 1025, "label_too_long"),
        ("fine", None),
    ]
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "a", "kind": value} for value, _ in bad])
    entries = read_entries(path, label="kind")
    assert [getattr(e, "reason", None) for e in entries] == [reason for _, reason in bad]
    (tmp_path / "rows.csv").write_text("text,sort\none,a\n")
    with pytest.raises(InputError, match="no column 'kind'"):
        read_entries(tmp_path / "rows.csv", label="kind")
    (tmp_path / "note.txt").write_text("a text file has no columns")
    assert [e.label for e in read_entries(tmp_path / "note.txt", label="kind") if isinstance(e, Document)] == [None]


def test_a_classifier_without_classes_is_refused_before_anything_is_read() -> None:
    train = {"task": "classify", "trainer": "noiseless", "classes": ["a", "b"]}
    with pytest.raises(ConfigurationError, match=r"input\.label"):
        validate_config({"input": "rows.jsonl", "train": train})
    labelled = {"input": {"path": "rows.jsonl", "label": "kind"}, "train": train}
    assert validate_config(labelled).train.task == "classify"
    with pytest.raises(ConfigurationError, match=r"evaluate\.canaries"):
        validate_config({**labelled, "evaluate": {"canaries": "x.canaries.json"}})
    assert json.loads(json.dumps(validate_config(labelled).model_dump(mode="json")))["input"]["label"] == "kind"
