"""What is called after a night (section ``nightly.hooks``)."""

from __future__ import annotations

from pydantic import Field

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
