"""Planning from the command line: a sign that it is at work, for the accounting can take a while."""

from __future__ import annotations

from typing import Any

import redactory
from redactory.flows import output


def planned(config: str | None = None, **asked: Any) -> dict[str, Any]:
    """What :func:`redactory.plan` says of the same."""
    with output.shown_progress() as progress:
        return redactory.plan(config, progress=progress, **asked)
