"""Write a bill of materials of a release, ``dist/redactory-VERSION.cdx.json`` (CycloneDX).

    python -m releasing.sbom TOOLS [DIST]

TOOLS is the ``bin`` of an environment with ``cyclonedx-bom``, which lists what is installed here.  What only
work on Redactory needs is left out; what the wheel holds beside code, the tagger and the word list, is put
in.  The same packages give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from releasing.dist import ROOT, wheel_in
from releasing.licences import TOOLS, closure, declared

_TAGGER = "detectors/tagger/default/tagger/model"
SHIPPED = (
    # name, kind, licence, the file below the package
    ("redactory-tagger-default", "machine-learning-model", "CC-BY-SA-4.0", _TAGGER),
    ("redactory-words-en", "data", "LicenseRef-SCOWL", "detectors/words/en.txt.gz"),
    ("redactory-common-words-en", "data", "LicenseRef-SCOWL", "detectors/words/common/en.txt.gz"),
)
LICENCE = "Apache-2.0 AND CC-BY-SA-4.0 AND MIT AND LicenseRef-SCOWL"
COMES_WITH = "redactory:extra"
_VALIDATE = (
    "import sys; from cyclonedx.schema import SchemaVersion as V; from cyclonedx.validation.json import *; "
    "wrong = JsonStrictValidator(V.V1_6).validate_str(sys.stdin.read()); sys.exit(str(wrong) if wrong else 0)"
)


def bill(listed: dict[str, Any], brought: dict[str, list[str]], wheel: Path) -> dict[str, Any]:
    """``listed`` by cyclonedx-py, without what is not in ``brought`` (package: its extras), for ``wheel``."""
    kept = [c for c in listed["components"] if canonicalize_name(c["name"]) in brought]
    for component in kept:
        extras = brought[canonicalize_name(component["name"])]
        component["properties"] = [{"name": COMES_WITH, "value": extra or "base"} for extra in extras]
    root = listed["metadata"]["component"]
    version = wheel.name.split("-")[1]
    root |= {
        "version": version,
        "purl": f"pkg:pypi/redactory@{quote(version)}",
        "licenses": [{"acknowledgement": "declared", "expression": LICENCE}],
        "hashes": [_sha256(wheel)],
    }
    inside = [_inside(name, kind, licence, version, ROOT / "redactory" / path) for name, kind, licence, path in SHIPPED]
    refs = {c["bom-ref"] for c in kept} | {root["bom-ref"]}
    edges = [edge for edge in listed["dependencies"] if edge["ref"] in refs]
    for edge in edges:
        edge["dependsOn"] = [ref for ref in edge.get("dependsOn", ()) if ref in refs]
    return {**listed, "components": [*inside, *kept], "dependencies": edges}


def brought_by() -> dict[str, list[str]]:
    """What each extra that is installed here brings: package to extras, ``""`` for the base."""
    found: dict[str, list[str]] = {}
    for extra, requirements in declared().items():
        if extra in TOOLS | {"build"}:
            continue
        try:
            names = closure(requirements)
        except metadata.PackageNotFoundError as missing:
            sys.stderr.write(f"without the extra {extra}: {missing.name} is not installed\n")
            continue
        for name in sorted(names):
            found.setdefault(name, []).append(extra)
    return {name: [""] if "" in extras else extras for name, extras in found.items()}


def main(tools: Path, out: Path) -> None:
    """List, cut, check and write."""
    wheel = wheel_in(out)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "listed.json"
        command = [tools / "cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml", "--sv", "1.6"]
        command += ["--output-reproducible", "--output-file", raw, sys.executable]
        subprocess.run(list(map(str, command)), check=True)
        made = bill(json.loads(raw.read_bytes()), brought_by(), wheel)
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    subprocess.run([str(tools / "python"), "-c", _VALIDATE], input=text, text=True, check=True)
    file = out / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    file.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{file}: {len(made['components'])} components\n")


def _inside(name: str, kind: str, licence: str, version: str, file: Path) -> dict[str, Any]:
    return {
        "type": kind,
        "name": name,
        "version": version,
        "bom-ref": name,
        "licenses": [{"acknowledgement": "declared", "expression": licence}],
        "hashes": [_sha256(file)],
    }


def _sha256(file: Path) -> dict[str, str]:
    return {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "dist"))
