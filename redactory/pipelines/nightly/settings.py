"""The settings of the nightly job; no shard follows from them."""

from __future__ import annotations

from pydantic import Field

from redactory.evaluation.drift import DriftSettings
from redactory.foundation.settings import Settings
from redactory.pipelines.nightly.hook_settings import HookSettings


class KeepSettings(Settings):
    """How long the private part of a run is kept, in days after it was released; null keeps it for ever."""

    vault_days: int | None = Field(None, ge=0, description="The original text of the points.")
    quarantine_days: int | None = Field(None, ge=0, description="What could not be processed.")
    state_days: int | None = Field(None, ge=0, description="Samples, tracebacks, the orchestrator's home.")


class NightlySettings(Settings):
    """What a night does beside the curation."""

    quiet_minutes: float = Field(
        60,
        ge=0,
        description="A last row that is not whole (no line end, an open quotation) is left for a later "
        "night, until its file was not written for so long; then it is read as it is.",
    )
    publish: str | None = Field(
        None,
        description="URL below which each released run is mirrored, under its name; runs must be encrypted.",
    )
    keep: KeepSettings = KeepSettings()
    drift: DriftSettings = DriftSettings()
    hooks: HookSettings = HookSettings()
