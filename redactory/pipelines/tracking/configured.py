"""The records that a configuration asks for: checked before any work, written at its end."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE, make_folder
from redactory.pipelines.sealed import sealed
from redactory.pipelines.settings.track import TrackSettings
from redactory.redaction import RunFolder

_PACKAGES = {"mlflow": ("mlflow", "sqlalchemy", "alembic"), "lineage": ("openlineage",)}
"""What each of the two records needs, by its key, which is the extra's name too."""


def check_tracking(settings: TrackSettings) -> None:
    """Refuse, before any work, a record that could not be written at its end: ``ConfigurationError``.

    A file that is missing is made, for its owner alone.
    """
    for key, packages in _PACKAGES.items():
        file: Path | None = getattr(settings, key)
        if file is None:
            continue
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigurationError(
                f"track.{key} needs {', '.join(missing)}, not installed here: pip install 'redactory[{key}]'"
            )
        if key == "mlflow" and "?" in str(file.absolute()):
            # MLflow takes a URL, whose path ends there: it would write another file, open to all
            raise ConfigurationError(f"track.mlflow: {file}: its path may hold no '?'; give another file")
        try:
            make_folder(file.parent)
            file.touch(mode=PRIVATE_FILE)
            file.open("ab").close()
        except OSError as error:
            raise ConfigurationError(
                f"track.{key}: {file} cannot be written: {error.strerror}; give another file"
            ) from None


def track_configured(settings: TrackSettings, run: RunFolder, model: str) -> None:
    """Log ``model`` of ``run`` where ``settings`` name a file for MLflow."""
    if settings.mlflow is not None:
        sealed(run.state, logged, settings.mlflow, settings.experiment, run, model)


def logged(database: Path, experiment: str, run: RunFolder, model: str) -> str:
    """Log ``model`` of ``run`` to MLflow; the id of its run there."""
    from redactory.pipelines.tracking.figures import told_of
    from redactory.pipelines.tracking.mlflow_log import log

    return log(told_of(run, model), database, experiment)
