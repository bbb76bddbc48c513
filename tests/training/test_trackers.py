"""Trackers get the public metrics of a training, by the libraries themselves, and nothing that is private."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.training import RecallMeasurement, TrainSettings, train_model
from redactory.training.integrations import open_trackers, trackers
from redactory.training.loop import Tracker
from redactory.training.steps import NoiseFreeSteps
from tests.training.conftest import make_small_settings

MakeRun = Callable[[], RunFolder]


class Recorder:
    """A tracker that keeps what it gets, by step; each takes ``seconds``."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.seconds = seconds

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows[step] = dict(metrics)
        time.sleep(self.seconds)


def make_tracked_settings(**changes: Any) -> TrainSettings:
    """Settings of a training with a guarantee: without a seed."""
    return make_small_settings(seed=None, **changes)


def train_with(run: RunFolder, settings: TrainSettings, *trackers: Tracker) -> dict[str, Any]:
    return train_model(run, settings, trackers=trackers)["guarantee"]


def test_noisy_steps_give_epsilon_and_noise_free_steps_their_loss(
    fresh_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    step = NoiseFreeSteps.step

    def record_loss(self: NoiseFreeSteps, number: int) -> None:
        batch = self.examples.make_batch(self.select_rows(number))
        losses.append(float(self.network.example_losses(batch).detach().sum()) / int(batch.real.sum()))
        step(self, number)

    monkeypatch.setattr(NoiseFreeSteps, "step", record_loss)
    run, recorder = fresh_run(), Recorder()
    card = train_with(run, make_tracked_settings(held_out=0.25, epochs=2), recorder)
    rows = list(recorder.rows.values())
    assert list(recorder.rows) == list(range(1, len(rows) + 1))
    noisy = [row for row in rows if "learning_rate" in row]
    assert len(noisy) == card["steps"] == 8
    assert all(row.keys() <= {"learning_rate", "epsilon", "held_out_loss"} for row in noisy)
    assert [row["epsilon"] for row in noisy] == sorted(row["epsilon"] for row in noisy)
    assert noisy[0]["epsilon"] < noisy[-1]["epsilon"] == pytest.approx(card["epsilon"], rel=1e-3)
    noise_free = [row for row in rows if "noise_free_learning_rate" in row]
    assert all(row.keys() == {"noise_free_learning_rate", "loss"} for row in noise_free)
    assert [row["loss"] for row in noise_free] == pytest.approx(losses)
    curve = read_json(run.get_model_folder("crt").held_out)["rows"]
    shown = {number: row["held_out_loss"] for number, row in recorder.rows.items() if "held_out_loss" in row}
    assert shown == {row["step"]: row["loss"] for row in curve[1:]}


def test_what_labels_measured_on_private_text_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[Any]()
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda name, settings: sent.append(settings) or ExitStack())
    measured = RecallMeasurement(labels=200, missed_by_strict=11, missed_by_both=2)
    with open_trackers(["wandb"], make_tracked_settings().model_copy(update={"detector_recall_file": measured})):
        assert sent[0]["detector_recall_file"] is None
        assert sent[0]["trainer"] == "crt"
        assert "11" not in json.dumps(sent)


@pytest.mark.parametrize("changes", [{"trainer": "redact-only"}, {"trainer": "sgd"}, {"seed": 7}])
def test_without_a_guarantee_nothing_is_tracked(changes: dict[str, Any], fresh_run: MakeRun) -> None:
    run, recorder = fresh_run(), Recorder()
    with pytest.raises(ConfigurationError, match="nothing is guaranteed"):
        train_with(run, make_tracked_settings().model_copy(update=changes), recorder)
    assert recorder.rows == {}
    assert not run.get_model_folder(changes.get("trainer", "crt")).root.exists()


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    events: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(str(folder / "crt"))
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    entries = {name: accumulator.Scalars(name) for name in names}
    assert len({entry.wall_time for rows in entries.values() for entry in rows}) == 1
    return {name: {entry.step: entry.value for entry in rows} for name, rows in entries.items()}


def read_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    client: Any = importlib.import_module("mlflow").MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("redactory").experiment_id])
    assert run.info.end_time == run.info.start_time
    assert json.loads(run.data.params["trainer"]) == "crt"
    assert set(run.data.tags) == {"mlflow.runName"}
    entries = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    assert {entry.timestamp for rows in entries.values() for entry in rows} == {run.info.start_time}
    return {name: {entry.step: entry.value for entry in rows} for name, rows in entries.items()}


def iterate_wandb_records(data: bytes) -> Iterator[bytes]:
    """Split the file of an offline run, in LevelDB's log format, into records."""
    position, parts = 7, b""
    while position + 7 <= len(data):
        if 32_768 - position % 32_768 < 7:
            position += 32_768 - position % 32_768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_wandb(folder: Path) -> dict[str, dict[int, float]]:
    protocol: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    rows: dict[str, dict[int, float]] = {}
    kinds, run_times, config = set[str](), list[float](), dict[str, Any]()
    deadline, records = time.monotonic() + 20.0, list[Any]()
    while time.monotonic() < deadline and "exit" not in {record.WhichOneof("record_type") for record in records}:
        time.sleep(0.1)  # W&B's service writes the file
        records = [protocol.Record.FromString(data) for data in iterate_wandb_records(path.read_bytes())]
    for record in records:
        kinds.add(record.WhichOneof("record_type"))
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        values = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        run_times += [values["_runtime"]] if values else []
        for name, value in values.items():
            if not name.startswith("_"):
                rows.setdefault(name, {})[values["_step"]] = value
    assert config["trainer"] == "crt"
    assert not kinds & {"stats", "output", "output_raw"}
    assert max(run_times) - min(run_times) < 0.5  # of the writing, not of the steps
    return rows


@pytest.mark.parametrize(
    ("name", "variable", "read"),
    [
        ("tensorboard", "TENSORBOARD_LOGGING_DIR", read_tensorboard),
        ("mlflow", "MLFLOW_TRACKING_URI", read_mlflow),
        ("wandb", "WANDB_DIR", read_wandb),
    ],
)
def test_the_library_stores_what_was_sent_and_no_times(
    name: str,
    variable: str,
    read: Callable[[Path], dict[str, dict[int, float]]],
    fresh_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    settings, recorder = make_tracked_settings(), Recorder(seconds=0.05)
    with open_trackers([name], settings) as trackers:
        train_with(fresh_run(), settings, *trackers, recorder)
    sent: dict[str, dict[int, float]] = {}
    for step, row in recorder.rows.items():
        for metric, value in row.items():
            sent.setdefault(metric, {})[step] = value
    stored = read(tmp_path)
    assert stored.keys() == sent.keys()
    for metric, values in sent.items():
        assert stored[metric] == pytest.approx(values)


@pytest.mark.parametrize("place", ["runs", "ftp://user:password@host"])
def test_a_place_that_mlflow_refuses_is_an_error_of_the_configuration(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with (
        pytest.raises(ConfigurationError, match=r"MLFLOW_TRACKING_URI .*MLFLOW_ALLOW_FILE_STORE=true") as error,
        open_trackers(["mlflow"], make_tracked_settings()),
    ):
        pass
    assert "password" not in str(error.value)


def test_unknown_trackers_and_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigurationError, match="expected tensorboard, mlflow, wandb"),
        open_trackers(["tb"], make_tracked_settings()),
    ):
        pass
    monkeypatch.setitem(sys.modules, "wandb", None)
    with (
        pytest.raises(ConfigurationError, match="pip install wandb"),
        open_trackers(["wandb"], make_tracked_settings()),
    ):
        pass
