"""The long leak tests' other commands: those that make things, those of keys, and all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from tests.flows.leak_bench import LISTED, Bench, Step
from tests.flows.leak_steps import failing

DEDUP = (
    "redactory.pipelines.curation.stages.dedup:deduplicate_in_one_pass",
    "redactory.pipelines.curation.stages.dedup:compute_text_signatures",
    "redactory.pipelines.curation.stages.dedup:compare_near_duplicates",
    "redactory.pipelines.curation.stages.dedup:match_earlier_runs",
    "redactory.pipelines.curation.stages.dedup:match_earlier_near_duplicates",
    "redactory.pipelines.curation.stages.dedup:group_near_duplicates",
    "redactory.dedup.near:select_duplicates_to_drop",
    "redactory.pipelines.curation.stages.dedup:write_index_digests",
    "redactory.pipelines.curation.stages.dedup:write_index_signatures",
)
"""What fails in a curation with every kind of deduplication, and with an index, in the order of stages."""


def making(folder: Path) -> list[Step]:
    """The commands that read no corpus; their files are read by later steps."""
    simulated = str(folder / "simulated.jsonl")
    return [
        Step("init", ("init", "example.yaml")),
        Step("simulate", ("simulate", "--rows", "20", "--canaries", "2", "--out", simulated)),
        *(Step(f"new-{kind}", ("keys", "new", kind, f"{kind}.key")) for kind in ("digest", "encryption")),
        Step("new-signing", ("keys", "new", "signing", "signing.key")),
    ]


def failing_dedup(bench: Bench) -> list[Step]:
    """A curation for each place of deduplication that fails, after one that filled the index."""
    index = str(bench.folder("work") / "index")
    every = {"mode": "minhash", "private_mode": "bloom", "index": {"path": index}}
    config = str(bench.configure("near", detect=LISTED, dedup=every))
    again = Step("near", ("curate", config, "--out", "near-again", "--resume"))
    return [
        Step("near-first", ("curate", config, "--out", "near")),
        *failing(again, DEDUP),
        again,
        Step("index-show", ("index", index)),
        Step("index-prune", ("index", index, "--keep-runs", "1")),
    ]


def of_keys(bench: Bench, run: str) -> list[Step]:
    """The commands on an encrypted run, one of whose tracebacks is opened; the run is shredded."""
    sealed = next(bench.folder("work").glob("*/state/traceback-*.txt"))
    return [
        Step("data-key", ("keys", "unwrap", run, "--data-key", "data.key")),
        Step("open", ("keys", "unwrap", str(sealed)), shows_text=True),
        Step("new-key", ("keys", "new", "encryption", "rotated.key")),
        Step("rotate", ("keys", "rotate", run, "--to-key-file", "rotated.key")),
        Step("rotated", ("keys", "rotate", run, "--to-service", "no.such:service"), codes=(2,)),
        Step("shred", ("keys", "shred", run, "--by", "Ann Example", "--yes")),
        Step("shredded", ("verify", run), codes=(0, 1)),
    ]


def every_command() -> set[str]:
    """The name of each command of the command line, as ``Step.command`` gives it."""
    from redactory.flows.cli import app

    return set(_names(typer.main.get_command(app)))


def _names(command: click.Command, *above: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(above)
        return
    for name, each in inner.items():
        yield from _names(each, *above, name)


def environment_of_key(file: Path) -> dict[str, str]:
    """What names the signing key of a run."""
    return {"REDACTORY_SIGNING_KEY_FILE": os.fspath(file)}
