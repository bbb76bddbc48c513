"""The command line: exit codes, one JSON object, messages without text."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import main
from redactory.flows.model_commands import _list_epsilons
from redactory.flows.options import _OTHER_NAMES, app
from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.training.guarantee.metrics import select_titles
from tests.flows.leak_others import every_command
from tests.machine import CommandMachine


def _json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    return value


def test_init_describe_simulate(machine: CommandMachine, tmp_path: Path) -> None:
    assert [machine.redactory("init", "redactory.yaml", cwd=tmp_path).returncode for _ in range(2)] == [0, 2]
    asked = ("simulate", "--rows", 20, "--seed", 3, "--canaries", 2, "--out", "corpus.jsonl", "--json")
    assert _json(machine.redactory(*asked, cwd=tmp_path))["rows"] == 20
    assert (tmp_path / "corpus.jsonl.canaries.json").is_file()
    with (tmp_path / "corpus.jsonl").open("ab") as file:
        file.write(b'{"text": ["Jane Roe"]}\n')
    before = sorted(p.name for p in tmp_path.iterdir())
    described = machine.redactory("curate", "redactory.yaml", "--dry-run", "--json", cwd=tmp_path)
    assert described.returncode == 0, described.stderr
    told = _json(described)
    assert told["bad_rows"] == [{"source": "corpus.jsonl", "row": 21, "reason": "text_is_list"}]
    assert ("text" in told["sources"][0]["columns"], len(told["policies"]["strict"]["hash"])) == (True, 64)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert "Jane" not in described.stdout + described.stderr
    page = machine.redactory("curate", "redactory.yaml", "--dry-run", cwd=tmp_path).stdout
    assert re.search("corpus.jsonl +21 +text_is_list", page)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["curate", "absent.jsonl"], "expected a configuration"),
        (["verify", "absent"], "it does not exist"),
        (["curate", "bad.yaml"], "epsilonn"),
    ],
)
def test_bad_input_ends_with_two_and_one_json_object(
    machine: CommandMachine, tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "bad.yaml").write_text("input: a.jsonl\ntrain: {epsilonn: 3}\n")
    done = machine.redactory(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert says in _json(done)["error"]
    assert "Traceback" not in done.stderr


def test_common_names_of_other_programs_lead_to_the_command(machine: CommandMachine, tmp_path: Path) -> None:
    done = machine.redactory("generate", "run/models/crt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "redactory: no command generate; use redactory predict --generate 1\n"
    assert {command.split(" --")[0] for command in _OTHER_NAMES.values()} <= COMMANDS


def test_an_unexpected_error_is_sealed(corpus: Path, tmp_path: Path) -> None:
    code = (
        "import sys, redactory.pipelines.curation.stages.examples as s\n"
        "def broken(*a): raise ValueError('text of the corpus')\n"
        "s.segment_documents = broken\n"
        "from redactory.flows.cli import main; main()"
    )
    out = tmp_path / "run"
    command = [sys.executable, "-c", code, "curate", str(corpus), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "text of the corpus" not in done.stderr + done.stdout
    sealed = list((out / "state").glob("traceback-*.txt"))
    assert len(sealed) == 1
    assert "text of the corpus" in sealed[0].read_text()
    assert sealed[0].stat().st_mode & 0o077 == 0


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "redactory", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == importlib.metadata.version("redactory")


_GROUPS = """
init scan simulate demo review redact unmask serve-http curate verify run plan train guarantee budget predict synthesize
nightly schedule index export fetch erase access purge
fit: tagger policy
label: active random score agreement
evaluate: detection errors model attack audit synthetic plant-canaries
release: list show approve reject
quarantine: list export
keys: new unwrap rotate shred
ldp: train evaluate
"""
COMMANDS = {
    f"{group} {name}".strip()
    for group, names in re.findall(r"(?m)^(?:(\w+): )?(.*)$", _GROUPS)
    for name in names.split()
}


def test_there_are_no_other_commands_and_each_has_help(machine: CommandMachine) -> None:
    assert machine.redactory("--version").stdout.strip() == importlib.metadata.version("redactory")
    assert every_command() == COMMANDS
    for name in COMMANDS:
        done = CliRunner().invoke(app, [*name.split(), "--help"])
        assert (done.exit_code, "--json" in done.stdout) == (0, True), name


def test_what_a_copy_on_standard_output_leaves_out_is_told_beside(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 3}\n{"text": "x"}\n{"text": 4}\n')
    (tmp_path / "job.yaml").write_text("detect: {tagger: null}")
    given = ["redact", str(tmp_path / "a.jsonl"), "--out", "-", "--config", str(tmp_path / "job.yaml")]
    done = CliRunner().invoke(app, given)
    assert (done.exit_code, done.stdout) == (1, '{"text": "x"}\n')
    assert "1 row written, 2 left out.\nRejected as text_not_string: 2. A text field" in done.stderr


def _planned(*numbers: str) -> list[str]:
    return ["plan", *(part for number in numbers for part in ("--set", number))]


UNITS = ("federated.users=946", "noise_multiplier=102", "steps=50", "federated.entity_rate=0.5")
PLANS: list[tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]] = [
    (
        ("trainer=crt", "sampling_rate=0.1", "noise_multiplier=2", "steps=10", "gamma=0.1"),
        {"steps": 10},
        ("One named sensitive span that the strict policy missed", "epsilon_bayesian"),
    ),
    (
        ("trainer=dpsgd", "sampling_rate=0.01", "noise_multiplier=1", "steps=10"),
        {"trainer": "dpsgd"},
        ("epsilon_substitution", "One example exchanged for another", "noise multiplier 1 (as set)"),
    ),
    (
        ("trainer=uedp-alg1", "federated.user_rate=50/946", *UNITS),
        {"adjacency": "user-entity removal", "M": 946, "epsilon_sound": pytest.approx(54.25, abs=0.1)},
        ("user-entity removal", "at most 4 users mention", "M = 946"),
    ),
    (
        (
            "trainer=uedp-bounded",
            "users=100",
            "points=400",
            "sampling_rate=0.1",
            "noise_multiplier=4",
            "group_sizes=[2]",
        ),
        {"K": 8},
        ("K = 8", "(suggested)", "only for bounding.rule r-loc", "at most 2 examples"),
    ),
    (
        ("trainer=user-level", "federated.users=50", "federated.user_rate=0.1", "noise_multiplier=4"),
        {"adjacency": "user removal"},
        ("users at once", "K = 1"),
    ),
    (
        ("trainer=ldp", "noise_multiplier=2", "sampling.kind=fixed", "sampling.sends=3"),
        {"sensitivity": 2.0, "epsilon_sound": pytest.approx(8.39, abs=0.005)},
        ("sent 3 times", "not a guarantee", "Holds only if"),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "figures", "says"), PLANS, ids=[case[0][0] for case in PLANS])
def test_a_plan_of_numbers_is_one_object_or_a_page(
    numbers: tuple[str, ...], figures: dict[str, Any], says: tuple[str, ...]
) -> None:
    found = json.loads(CliRunner().invoke(app, [*_planned(*numbers), "--json"]).stdout)
    assert {key: found[key] for key in figures} == figures
    page = " ".join(CliRunner().invoke(app, _planned(*numbers)).stdout.split())
    for words in says:
        assert words in page


def test_only_epsilons_of_the_trainer_are_shown() -> None:
    numbers = {"sampling_rate": 0.1, "steps": 5, "noise_multiplier": 4, "group_sizes": [2], "gamma": 0.5}
    planned = redactory.plan(trainer="dpsgd", **numbers)
    composed = {key: value for key, value in planned.items() if key != "trainer"}
    for result in (planned, composed, {**planned, **dict.fromkeys(("epsilon", "epsilon_substitution"))}):
        names = [name for name, _, _ in _list_epsilons(result)]
        assert names == ["epsilon_substitution", "epsilon_add_remove", "epsilon_group, 2"]
    assert not any(word in line for row in _list_epsilons(planned) for line in row for word in ("policy", "private"))
    counted = {**planned, "selection": {}, "epsilon_confidentiality": 1.0}
    assert [name for name, _, _ in _list_epsilons(counted)][:2] == ["epsilon", "epsilon_confidentiality"]
    crt = {name: words for name, _, words in _list_epsilons(redactory.plan(trainer="crt", **numbers))}
    assert [*crt] == [*select_titles({"trainer": "crt"}), "epsilon_group, 2"]
    assert len(crt) == 7
    assert crt["epsilon_confidentiality"].endswith("the share of secrets that both policies miss")
    assert crt["epsilon_group, 2"] == "2 private examples exchanged at once"


def test_a_plan_of_a_configuration_with_changes_and_what_is_refused(tmp_path: Path) -> None:
    config, plot = tmp_path / "c.yaml", tmp_path / "p.svg"
    config.write_text("input: a.jsonl\ntrain: {epochs: 1, sampling_rate: 0.1, group_sizes: []}\n")
    given = ["plan", str(config), "--json"]
    planned = json.loads(CliRunner().invoke(app, given).stdout)
    assert planned["steps"] == 10
    assert 7.9 < planned["epsilon"] <= 8.0
    changed = CliRunner().invoke(app, [*given, "--set", "train.epochs=2", "--plot", str(plot)])
    assert json.loads(changed.stdout)["steps"] == 20
    assert plot.is_file()
    for wrong, says in ((["train.epochs=[", "YAML"]), (["train.epochs", "KEY=VALUE"]), (["train.epochz=1", "epochz"])):
        refused = CliRunner().invoke(app, [*given, "--set", wrong])
        assert isinstance(refused.exception, ConfigurationError)
        assert says in str(refused.exception)


_PASTED = """sk-live-51HxQ2eZvKYlo2C0t4aXk
ghp_16C7e42F292c6912E7710c838347Ae178B4a
AKIAIOSFODNN7EXAMPLE
wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl
postgresql://app:Tr0ub4dor@db.internal/corpus
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c
550e8400-e29b-41d4-a716-446655440000
Tr0ub4dor&3
correct horse battery staple
4111 1111 1111 1111
qXvTzRwLpKjHgFdSaMnB""".splitlines()
_PLACES = [
    "{}: 1",
    "input: {{path: x, {}: 1}}",
    "detect: {{{}: null}}",
    "detect: {{patterns: {{{}: 1}}}}",
    "detect: {{patterns: {{custom: [{{name: a, label: {}, regex: x}}]}}}}",
    "detect: {{patterns: {{recognizers: {{{}: {{}}}}}}}}",
    "detect: {{public_labels: [{}]}}",
    "train: {{model: {{{}: 1}}}}",
    "train: {{trainer: {}}}",
    "input: {{path: x, metadata_columns: [{0}, {0}]}}",
    "input: {{path: x, known_value_columns: {{{}: x}}}}",
    "redact: {{columns: {{{}: y}}}}",
    "nightly: {{keep: {{{}: 3}}}}",
]


_COMMANDS = [
    "redact x/a.jsonl --out copy --column {}=PERSON",
    "plan --set {}=1",
    "curate x --{}",
    "curate x --workers {}",
    "schedule x --work {}",
    "schedule x --timezone {}",
    "schedule x --name -{}",
    "schedule x --cron {}",
    "train x --out copy --set {}=1",
    "{}",
]


def test_a_secret_in_a_wrong_place_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    commands = []
    for number, (place, secret) in enumerate(zip(_PLACES, cycle(_PASTED), strict=False)):
        file = tmp_path / f"{number}.yaml"
        file.write_text("input: x\n" * ("input" not in place) + place.format(json.dumps(secret)) + "\n")
        commands.append((secret, ["curate", str(file), "--out", "run"]))
    for line, secret in zip(_COMMANDS, cycle(_PASTED), strict=False):
        commands.append((secret, [word.format(secret) for word in line.split()]))
    log = tmp_path / "log"
    for secret, command in commands:
        monkeypatch.setattr(sys, "argv", ["redactory", "--log-json", str(log), *command])
        with pytest.raises(SystemExit) as end:
            main()
        written = capfd.readouterr()
        said = written.out + written.err + (log.read_text() if log.exists() else "")
        assert end.value.code == 2, (command, said)
        assert not [n for n in range(len(secret) - 4) if secret[n : n + 5] in said], (command, said)
        log.unlink(missing_ok=True)


@pytest.mark.parametrize("pasted", _PASTED)
def test_of_a_secret_only_its_beginning_is_shown(pasted: str) -> None:
    assert shorten_name(pasted) == f"{pasted[:3]}… ({len(pasted)} characters)"


_MISSPELT = "max_rejected_shaer|train.epsilonn|PERSN|Customer name|größe|名前|trainer|Europe/Berlin|k"


@pytest.mark.parametrize("name", _MISSPELT.split("|"))
def test_a_name_that_is_misspelt_is_shown(name: str) -> None:
    assert shorten_name(name) == name
