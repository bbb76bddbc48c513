"""The nightly job (section ``nightly``); no shard follows from it."""

from __future__ import annotations

from pydantic import Field

from redactory.evaluation.drift import DriftSettings
from redactory.foundation.settings import Settings

Command = tuple[str, ...]


class HookSettings(Settings):
    """Commands that are told how a night ended: a program and its arguments, never a shell's line."""

    on_failure: Command = Field((), description="Called when a night ended with an error: [program, ...].")
    on_release: Command = Field((), description="Called when a run was released, or a held one approved.")
    on_held: Command = Field((), description="Called when a run was held back by the drift limits.")
    timeout_seconds: float = Field(
        60.0, gt=0, description="A command that takes longer is ended, and counts as failed."
    )


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
