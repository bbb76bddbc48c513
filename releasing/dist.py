"""Build the sdist and the wheel, the same bytes each time: ``python -m releasing.dist [FOLDER]``.

They are built in a copy that holds only what is shipped, so that no stray file of the checkout gets in and
nothing is left behind in it (metadata beside the package would be found before that of the environment).
The wheel is made from the sdist: what is missing there is missing here.

The bytes follow from the sources, the version, ``SOURCE_DATE_EPOCH`` (the commit's time where it is not set)
and the versions of setuptools and setuptools-scm; not from the folder, its file modes or the clock.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "redactory"
BESIDE = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "SECURITY.md",
    "pyproject.toml",
)
"""What an sdist holds beside the package."""
OLDEST = 315_532_800
"""1980-01-01, the first second that a wheel can name: where there is no commit to take the time from."""
_HOOK = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"


def build(root: Path, out: Path) -> tuple[Path, Path]:
    """The sdist and the wheel of the checkout ``root``, written into the folder ``out``.

    ``SystemExit`` for a release of which the changes do not speak.
    """
    version = version_of(root)
    if "dev" not in version and f"## [{version}]" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        raise SystemExit(f"CHANGELOG.md says nothing of {version}: write '## [{version}] - DATE' over it")
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch_of(root)),
        "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_REDACTORY": version,
    }
    # each half is built in a folder of its own
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_shipped(root, folder / "source")
        built = _build("build_sdist", folder / "source", folder, environment)
        sdist = _normalised(built, out / built.name, epoch_of(root))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        return sdist, _build("build_wheel", unpacked, out, environment)


def version_of(root: Path) -> str:
    """What setuptools-scm makes of the checkout's tags (``[tool.setuptools_scm]``)."""
    command = [sys.executable, "-W", "ignore", "-m", "setuptools_scm", "--root", "."]
    return subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def epoch_of(root: Path) -> int:
    """Seconds since 1970: ``SOURCE_DATE_EPOCH``, else the time of the last commit, else 1980."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None and (root / ".git").exists():
        command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
        given = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(OLDEST, int(given or OLDEST))


def copy_shipped(root: Path, to: Path) -> None:
    """What is shipped, and nothing else of the checkout, with the same file modes wherever it is done."""
    shutil.copytree(root / PACKAGE, to / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    for name in BESIDE:
        shutil.copy(root / name, to)
    for path in to.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def wheel_in(folder: Path) -> Path:
    """The one wheel of ``dist/``; ``SystemExit`` where there is none, or more."""
    found = list(folder.glob("redactory-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{folder} holds {len(found)} wheels and must hold one: make dist")
    return found[0]


def _build(hook: str, source: Path, out: Path, environment: dict[str, str]) -> Path:
    command = [sys.executable, "-W", "ignore", "-c", _HOOK, hook, str(out)]
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode:
        raise SystemExit(f"{hook} failed:\n{done.stderr}")
    return out / done.stdout.splitlines()[-1]


def _normalised(sdist: Path, to: Path, epoch: int) -> Path:
    """``sdist`` with its files in order, of nobody and of one time."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as given, tarfile.open(fileobj=packed, mode="w") as archive:
        for member in sorted(given.getmembers(), key=lambda m: m.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode, member.pax_headers = 0o755 if member.isdir() else 0o644, {}
            archive.addfile(member, given.extractfile(member) if member.isfile() else None)
    with to.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as zipped:
        zipped.write(packed.getvalue())
    return to


if __name__ == "__main__":
    for path in build(ROOT, Path(sys.argv[1] if len(sys.argv) > 1 else "dist")):
        print(f"{path} {path.stat().st_size:,} bytes")
