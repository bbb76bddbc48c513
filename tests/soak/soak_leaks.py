"""A thousand planted secrets through every command, every failure and every orchestrator.

Then every byte that was written is searched for each of them; run by ``make soak``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.leak_bench import LISTED, Bench, Step
from tests.flows.leak_corpus import planted, write_corpus
from tests.flows.leak_others import environment_of_key, every_command, failing_dedup, making, of_keys
from tests.flows.leak_search import forms
from tests.flows.leak_steps import (
    CURATION,
    KEEPS_ALL,
    failing,
    failing_curations,
    failing_first,
    nights_with_a_hook,
    over_dask,
    store_of,
    whole_job,
)
from tests.flows.local_server import local_server

SECRETS, SEED = 1_000, 20260401
REDACT = "redactory.pipelines.curation.stages.examples:redact_examples"
STAGES = [place for place in CURATION if ".stages." in place]


@pytest.fixture(scope="module", params=["open", "encrypted"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A planted corpus, in the open and for encrypted and signed runs."""
    root = tmp_path_factory.mktemp(request.param) / "bench"
    made = Bench(root, encrypted=request.param == "encrypted")
    secrets, missed = planted(SECRETS, SEED)
    made.secrets = write_corpus(made.folder("input"), secrets, SEED)
    print(f"\n{request.param}: {len(secrets)} secrets planted that are caught, {missed} others are not")
    return made


def test_a_thousand_secrets_through_everything(bench: Bench) -> None:
    _made(bench)
    _every_command(bench)
    _nights(bench)
    _no_server(bench)
    _crashes(bench)
    with local_server(_folder(bench, "server")) as server:
        whole = bench.configure("server", detect=LISTED)
        bench.carry_out("on-server", _flows(whole, "on-server"), PREFECT_API_URL=server.url)

    of_keys_alone = {f"keys {name}" for name in ("unwrap", "rotate", "shred")}
    only_encrypted = set() if bench.encrypted else of_keys_alone
    # the demonstration reads nobody's text; plans from numbers and budgets none
    textless = {"demo", "plan"}
    assert every_command() - bench.commands - textless == only_encrypted
    leaks = bench.leaks()
    values = {part for secret in bench.secrets for part in secret.parts}
    told = ", ".join(f"{count:,} {what}" for what, count in sorted(bench.searched.items()))
    print(f"{bench.carried_out} commands; {told}")
    print(f"{len(values):,} values of {len({s.kind for s in bench.secrets})} kinds in {len(forms('x'))} forms")
    print(f"hits elsewhere: {len(leaks)}")
    assert leaks == []
    assert bench.open_to_others() == []
    assert bench.written_elsewhere() == []


def test_nothing_reaches_a_cluster(bench: Bench) -> None:
    config = str(bench.configure("dask", detect=LISTED))
    # a worker that is lost is not missed more often than needs be
    bench.carry_out("dask", over_dask(config), DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
    assert bench.leaks() == []
    assert bench.open_to_others() == []
    assert bench.written_elsewhere() == []


def _folder(bench: Bench, name: str) -> Path:
    folder = bench.root / name
    folder.mkdir()
    return folder


def _made(bench: Bench) -> None:
    bench.carry_out("made", making(bench.folder("input")))


def _every_command(bench: Bench) -> None:
    """On one run with all that can be configured, and each with its failures before."""
    canaries = str(bench.folder("input") / "simulated.jsonl.canaries.json")
    config = bench.configure("job")
    signed = environment_of_key(bench.folder("work") / "signing.key") if bench.encrypted else {}
    steps = [
        *failing_first(whole_job(config, "run")),
        *failing_curations(config),
        *failing_dedup(bench),
        Step("run", ("run", str(config), "--out", "whole")),
        Step("canary", ("evaluate", "attack", "canary", "run", "--canaries", canaries)),
        # what is not encrypted was not published
        Step("fetch", ("fetch", store_of(config, "run"), "--to", "fetched"), codes=(0, 1, 2)),
        Step("deploy", ("schedule", "--deploy", str(config), "--cron", "0 2 * * *"), codes=(2,)),
    ]
    bench.carry_out("plain", steps, **signed)
    if bench.encrypted:
        bench.carry_out("keys", of_keys(bench, "run"), **signed)


def _nights(bench: Bench) -> None:
    config = str(bench.configure("night", detect=LISTED, nightly={"approve": "never", "hook": KEEPS_ALL}))
    bench.carry_out("night", nights_with_a_hook(config), REDACTORY_LOG="json")


def _no_server(bench: Bench) -> None:
    """Flows with the server that they bring, with processes, in each of whose stages something fails."""
    config = bench.configure("embedded", detect=LISTED, partition={"documents": 400})
    bench.carry_out("embedded", _flows(config, "embedded"))


def _flows(config: Path, name: str) -> list[Step]:
    whole = Step(name, ("curate", str(config), "--prefect", "--workers", "2"))
    broken = [
        Step(step.name, (*step.arguments, "--out", step.name), step.fails, step.codes)
        for step in failing(whole, STAGES)
    ]
    run = ("run", str(config), "--out", name, "--prefect")
    return [*broken, Step(f"{name}-whole", run)]


def _crashes(bench: Bench) -> None:
    """In each stage, of the process itself and of one of its workers."""
    config = str(bench.configure("crash", detect=LISTED, partition={"documents": 400}))
    for number, place in enumerate(STAGES):
        step = Step(f"crash-{number}", ("curate", config, "--out", f"crash-{number}"), f"{place}=abort")
        assert bench.crash(step.name, step) < 0
    lost = ("curate", config, "--out", "lost", "--workers", "2")
    bench.carry_out("lost", [Step("lost", lost, f"{REDACT}=abort", (1,))])
