"""Trainings in MLflow's own records: numbers, choices and hashes, in a SQLite file, and never text."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.evaluation.utility import perplexity
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.pipelines.evaluations.model import keep_result
from redactory.pipelines.track import choices
from redactory.redaction import RunFolder, read_manifest
from redactory.training import TrainSettings
from tests.integrations.tracked_run import WORDS, job
from tests.pipelines.support import DigitDetector


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose training was logged to ``kept/mlflow.db``."""
    root = tmp_path_factory.mktemp("mlflow")
    config = job(root, track={"mlflow": f"sqlite:///{root}/kept/mlflow.db"})
    redactory.curate(config, detector=DigitDetector())
    redactory.train(config)
    return root


@pytest.fixture(scope="module")
def client(place: Path) -> Any:
    """MLflow's own client; whether it reports to anybody was decided when our code first imported it."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{place}/kept/mlflow.db")


def _logged(client: Any) -> list[Any]:
    experiment = client.get_experiment_by_name("redactory")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def test_a_training_is_one_run_with_its_figures(place: Path, client: Any) -> None:
    folder = RunFolder(place / "run")
    model, card = folder.model("crt"), read_json(folder.model("crt").guarantee)
    (run,) = _logged(client)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run/crt"
    figures = [name for name in card if name.startswith("epsilon") and isinstance(card[name], float)]
    assert "epsilon" in figures
    for name in (*figures, "delta", "noise_multiplier", "steps"):
        assert run.data.metrics[name] == card[name]
    assert run.data.metrics["epsilon_group_2"] == card["epsilon_group"]["2"]
    assert run.data.metrics["count_points"] == read_manifest(folder)["counts"]["points"]
    assert run.data.metrics["parameters"] == read_manifest(model)["summary"]["parameters"]
    assert run.data.params["trainer"] == "crt"
    assert run.data.params["model.kind"] == "lstm"
    assert float(run.data.params["sampling_rate"]) == 0.5
    assert run.data.params["device"] == "cpu"
    # what is about users and entities plays no part here
    assert not [key for key in run.data.params if key.startswith(("units", "bounding", "federated"))]
    assert run.data.tags["redactory.ledger"] == card["ledger"]["head"]
    assert run.data.tags["redactory.policy.strict"] == read_manifest(folder)["policies"]["strict"]["hash"]
    assert run.data.tags["redactory.holds"] == "false"
    kept = client.download_artifacts(run.info.run_id, "guarantee.json")
    assert Path(kept).read_bytes() == model.guarantee.read_bytes()


def test_no_text_no_seed_and_no_path_is_told(place: Path, client: Any) -> None:
    (run,) = _logged(client)
    told = json.dumps([run.data.params, run.data.metrics, dict(run.data.tags)])
    for word in (*WORDS, str(place), "rows.jsonl", "user_id"):
        assert word not in told
    assert "seed" not in run.data.params
    database = (place / "kept" / "mlflow.db").read_bytes()
    for word in WORDS:
        assert word.encode() not in database


def test_files_are_their_owners_alone_and_nobody_is_told(place: Path) -> None:
    import mlflow.telemetry

    kept = place / "kept"
    assert stat.S_IMODE((kept / "mlflow.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((kept / "mlflow.db.artifacts").stat().st_mode) == 0o700
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["DO_NOT_TRACK"] == "true"
    assert mlflow.telemetry.get_telemetry_client() is None
    assert not list(place.rglob("mlruns"))


def test_what_was_measured_later_is_added_to_the_same_run(place: Path, client: Any) -> None:
    folder = RunFolder(place / "run")
    (before,) = _logged(client)

    def measured() -> dict[str, Any]:
        from redactory.training import load_model

        return {"as_is": perplexity(load_model(folder.model("crt")), ["thank you"])}

    kept = keep_result(folder, "crt", "perplexity", measured)
    database = str(place / "kept" / "mlflow.db")
    asked = CliRunner().invoke(app, ["export", str(folder.root), "--mlflow", database, "--json"])
    assert asked.exit_code == 0, asked.output
    assert json.loads(asked.stdout)["logged"] == {"crt": before.info.run_id}
    (after,) = _logged(client)
    assert after.data.metrics == {**before.data.metrics, "perplexity": kept["as_is"]["perplexity"]}
    assert len(client.get_metric_history(after.info.run_id, "epsilon")) == 1


def test_an_experiment_that_was_deleted_is_named(place: Path, client: Any) -> None:
    client.delete_experiment(client.create_experiment("gone", artifact_location=(place / "gone").as_uri()))
    with pytest.raises(ConfigurationError, match=r"'gone' was deleted in MLflow .*: restore it there"):
        redactory.track(place / "run", mlflow=place / "kept" / "mlflow.db", experiment="gone")


def test_only_numbers_and_listed_words_are_parameters() -> None:
    settings = TrainSettings(
        trainer="uedp-bounded",
        task="classify",
        classes=("quagga", "zyzzyva"),
        public_text="/home/quagga/text.txt",
        name="zyzzyva",
        bounding={"k_user": 3, "k_entity": 2},
        model={"kind": "awd-lstm"},
        seed=4711,
        budget={"path": "quagga", "epsilon": 47.11},
    )
    told = dict(choices(settings))
    assert not [value for value in told.values() for word in WORDS if word in value]
    assert told["task"] == "classify"
    assert told["bounding.k_user"] == "3"
    assert told["units.protect"] == settings.units.protect.value
    assert "47.11" not in told.values()


def test_another_place_than_a_file_here_is_refused(place: Path, tmp_path: Path) -> None:
    run = place / "run"
    for wrong in ("http://tracking.example", "postgresql://somebody@db/x"):
        with pytest.raises(ConfigurationError, match="a file on this machine"):
            redactory.track(run, mlflow=wrong)
        with pytest.raises(ConfigurationError, match=r"track\.mlflow: a file on this machine"):
            redactory.describe(job(tmp_path, track={"mlflow": wrong}))
    with pytest.raises(ConfigurationError, match=r"track\.mlflow: .* cannot be written"):
        redactory.track(run, mlflow=tmp_path)
    with pytest.raises(ConfigurationError, match=r"track\.mlflow: .* may hold no '\?'"):
        redactory.track(run, mlflow=tmp_path / "why?" / "m.db")
    assert not list(tmp_path.glob("why*"))
    with pytest.raises(RunStateError, match="no finished model 'absent'"):
        redactory.track(run, mlflow=tmp_path / "other.db", model="absent")


def test_a_missing_extra_is_named_before_any_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'redactory\[mlflow\]'"):
        redactory.track(place / "run", mlflow=place / "never.db")
    assert not (place / "never.db").exists()
