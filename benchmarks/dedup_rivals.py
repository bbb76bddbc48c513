"""What ``dedup.py`` runs beside Redactory: each takes distinct texts and says how many are left out.

All are given the same banding and word shingles of the same length, on one thread.  None of them verifies
a candidate pair, and all but text-dedup keep everything in memory.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.dedup.signatures import Banding

STAGES = ("MinHashing", "Clustering", "Filtering")
"""Stages of text-dedup that are counted: neither its start, nor loading and saving the texts."""


@dataclass(frozen=True)
class Task:
    """What all are asked for."""

    texts: Sequence[str]
    threshold: float
    shingle: int
    banding: Banding


@dataclass(frozen=True)
class Outcome:
    """Seconds, and how many texts are left out."""

    seconds: float
    dropped: int


Contestant = Callable[[Task], Outcome]


def rivals(text_dedup: str | None) -> dict[str, Contestant]:
    """datasketch always; rensa where it is installed; text-dedup where an interpreter with it is given."""
    found: dict[str, Contestant] = {"datasketch, loop": timed(_datasketch_loop)}
    if importlib.util.find_spec("rensa"):
        found["rensa, loop"] = timed(_rensa_loop)
        found["rensa, bulk"] = timed(_rensa_bulk)
    if text_dedup:
        found["text-dedup"] = lambda task: _text_dedup(task, text_dedup)
    return found


def timed(work: Callable[[Task], int]) -> Contestant:
    """``work``, which returns how many texts it leaves out, with its seconds."""

    def contestant(task: Task) -> Outcome:
        start = time.perf_counter()
        dropped = work(task)
        return Outcome(time.perf_counter() - start, dropped)

    return contestant


def _shingles(text: str, length: int) -> list[str]:
    words = text.casefold().split()
    return [" ".join(words[i : i + length]) for i in range(max(1, len(words) - length + 1))]


def _left_out(index: Any, signatures: Iterable[Any]) -> int:
    """How many texts find an earlier one in ``index``; the others are put into it."""
    dropped = 0
    for number, signature in enumerate(signatures):
        if index.query(signature):
            dropped += 1
        else:
            index.insert(number, signature)
    return dropped


def _datasketch_loop(task: Task) -> int:
    from datasketch import MinHash, MinHashLSH

    def signed(text: str) -> Any:
        signature = MinHash(num_perm=task.banding.permutations)
        signature.update_batch([shingle.encode() for shingle in _shingles(text, task.shingle)])
        return signature

    params = (task.banding.bands, task.banding.rows)
    index = MinHashLSH(num_perm=task.banding.permutations, params=params)
    return _left_out(index, map(signed, task.texts))


def _rensa_loop(task: Task) -> int:
    from rensa import RMinHash, RMinHashLSH

    values = task.banding.permutations

    def signed(text: str) -> Any:
        signature = RMinHash(num_perm=values, seed=1)
        signature.update(_shingles(text, task.shingle))
        return signature

    index = RMinHashLSH(threshold=task.threshold, num_perm=values, num_bands=task.banding.bands)
    return _left_out(index, map(signed, task.texts))


def _rensa_bulk(task: Task) -> int:
    """Its way for a whole batch: it flags every text of a shared bucket, so also the one that would stay."""
    from rensa import RMinHash, RMinHashLSH

    values = task.banding.permutations
    sets = [_shingles(text, task.shingle) for text in task.texts]
    matrix = RMinHash.digest_matrix_from_token_sets(sets, values, 1)
    index = RMinHashLSH(threshold=task.threshold, num_perm=values, num_bands=task.banding.bands)
    return sum(index.query_duplicate_flags_matrix_one_shot(matrix))


def _text_dedup(task: Task, python: str) -> Outcome:
    """Its command of version 0.4, in a process of its own; the seconds are those that it reports itself."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "texts.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in task.texts)
        banding = task.banding
        options = {
            "path": "json",
            "data_files": "texts.jsonl",
            "split": "train",
            "column": "text",
            "cache_dir": "cache",
            "output": "out",
            "num_proc": 1,
            "ngram": task.shingle,
            "min_length": 1,
            "threshold": task.threshold,
            "hash_func": "xxh3",
            "num_perm": banding.permutations,
            "b": banding.bands,
            "r": banding.rows,
        }
        command = [python, "-m", "text_dedup.minhash"]
        command += [str(part) for option, value in options.items() for part in (f"--{option}", value)]
        offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")}
        environment = {**os.environ, **offline, "COLUMNS": "200"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"text-dedup failed:\n{done.stderr[-2000:]}")
    told = dict(re.findall(r"(\w+)\s*: ([\d.]+)", done.stdout + done.stderr))
    return Outcome(sum(float(told[stage]) for stage in STAGES), int(told["Before"]) - int(told["After"]))
