"""What leaves the house: the sdist, the wheel, their version, and that they are the same bytes each time."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from releasing import dist

ROOT = Path(__file__).parents[1]
VERSION, EPOCH = "7.8.9.dev0", 1_700_000_000
Built = tuple[Path, Path]
ENVIRONMENT = {"SOURCE_DATE_EPOCH": str(EPOCH), "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_REDACTORY": VERSION}
KINDS = {
    *(
        "",
        ".py",
        ".pyi",
        ".j2",
        ".js",
        ".css",
        ".yaml",
        ".toml",
        ".txt",
        ".gz",
        ".json",
        ".md",
        ".svg",
        ".cfg",
        ".bin",
        ".onnx",
        ".npz",
    ),
    ".typed",
}
"""Kinds of files in the package; a model's parts have no ending."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with what is shipped, and with what must not be: tests, links to the rooms, litter."""
    root = tmp_path_factory.mktemp("checkout") / "tree"
    dist.copy_shipped(ROOT, root)
    for large in (path for path in root.rglob("*") if path.stat().st_size > 200_000):
        # what is in it is not looked at here, and packing it takes most of the time
        large.write_bytes(large.read_bytes()[:1_000])
    (root / "tests").mkdir()
    for stray in ("tests/test_something.py", "setup.cfg", "notes.txt", "redactory/dedup/exact.pyc"):
        (root / stray).write_text("")
    for room in ("detectors", "dedup"):
        (root / room).symlink_to(f"redactory/{room}")
    _git(root, "init", "--quiet")
    _git(root, "add", "--force", "--all")
    _git(root, "commit", "--quiet", "--message", "all")
    return root


@pytest.fixture(scope="module")
def built(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist and the wheel as ``make dist`` makes them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.chdir(tmp_path_factory.mktemp("place"))
        return dist.build(checkout, Path("dist"))


@pytest.fixture(scope="module")
def due() -> set[str]:
    """The files of the package."""
    package = ROOT / "redactory"
    found = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert {p.suffix for p in found} <= KINDS, "a new kind of file: is it package data?"
    return {p.relative_to(ROOT).as_posix() for p in found}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built, due: set[str]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        modes = {stat.filemode(entry.external_attr >> 16) for entry in wheel.infolist()}
    assert held == due
    assert {"redactory/py.typed", "redactory/schemas/run-manifest.schema.json"} < held
    assert modes <= {"-rw-r--r--", "-rw-rw-r--"}  # RECORD is the builder's own


def test_the_sdist_holds_the_package_and_the_files_beside_it(built: Built, due: set[str]) -> None:
    with tarfile.open(built[0]) as sdist:
        members = sdist.getmembers()
    assert all(m.isfile() or m.isdir() for m in members), "a link"
    assert {(m.mtime, m.uid, m.uname) for m in members} == {(EPOCH, 0, "")}
    assert {m.name.split("/")[0] for m in members} == {f"redactory-{VERSION}"}
    held = {PurePosixPath(*PurePosixPath(m.name).parts[1:]).as_posix() for m in members if m.isfile()}
    # pip's notes of the build
    written = {"PKG-INFO", "setup.cfg"} | {name for name in held if name.startswith("redactory.egg-info/")}
    assert held - written == due | set(dist.BESIDE)


def test_any_front_end_builds_the_same_from_a_checkout(
    checkout: Path, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``pip wheel .`` and ``python -m build`` in a checkout, where setuptools-scm lists what git knows."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    tree = tmp_path / "tree"
    shutil.copytree(checkout, tree, symlinks=True)
    hook = "import sys; from setuptools import build_meta as b; b.build_sdist('out'); b.build_wheel('out')"
    done = subprocess.run([sys.executable, "-c", hook], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sdist, wheel = built
    with tarfile.open(sdist) as ours, tarfile.open(tree / "out" / sdist.name) as theirs:
        assert set(ours.getnames()) == set(theirs.getnames())
    # of another folder, at another time, not by way of the sdist
    assert (tree / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_a_release_without_its_changes_is_not_built(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "version_of", lambda root: "9.9.9")
    with pytest.raises(SystemExit, match=r"CHANGELOG.md says nothing of 9\.9\.9"):
        dist.build(checkout, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_the_metadata_says_what_is_inside(built: Built) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        info = f"redactory-{VERSION}.dist-info"
        told: Message = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        scripts = wheel.read(f"{info}/entry_points.txt").decode()
        licences = {name for name in wheel.namelist() if name.startswith(f"{info}/licenses/")}
    assert (told["Name"], told["Version"]) == ("redactory", VERSION)
    assert told["License-Expression"] == "Apache-2.0 AND CC-BY-SA-4.0 AND MIT AND LicenseRef-SCOWL"
    assert len(licences) == 5
    assert {PurePosixPath(name).name for name in licences} == {"LICENSE", "LICENSE.md", "LICENSE-SCOWL.txt"}
    assert "redactory = redactory.flows.cli:main" in scripts
    assert "dist-info" not in (told["Description"] or "")


@pytest.mark.parametrize(
    ("state", "version"),
    [
        ("tag", "0.1.0"),
        ("tag, commit", "0.1.1.dev1"),
        # no date and no digest: what is built twice is the same
        ("tag, change", "0.1.1.dev0+dirty"),
        ("", "0.1.0.dev1"),
        ("no git", "0.1.0.dev0"),
    ],
)
def test_the_version_is_the_tag(state: str, version: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "file").write_text("as it was")
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", "--all")
    _git(tmp_path, "commit", "--quiet", "--message", "first")
    if "tag" in state:
        _git(tmp_path, "tag", "v0.1.0")
    if "commit" in state:
        _git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "more")
    if "change" in state:
        (tmp_path / "file").write_text("changed")
    if state == "no git":
        shutil.rmtree(tmp_path / ".git")
    assert dist.version_of(tmp_path) == version


def _git(root: Path, *arguments: str) -> str:
    person = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    # neither this machine's settings nor a repository around this one
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(root), *person, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
