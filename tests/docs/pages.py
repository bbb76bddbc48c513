"""The pages of the documentation: their fenced blocks, headings and links, also of generated ones."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial.md"
README = ROOT / "README.md"
EXAMPLES = sorted(page for page in ROOT.glob("examples/*/README.md") if page.parent.name != "default_tagger")
PAGES = [README, *EXAMPLES, *sorted(DOCS.rglob("*.md"))]
ROOMS = ("docs", "examples", "redactory", "benchmarks", "constraints", "container", "releasing", "tests")
EVERYTHING = [*sorted(ROOT.glob("*.md")), *(page for room in ROOMS for page in sorted((ROOT / room).rglob("*.md")))]

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what else its first line says, its content."""

    language: str
    info: tuple[str, ...]
    body: str

    @property
    def title(self) -> str | None:
        """The file that the block is to be saved as."""
        return next((word.removeprefix("title=") for word in self.info if word.startswith("title=")), None)

    @property
    def runs(self) -> bool:
        """Whether the block is a program that must work."""
        return self.language in ("bash", "python") and "notest" not in self.info


@cache
def generator() -> Any:
    """``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated() -> dict[Path, str]:
    """The pages that are on the site alone, by where they would lie."""
    return {DOCS / name: text for name, text in generator().pages().items()}


def name_of(page: Path) -> str:
    """A page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        language, *info = shlex.split(match["info"]) or [""]
        found.append(Block(language, tuple(info), match["body"]))
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks, as it is on the site."""
    text = generated().get(page)
    return _FENCE.sub("", generator().filled(page.read_text(encoding="utf-8")) if text is None else text)


def links(text: str) -> Iterator[str]:
    """The targets of the links and pictures in prose."""
    return (match[1] for match in _LINK.finditer(text))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get, on the site and on code hosts alike."""
    headings = (match[1].lower() for match in _HEADING.finditer(prose(page)))
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in headings}


def script(page: Path) -> str:
    """One shell script that does what the page says: saves its files, runs its blocks, in order."""
    lines = ["set -euo pipefail"]
    for number, block in enumerate(blocks(page), 1):
        if block.title:
            lines += [f"cat > {shlex.quote(block.title)} <<'END_OF_BLOCK'", block.body + "END_OF_BLOCK"]
        elif block.runs:
            lines.append(f"echo '----- block {number}' >&2")
            wrapped = block.language == "python"
            lines += ["python - <<'END_OF_BLOCK'", block.body + "END_OF_BLOCK"] if wrapped else [block.body]
    return "\n".join(lines) + "\n"
