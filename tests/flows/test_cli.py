"""The command line: exit codes, one JSON object, messages without text."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machine import Machine


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    return value


def test_an_input_file_is_enough(machine: Machine, corpus: Path, tmp_path: Path) -> None:
    done = machine.redactory("curate", corpus, "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    result = _json(done)
    assert {
        "run",
        "rows",
        "documents",
        "rejected",
        "points",
        "public",
        "private",
        "duplicate",
        "seconds",
    } <= set(result)
    assert result["rows"] == 60
    again = machine.redactory("curate", corpus, "--out", tmp_path / "run", "--resume", "--json")
    assert (again.returncode, _json(again)["points"]) == (0, result["points"])
    refused = machine.redactory("curate", corpus, "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert "finished run" in refused.stderr


def test_init_describe_simulate(machine: Machine, tmp_path: Path) -> None:
    assert machine.redactory("init", "redactory.yaml", cwd=tmp_path).returncode == 0
    assert machine.redactory("init", "redactory.yaml", cwd=tmp_path).returncode == 2
    made = machine.redactory(
        "simulate",
        "customersim",
        "--rows",
        20,
        "--seed",
        3,
        "--canaries",
        2,
        "--out",
        "corpus.jsonl",
        "--json",
        cwd=tmp_path,
    )
    assert _json(made)["rows"] == 20
    assert (tmp_path / "corpus.jsonl.canaries.json").is_file()
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.write(b'{"text": ["Jane Roe"]}\n')
    before = sorted(p.name for p in tmp_path.iterdir())
    described = machine.redactory("describe", "redactory.yaml", "--json", cwd=tmp_path)
    assert described.returncode == 0, described.stderr
    told = _json(described)
    assert told["bad_rows"] == [{"source": "corpus.jsonl", "row": 21, "reason": "text_not_string"}]
    assert "text" in told["sources"][0]["columns"]
    assert len(told["policies"]["strict"]["hash"]) == 64
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert "Jane" not in described.stdout + described.stderr
    assert "corpus.jsonl" in machine.redactory("describe", "redactory.yaml", cwd=tmp_path).stdout


def test_verify_ends_with_one_where_a_check_fails(machine: Machine, curated: Path, tmp_path: Path) -> None:
    import shutil

    fine = machine.redactory("verify", curated, "--json")
    assert (fine.returncode, _json(fine)["ok"]) == (0, True)
    run = Path(shutil.copytree(curated, tmp_path / "run"))
    (run / "README.md").write_text("changed")
    broken = machine.redactory("verify", run, "--json")
    assert (broken.returncode, _json(broken)["ok"]) == (1, False)
    assert "FAILED" in machine.redactory("verify", run).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["curate", "absent.jsonl"], "neither a configuration"),
        (["verify", "absent"], "nothing lies there"),
        (["guarantee", "absent"], "nothing lies there"),
        (["curate", "bad.yaml"], "epsilonn"),
        (["evaluate", "canary", "absent"], "nothing lies there"),
    ],
)
def test_bad_input_ends_with_two_and_one_json_object(
    machine: Machine, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "bad.yaml").write_text("input: a.jsonl\ntrain: {epsilonn: 3}\n")
    done = machine.redactory(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert says in _json(done)["error"]
    assert "Traceback" not in done.stderr


def test_an_unexpected_error_is_sealed(corpus: Path, tmp_path: Path) -> None:
    code = (
        "import sys, redactory.pipelines.stages.ingest as s\n"
        "def broken(*a): raise ValueError('text of the corpus')\n"
        "s.segment_part = broken\n"
        "from redactory.flows.cli import main; main()"
    )
    out = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", code, "curate", str(corpus), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "text of the corpus" not in done.stderr + done.stdout
    sealed = list((out / "state").glob("traceback-*.txt"))
    assert len(sealed) == 1
    assert "text of the corpus" in sealed[0].read_text()
    assert sealed[0].stat().st_mode & 0o077 == 0


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "redactory", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == importlib.metadata.version("redactory")


def test_version_and_help(machine: Machine) -> None:
    assert machine.redactory("--version").stdout.strip() == importlib.metadata.version("redactory")
    for command in (
        "curate",
        "train",
        "run",
        "verify",
        "guarantee",
        "demo",
        "init",
        "describe",
        "evaluate",
        "simulate",
    ):
        assert machine.redactory(command, "--help").returncode == 0


def test_plan_takes_a_configuration_or_numbers(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "input: a.jsonl\ntrain: {epochs: 1, sampling_rate: 0.1, group_sizes: []}\n"
    )
    planned = _json(machine.redactory("plan", "c.yaml", "--json", cwd=tmp_path))
    assert planned["steps"] == 10
    assert 7.9 < planned["epsilon"] <= 8.0
    numbers = ("--sampling-rate", 0.1, "--noise", 2.0, "--steps", 10, "--delta", 1e-5)
    one = machine.redactory(
        *("plan", "crt", "--private-points", 100, *numbers, "--gamma", 0.1, "--group-size", 2, "--json")
    )
    assert one.returncode == 0, one.stderr
    assert _json(one)["epsilon_bayesian"] < _json(one)["epsilon"] < _json(one)["epsilon_group"]["2"]
    page = machine.redactory("plan", "dpsgd", *numbers, "--plot", tmp_path / "p.svg")
    assert "epsilon_substitution" in page.stdout
    assert (tmp_path / "p.svg").is_file()
    assert machine.redactory("plan", "--help").returncode == 0
    for wrong, says in (
        (("plan", "absent.yaml"), "cannot be read"),
        (("plan", "crt", *numbers, "--gamma", 2), "gamma"),
    ):
        refused = machine.redactory(*wrong, "--json", cwd=tmp_path)
        assert refused.returncode == 2
        assert says in _json(refused)["error"]
