"""``make size``: how much there is to read and to learn: code, tests, commands, configuration keys, pages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel

from redactory.flows.cli import app
from redactory.foundation.settings import iter_nested_settings
from redactory.pipelines.curation.config import Config

ROOT = Path(__file__).parents[1]


def size() -> dict[str, Any]:
    """The figures, of the files that git follows."""
    package, tests = python("redactory"), python("tests")
    pages = [file for file in followed() if file.suffix == ".md" and file.parts[0] == "docs"]
    rooms = {path.parts[1] for path in package if len(path.parts) > 2}
    return {
        "lines": lines(package),
        "modules": len(package),
        "lines of each room": {
            room: lines([path for path in package if path.parts[1] == room]) for room in sorted(rooms)
        },
        "lines of tests": lines(tests),
        "commands": len(list(commands(typer.main.get_command(app)))),
        "configuration keys": len(set(keys(Config))),
        "pages": len(pages),
        "words": sum(len((ROOT / page).read_text().split()) for page in pages),
    }


def followed() -> list[Path]:
    """Every file that git follows, from the repository's root."""
    told = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in told.stdout.split("\0") if name and not (ROOT / name).is_symlink()]


def python(folder: str) -> list[Path]:
    """The modules below ``folder``."""
    return [path for path in followed() if path.suffix == ".py" and path.parts[0] == folder]


def lines(paths: list[Path]) -> int:
    """Lines of all of them together, empty ones and comments too."""
    return sum(len((ROOT / path).read_text().splitlines()) for path in paths)


def commands(command: Any, name: str = "") -> Iterator[str]:
    """The commands at the leaves: what a person can type."""
    if not hasattr(command, "commands"):
        yield name
        return
    for below, one in command.commands.items():
        yield from commands(one, f"{name} {below}".strip())


def keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The dotted keys at the leaves of ``model``; of a key with several models, those of each."""
    for name, field in model.model_fields.items():
        models = list(iter_nested_settings(field.annotation))
        if not models:
            yield above + name
        for one in models:
            yield from keys(one, f"{above}{name}.")


if __name__ == "__main__":
    print(json.dumps(size(), indent=2))
