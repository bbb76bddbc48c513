"""The table of mistakes: what a new user does wrong, what they are told, and how it is mended.

``mistakes.yaml`` is read by the test beside it, which makes every mistake, and by ``docs/generate.py``, which
writes the reference page.  In a message ``…`` stands for what differs from run to run; paths are shown from
the folder in which the command was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("mistakes.yaml")
_OPEN = "…"


@dataclass(frozen=True)
class Mistake:
    """One row: the scene (``given``, ``config``, ``files``), the command, and what must come of it.

    ``config`` is merged into the cheap configuration ``job.yaml``; ``files`` are written as they are.
    ``message`` is the whole error, or with ``page`` a line of what the command shows.  With ``own`` a test of
    its own makes the mistake.
    """

    section: str
    mistake: str
    command: str
    exit: int
    message: str
    fix: str
    given: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    page: bool = False
    own: bool = False

    def is_told(self, said: str) -> bool:
        """Whether ``said`` is the message, whatever stands at its open places."""
        pattern = ".+?".join(re.escape(part) for part in self.message.split(_OPEN))
        return re.fullmatch(pattern, said, re.DOTALL) is not None


def mistakes() -> list[Mistake]:
    """All rows, in the order of the page."""
    sections: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return [
        Mistake(section=section["section"], **{**row, "given": tuple(row.get("given", ()))})
        for section in sections
        for row in section["mistakes"]
    ]
