"""What the documentation says works: every program in it is run, every configuration checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from redactory.pipelines.curation.loading import validate_config
from tests.docs.pages import DOCS, EXAMPLES, PAGES, README, TUTORIAL, Block, blocks, name_of, script
from tests.machine import CommandMachine

KNOWN = {"bash", "python", "yaml", "text"}
RUNNING = [page for page in PAGES if page != TUTORIAL and any(block.runs for block in blocks(page))]
INPUTS = ("corpus.jsonl", "corpus.jsonl.canaries.json", "test.jsonl", "redactory.key")


def _carry_out(machine: CommandMachine, page: Path, folder: Path) -> None:
    """Do in ``folder`` what ``page`` says; fail with the end of what was printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("REDACTORY_")}
    key = {"REDACTORY_KEY_FILE": "redactory.key"} if (folder / "redactory.key").exists() else {}
    written = script(page)
    # the machine carries out one command at a time: what a page leaves running is a process of its own
    for program in set(re.findall(r"^python (\S+) .* &$", written, re.M)):
        written = written.replace(f"python {program} ", f"{sys.executable} {program} ")
    written = re.sub(r"^redactory (?=.* &$)", f"{sys.executable} -m redactory ", written, flags=re.M)
    path = f"{machine.commands}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        ["bash"],
        input=written,
        cwd=folder,
        env={**kept, **key, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{name_of(page)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def tutorial(machine: CommandMachine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder as the tutorial leaves it; every other page goes on from a copy of it."""
    folder = tmp_path_factory.mktemp("tutorial")
    _carry_out(machine, TUTORIAL, folder)
    return folder


def test_the_tutorial_leaves_a_run_and_a_model(tutorial: Path) -> None:
    assert (tutorial / "run" / "_SUCCESS").is_file()
    assert (tutorial / "run" / "models" / "crt" / "_SUCCESS").is_file()


@pytest.mark.parametrize(
    "page", [page if page == README else pytest.param(page, marks=pytest.mark.slow) for page in RUNNING], ids=name_of
)
def test_a_page_works_as_written(page: Path, machine: CommandMachine, tutorial: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    if page in EXAMPLES:
        shutil.copytree(page.parent, folder)
    elif page == README:
        folder.mkdir()
        for name in INPUTS:
            shutil.copy(tutorial / name, folder)
    else:
        shutil.copytree(tutorial, folder)
    _carry_out(machine, page, folder)
    if page == DOCS / "how-to" / "audit.md":
        _every_check_is_explained(folder)


def _every_check_is_explained(folder: Path) -> None:
    checks = yaml.safe_load((folder / "verify.json").read_text(encoding="utf-8"))["checks"]
    page = (DOCS / "how-to" / "audit.md").read_text(encoding="utf-8")
    assert len(checks) > 5
    for entry in checks:
        name = "model NAME" if entry["name"].startswith("model ") else entry["name"]
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_a_known_kind_and_few_are_not_run(page: Path) -> None:
    found = blocks(page)
    assert {block.language for block in found} <= KNOWN
    assert sum("notest" in block.info for block in found) <= (2 if page == README else 0)


def test_an_unrun_block_would_be_noticed() -> None:
    assert Block("bash", (), "false").runs
    assert not Block("bash", ("notest",), "false").runs
    assert not Block("text", (), "false").runs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_configuration_is_one(page: Path) -> None:
    written = [block.body for block in blocks(page) if block.language == "yaml"]
    if page in EXAMPLES:
        written += [path.read_text(encoding="utf-8") for path in page.parent.glob("*.yaml")]
    for text in written:
        validate_config({"input": "corpus.jsonl", **yaml.safe_load(text)})
