"""Install the wheel of ``dist/`` in empty environments and use it.

    python -m releasing.check 3.11 3.12 3.13 --torch 3.11

For a Python that PyTorch has a CPU build for (``--torch``) this is the whole demo, then a verification of its
run.  For others it is what works without torch: a corpus is simulated, curated as a Prefect flow, verified
and exported.  What was done, how long it took and how large it is goes to ``dist/release-check.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from releasing.dist import ROOT, wheel_in

PINNED = ROOT / "constraints" / "cpu.txt"
WITHOUT_TORCH = "flows"
WITH_TORCH = "train,lora,flows,dask"


class Trial:
    """One environment, and the times of what was run in it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.bin, self.folder, self.seconds = folder / "environment" / "bin", folder, dict[str, float]()
        self.timed("environment", [python, "-m", "venv", folder / "environment"])

    def pip(self, *arguments: object) -> None:
        """Install into the environment."""
        self.timed("install", [self.bin / "python", "-m", "pip", "install", "--quiet", *arguments])

    def redactory(self, *arguments: object) -> dict[str, Any]:
        """The JSON object that a command prints; it must succeed."""
        told: dict[str, Any] = json.loads(
            self.timed(f"redactory {arguments[0]}", [self.bin / "redactory", *arguments, "--json"])
        )
        return told

    def timed(self, name: str, command: list[object]) -> str:
        """What a command prints; it must succeed, and its seconds are added to those of ``name``."""
        began = time.monotonic()
        # an environment that sees nothing of this checkout
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("REDACTORY_", "PREFECT_", "PYTHON"))}
        environment = {**clean, "HOME": str(self.folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment["PIP_CACHE_DIR"] = str(Path("~/.cache/pip").expanduser())
        # a machine that does other things may need minutes for what takes seconds
        environment["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "600"
        words = list(map(str, command))
        done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - began, 1)
        return done.stdout


def demo(trial: Trial) -> dict[str, Any]:
    """The whole job; what it says of itself."""
    told = trial.redactory("demo", "--out", "run")
    return {"examples": told["examples"], "models": sorted(p.name for p in (trial.folder / "run" / "models").iterdir())}


def curation(trial: Trial) -> dict[str, Any]:
    """What needs no torch."""
    trial.redactory("simulate", "customersim", "--rows", "200", "--seed", "1", "--out", "corpus.jsonl")
    told = trial.redactory("curate", "corpus.jsonl", "--out", "run", "--prefect")
    trial.redactory("export", "run", "--to", "exported")
    trial.redactory("verify", "exported")
    return {"examples": told["examples"], "models": []}


def check(wheel: Path, python: str, torch: bool) -> dict[str, Any]:
    """Install and use ``wheel`` under one Python; what was seen."""
    job: Callable[[Trial], dict[str, Any]] = demo if torch else curation
    with tempfile.TemporaryDirectory(prefix="release-check-") as name:
        trial = Trial(interpreter(python), Path(name))
        if torch:
            # alone and first, by its hash: with the rest, pip may take a build for graphics cards
            trial.pip("--require-hashes", "--no-deps", "-r", PINNED)
        trial.pip(f"{wheel}[{WITH_TORCH if torch else WITHOUT_TORCH}]")
        version = trial.timed("redactory --version", [trial.bin / "redactory", "--version"]).strip()
        if not wheel.name.startswith(f"redactory-{version}-"):
            raise SystemExit(f"{wheel.name} says that it is version {version}")
        told = job(trial)
        if not (found := trial.redactory("verify", "run"))["ok"]:
            raise SystemExit(f"Python {python}: the run does not verify: {found['checks']}")
        size = sum(f.stat().st_size for f in trial.bin.parent.rglob("*") if f.is_file() and not f.is_symlink())
    return {
        "python": python,
        "job": job.__name__,
        **told,
        "verified": len(found["checks"]),
        "environment_bytes": size,
        "seconds": trial.seconds,
    }


def interpreter(python: str) -> str:
    """``python3.12`` of the PATH, or of pyenv; ``SystemExit`` where there is neither."""
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{python}.*/bin/python"))
    found = str(pyenv[-1]) if pyenv else shutil.which(f"python{python}")
    if found is None:
        raise SystemExit(f"Python {python} is not installed")
    return found


def main() -> None:
    """Every Python that was named, one after the other; ends at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--torch", default="", help="those of them that PyTorch has a CPU build for")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    wheel = wheel_in(given.dist.resolve())
    sizes = {file.name: file.stat().st_size for file in given.dist.glob("redactory-*.[tw]*")}
    done = []
    for python in given.pythons:
        done.append(check(wheel, python, python in given.torch.split()))
        print(json.dumps(done[-1]), flush=True)
    report = {"bytes": sizes, "checked": done}
    (given.dist / "release-check.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
