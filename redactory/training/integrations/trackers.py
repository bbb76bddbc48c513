"""Experiment trackers (TensorBoard, MLflow, Weights & Biases) that receive the public metrics of a training.

A tracker gets what :func:`redactory.training.loop.collect_step_metrics` returns, learning rates, the held-out loss and
the settings, as in the published ledger. It stores no time but its start: how long a noisy step takes depends on the
number of private examples that it samples. Who watches the connection, or runs the server, sees when metrics arrive.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.loop import Tracker
from redactory.training.settings import TrainSettings, settings_to_json

PROJECT = "redactory"
"""The experiment's name unless the library's environment variable names another."""


class TensorBoardTracker:
    """Writes to ``TENSORBOARD_LOGGING_DIR``/NAME; the folder is ``runs`` by default."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        library = _import_library("torch.utils.tensorboard", "tensorboard")
        self._started_at = time.time()
        self._writer = library.SummaryWriter(os.path.join(os.environ.get("TENSORBOARD_LOGGING_DIR", "runs"), name))
        text = f"```json\n{json.dumps(settings, indent=2)}\n```"
        self._writer.add_text("settings", text, walltime=self._started_at)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the ``metrics`` after ``step`` steps."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, walltime=self._started_at)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class MlflowTracker:
    """Logs a run NAME to ``MLFLOW_TRACKING_URI``, in the experiment ``MLFLOW_EXPERIMENT_NAME``."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._entities: Any = _import_library("mlflow.entities", "mlflow")
        # not the fluent interface: it adds the user, the source file and the machine's load
        library: Any = importlib.import_module("mlflow")
        self._started_at = int(time.time() * 1000)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        try:
            self._client: Any = library.MlflowClient()
            known = self._client.get_experiment_by_name(experiment)
            experiment_id = self._client.create_experiment(experiment) if known is None else known.experiment_id
            run = self._client.create_run(experiment_id, start_time=self._started_at, run_name=name)
        except library.MlflowException as error:
            # its own message may quote a password in the address
            raise ConfigurationError(
                f"--tracker mlflow: MLFLOW_TRACKING_URI cannot be used ({type(error).__name__}); mlflow-skinny needs a "
                "server's address, or a folder and MLFLOW_ALLOW_FILE_STORE=true; mlflow also takes a database"
            ) from None
        self._run_id = run.info.run_id
        params = [self._entities.Param(key, json.dumps(value)) for key, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Log the ``metrics`` after ``step`` steps."""
        entries = [self._entities.Metric(name, value, self._started_at, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=entries)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id, end_time=self._started_at)


class WandbTracker:
    """Writes a run NAME of the project ``WANDB_PROJECT`` when it is closed: W&B stores when each row arrives.

    Without code, console output, and data about the machine.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._library, self._name, self._settings = _import_library("wandb", "wandb"), name, dict(settings)
        self._rows: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep the ``metrics`` after ``step`` steps."""
        self._rows.append((step, dict(metrics)))

    def close(self) -> None:
        """Write the run."""
        options = dict.fromkeys(("disable_code", "disable_git", "x_disable_meta", "x_disable_stats"), True)
        run = self._library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._name,
            config=self._settings,
            settings=self._library.Settings(console="off", x_disable_machine_info=True, **options),
        )
        for step, metrics in self._rows:
            run.log(metrics, step=step)
        run.finish()


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoardTracker, "mlflow": MlflowTracker, "wandb": WandbTracker}
"""Every tracker by the name of its library."""


@contextmanager
def open_trackers(names: Iterable[str], settings: TrainSettings) -> Iterator[list[Tracker]]:
    """Open the trackers ``names`` for one training and close them at the end.

    Raises ``ConfigurationError`` for an unknown name, and if a library is not installed or cannot store a run.
    """
    with ExitStack() as stack:
        trackers: list[Tracker] = []
        for name in dict.fromkeys(names):
            if name not in TRACKERS:
                raise ConfigurationError(f"--tracker: expected {', '.join(TRACKERS)}, got {name}")
            # counts of labelled private text stay here
            tracker = TRACKERS[name](settings.model_name, {**settings_to_json(settings), "detector_recall_file": None})
            stack.callback(tracker.close)
            trackers.append(tracker)
        yield trackers


def _import_library(module: str, package: str) -> Any:
    """Import ``module``; ``ConfigurationError`` if ``package`` is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigurationError(f"--tracker: {package} is not installed: pip install {package}") from None
