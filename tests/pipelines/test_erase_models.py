"""Models of a run that was written anew: what they were promised still follows, and they are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.records import RecordLog
from redactory.redaction import RunFolder
from redactory.training.guarantee.compose import make_composed_card
from tests.pipelines.support import DigitDetector, list_failed_checks, run_checks, write_rows

TRAIN: dict[str, Any] = {"trainer": "crt", "epochs": 1, "sampling_rate": 0.5, "noise_multiplier": 1.0}
TRAIN |= {"model": {"embedding_size": 4, "hidden_size": 4}, "min_public_steps": 1, "group_sizes": [], "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trained")
    rows = [
        {"id": f"d{n}", "user_id": f"u{n % 4}", "text": f"we met on day {n}\nhello to number {n} of you\nbye now"}
        for n in range(12)
    ]
    config = {
        "input": str(write_rows(folder / "rows.jsonl", rows)),
        "segment": {"mode": "line"},
        "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        "train": TRAIN,
        "output": str(folder / "run"),
    }
    redactory.curate(config, detector=DigitDetector())
    redactory.train(config)
    return folder / "run", config


@pytest.fixture
def run(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained[0], tmp_path / "run"))


def test_the_card_is_the_same_before_and_after(run: Path) -> None:
    before, together = redactory.guarantee(run), redactory.guarantee(run, also=[])
    model = RunFolder(run).get_model_folder("crt")
    files = {path: path.read_bytes() for path in (model.weights, model.ledger, model.manifest)}
    (told,) = redactory.erase([run], user_ids=["u1"])["runs"]
    (listed,) = told["models"]
    assert (listed["model"], listed["trainer"]) == ("crt", "crt")
    assert "epsilon" in listed["guarantee"]
    assert redactory.guarantee(run) == before == together == read_json(model.guarantee)
    assert {path: path.read_bytes() for path in files} == files
    assert not list_failed_checks(run)
    assert "trained on release 1" in run_checks(run)["model crt"]["detail"]
    # who asks again is told the models again
    (again,) = redactory.erase([run], user_ids=["u1"])["runs"]
    assert again["models"] == told["models"]


def test_two_models_of_two_releases_compose(run: Path, trained: tuple[Path, dict[str, Any]]) -> None:
    redactory.erase([run], user_ids=["u1"])
    config = {**trained[1], "output": str(run)}
    with pytest.raises(RunStateError, match="an earlier release"):
        redactory.train(config)
    redactory.train(config, name="anew")
    card = make_composed_card([(RunFolder(run), "crt"), (RunFolder(run), "anew")], None)
    assert len({model["parent"] for model in card["models"]}) == 2
    assert "release" not in run_checks(run)["model anew"]["detail"]


def test_a_ledger_of_another_run_is_still_refused(run: Path) -> None:
    redactory.erase([run], user_ids=["u1"])
    kept = RunFolder(run).get_release_folder(1).manifest
    kept.write_text(kept.read_text().replace("redactory-run/1", "redactory-run/2"))
    assert {"earlier releases", "model crt"} <= list_failed_checks(run)


def test_a_training_at_work_stops_an_erasure(run: Path) -> None:

    other = RunFolder(run).get_model_folder("other")
    with RecordLog(other.ledger) as log:
        log.append("begun", {})
        result = redactory.erase([run], user_ids=["u1"])
        assert "is being trained" in result["problems"][0]["problem"]
    folder = RunFolder(run)
    kept = (folder.get_root_key_path("other"), folder.get_checkpoint_path("other"))
    for path in kept:
        path.write_bytes(b"x")
    purged = Path(shutil.copytree(run, run.parent / "purged"))
    (told,) = redactory.erase([run], user_ids=["u1"])["runs"]
    assert told["unfinished_trainings"] == ["other"]
    redactory.purge(purged, ["vault"])
    # what it would go on from can hold clipped sums of whom was taken out
    assert not [path for path in (*kept, *RunFolder(purged).list_unfinished_training_files()) if path.exists()]
    json.dumps(told, allow_nan=False)
