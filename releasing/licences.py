"""Write ``LICENCES.md`` from installed packages' metadata: ``python -m releasing.licences``.

Needs an environment with every extra.  A package whose licence is not told, or not in :data:`ACCEPTED`, stops
it: somebody has to look, and to write down what was found.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "LICENCES.md"
FRAME = Path(__file__).with_name("licences.md.txt")
TOOLS = frozenset({"dev", "bench", "soak", "docs"})
"""Extras for work on Redactory itself: nothing that is shipped needs them."""
EVERYTHING = "all"

ACCEPTED = {
    *("Apache-2.0", "Artistic-1.0", "0BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python"),
    *("ISC", "LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib", "LicenseRef-Public-Domain"),
}
"""Permissive licences, and one whose copyleft ends at its own files (MPL-2.0): each may be installed beside
a program under the Apache License 2.0."""
EXCEPTIONS = {"udapi": "stanza", "udtools": "stanza"}
"""Packages under other licences, and the one extra that brings each; the page says what follows."""

INSIDE = (
    ("libquadmath", ("numpy", "scipy"), "LGPL-2.1-or-later"),
    ("libgfortran", ("numpy", "scipy"), "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("libgomp", ("torch",), "GPL-3.0-or-later WITH GCC-exception-3.1"),
)
"""Copyleft libraries inside of Linux wheels, those of GCC: which, in whose wheels, under what."""
LOOKED_UP = {
    # metadata that names no SPDX licence, or none at all: what the licence file of the package says
    "matplotlib": "PSF-2.0",
    "mlcroissant": "Apache-2.0",
    "pyahocorasick": "BSD-3-Clause AND LicenseRef-Public-Domain",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "requests-oauthlib": "ISC",
    "text-unidecode": "Artistic-1.0 OR GPL-2.0-or-later",
    # tools that are seldom installed
    "atheris": "Apache-2.0",
    "opacus": "Apache-2.0",
    "presidio-anonymizer": "MIT",
    "rensa": "MIT",
}
SPELLED = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "3-clause bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit licence": "MIT",
    "mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}
_COPYLEFT = re.compile("GPL|MPL")
_SPDX = re.compile(r"[\w.+-]+(?: (?:AND|OR|WITH) [\w.+-]+)*")


@dataclass(frozen=True)
class Row:
    """One line of the page: a package, its licence as an SPDX expression, what brings it."""

    name: str
    licence: str
    wanted_by: tuple[str, ...]


def declared(root: Path = ROOT) -> dict[str, list[Requirement]]:
    """The requirements of ``pyproject.toml`` by extra; ``""`` are the base's, ``build`` the build's."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    groups = {"": project["project"]["dependencies"], **extras, "build": project["build-system"]["requires"]}
    return {
        name: [r for r in map(Requirement, listed) if r.name != "redactory"]
        for name, listed in groups.items()
        if name != EVERYTHING
    }


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """The names of all that ``requirements`` install on this system, from the metadata of what is here."""
    seen: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(r.name), extra) for r in requirements for extra in ("", *r.extras)]
    while waiting:
        if (one := waiting.pop()) in seen:
            continue
        seen.add(one)
        for needed in map(Requirement, metadata.requires(one[0]) or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": one[1]}):
                waiting += [(canonicalize_name(needed.name), extra) for extra in ("", *needed.extras)]
    return {name for name, _ in seen}


def licence_of(name: str) -> str:
    """An installed package's licence as an SPDX expression; ``SystemExit`` where nobody can tell."""
    if name in LOOKED_UP:
        return LOOKED_UP[name]
    told = metadata.metadata(name)
    for expression in told.get_all("License-Expression") or ():
        return str(expression)
    classified = [str(c).split(" :: ") for c in told.get_all("Classifier") or ()]
    classes = [parts[-1] for parts in classified if parts[0] == "License"]
    for said in [*map(str, told.get_all("License") or ()), *classes]:
        if said.casefold() in SPELLED:
            return SPELLED[said.casefold()]
        if said in ("BSD", "BSD License"):
            return _which_bsd(name)
        if _SPDX.fullmatch(said):
            return said
    raise SystemExit(f"{name}: its metadata tells no licence; read its licence file and fill in LOOKED_UP")


def accepted(expression: str) -> bool:
    """Whether the parts of an SPDX expression are in :data:`ACCEPTED`; of alternatives, one of them."""
    words = {"(": "(", ")": ")", "AND": "and", "OR": "or", "WITH": "and"}
    said = re.findall(r"[()]|[^\s()]+", expression)
    # nothing of the expression itself is evaluated
    return bool(eval(" ".join(words.get(word, str(word in ACCEPTED)) for word in said)))


def rows(wanted: dict[str, set[str]]) -> Iterator[Row]:
    """One row a package; ``SystemExit`` for a licence that nobody has accepted."""
    brought: dict[str, set[str]] = defaultdict(set)
    for extra, names in wanted.items():
        for name in names:
            brought[name].add(extra)
    for name, extras in sorted(brought.items()):
        licence = licence_of(name)
        if not accepted(licence) and extras != {EXCEPTIONS.get(name)}:
            raise SystemExit(f"{name}: {licence} is not in ACCEPTED, and is wanted by {sorted(extras)}")
        yield Row(name, licence, ("",) if "" in extras else tuple(sorted(extras)))


def page() -> str:
    """The page as it should be."""
    groups = declared()
    shipped = {extra: closure(listed) for extra, listed in groups.items() if extra not in TOOLS | {"build"}}
    tools = {e: {str(canonicalize_name(r.name)) for r in groups[e]} for e in sorted(TOOLS | {"build"})}
    installed = list(rows(shipped))
    return FRAME.read_text(encoding="utf-8").format(
        copyleft=_copyleft(installed), installed=_table(installed), tools=_table(rows(tools))
    )


def _copyleft(installed: Sequence[Row]) -> str:
    """A table of what is under a licence with copyleft, in the wheels of others too."""
    told = {row.name: ", ".join(extra or "base" for extra in row.wanted_by) for row in installed}
    lines = [
        f"| {row.name} | {row.licence} | {told[row.name]} |"
        for row in sorted(installed, key=lambda row: ("GPL" not in row.licence, row.name))
        if _COPYLEFT.search(row.licence)
    ]
    inside = [
        f"| {library}, in the wheels of {' and '.join(holders)} | {licence} | {told[holders[0]]} |"
        for library, holders, licence in INSIDE
    ]
    return "\n".join(["| what | licence | comes with |", "|---|---|---|", *inside, *lines])


def _table(listed: Iterable[Row]) -> str:
    lines = [f"| `{r.name}` | {r.licence} | {', '.join(e or 'base' for e in r.wanted_by)} |" for r in listed]
    return "\n".join(["| package | licence | comes with |", "|---|---|---|", *lines])


def _which_bsd(name: str) -> str:
    """The third clause speaks of the names of contributors."""
    for file in metadata.files(name) or ():
        if re.match("licen[cs]e", file.name, re.IGNORECASE):
            text = " ".join(file.read_text().split())
            if "Redistribution and use" in text:
                return "BSD-3-Clause" if re.search(r"[Nn]either the name|may not be used to", text) else "BSD-2-Clause"
    raise SystemExit(f"{name}: says BSD, and has no licence file; look it up and fill in LOOKED_UP")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
