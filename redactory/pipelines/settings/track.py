"""Whether trainings are logged to MLflow too (section ``track``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from redactory.foundation.settings import Settings

_SQLITE = "sqlite:///"


class TrackSettings(Settings):
    """Records that MLflow reads, in a file of this machine; they change no shard and no model."""

    mlflow: Path | None = Field(
        None,
        description="MLflow: the SQLite file (a path, or sqlite:///PATH) that trainings are logged to. "
        "Needs the extra mlflow.",
    )
    experiment: str = Field("redactory", min_length=1, description="MLflow: the name of the experiment.")

    @field_validator("mlflow", mode="before")
    @classmethod
    def _a_file_of_this_machine(cls, value: Any) -> Any:
        value = path_in(value)
        if isinstance(value, str | Path) and "://" in str(value):
            raise ValueError("a file on this machine is needed, and nothing is sent elsewhere: give a path")
        return value


def path_in(value: Any) -> Any:
    """The path of a SQLite URL; anything else as it is."""
    return value.removeprefix(_SQLITE) if isinstance(value, str) else value
