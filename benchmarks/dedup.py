"""Near-duplicates: accuracy against brute force, speed beside datasketch's own loop.

``accuracy``: exact and near duplicates are planted in texts of the simulator (words changed, case, signs,
boilerplate); recall and precision are counted against the Jaccard similarity of every pair.  ``speed``: the
stages sign, compare, group and choose, with their files, beside the loops of ``dedup_rivals.py``, in turn,
one thread; ratios are medians over rounds.  text-dedup brings other versions of much of what is installed
here: it takes part where the interpreter of an environment of its own is named.  Prints JSON.

    python benchmarks/dedup.py
    python benchmarks/dedup.py --parts speed --texts 3000 --rounds 5 --text-dedup other-venv/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from dedup_rivals import Contestant, Task, rivals, timed
from varied_text import write_varied

from redactory.dedup.near import NEAR_RANGES, compare_buckets, join_groups, select_duplicates_to_drop
from redactory.dedup.plan import write_entries
from redactory.dedup.settings import NearSettings
from redactory.dedup.signatures import (
    ROW,
    Shingler,
    SignedFiles,
    WordTokenizer,
    choose_banding,
    compute_buckets,
    compute_signatures,
    describe_near_parameters,
    write_signed_texts,
)
from redactory.foundation.keys import DigestKey
from redactory.redaction import MASK

KEY = DigestKey(b"the benchmark's own key")
BOILERPLATE = "this message is meant for the one it names and for nobody else so please delete it"


def main() -> None:
    """Run the parts that are asked for and print one JSON object."""
    parser = argparse.ArgumentParser(description="near-duplicates: accuracy and speed")
    parser.add_argument("--parts", nargs="*", default=["accuracy", "speed"], choices=("accuracy", "speed"))
    parser.add_argument("--texts", type=int, default=2_500, help="texts that copies are planted among")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--text-dedup", metavar="PYTHON", help="an interpreter that has text-dedup 0.4")
    arguments = parser.parse_args()
    texts, kinds = planted(arguments.texts)
    result: dict[str, Any] = {"benchmark": "dedup"}
    if "accuracy" in arguments.parts:
        result["accuracy"] = accuracy(texts, kinds)
    if "speed" in arguments.parts:
        result["speed"] = speed(texts, arguments.rounds, arguments.text_dedup)
    print(json.dumps(result, indent=2))


def planted(count: int) -> tuple[list[str], list[str]]:
    """Distinct sentences of the simulator and planted copies, shuffled; and how each text came about."""
    with tempfile.TemporaryDirectory() as folder:
        write_varied(Path(folder) / "rows.jsonl", 2 * count, 3)
        rows = [json.loads(line) for line in (Path(folder) / "rows.jsonl").open(encoding="utf-8")]
    base = list(dict.fromkeys(" ".join(row["text"].split()) for row in rows))
    base = [text for text in base if len(text.split()) >= 6][:count]
    chance = np.random.default_rng(4)
    made = [(text, "original") for text in base]
    stock = sorted({word for text in base for word in text.split()})
    for text in base[: count // 2]:
        for kind, copy in _copies(text, stock, chance):
            made.append((copy, kind))
    order = chance.permutation(len(made)).tolist()
    return [made[i][0] for i in order], [made[i][1] for i in order]


def _copies(text: str, stock: Sequence[str], chance: np.random.Generator) -> Iterator[tuple[str, str]]:
    words = text.split()
    yield "exact", text
    yield "case", text.upper() if chance.random() < 0.5 else text.title()
    yield "signs", "! ".join(text.replace(",", "").split(". ")) + " ..."
    for changes in (1, 2, 4):
        edited = list(words)
        for place in chance.choice(len(words), min(changes, len(words)), replace=False).tolist():
            edited[place] = str(stock[chance.integers(len(stock))])
        yield f"{changes} words changed", " ".join(edited)
    yield "boilerplate", f"{text} {BOILERPLATE}"


def accuracy(texts: list[str], kinds: list[str]) -> dict[str, Any]:
    """By threshold: which pairs are compared, which are left, and whether who is dropped had to be."""
    return {
        "texts": len(texts),
        "planted": dict(Counter(kinds)),
        "by_threshold": [_accuracy_at(threshold, texts, kinds) for threshold in (0.5, 0.7, 0.8, 0.9)],
    }


def _accuracy_at(threshold: float, texts: list[str], kinds: list[str]) -> dict[str, Any]:
    settings = NearSettings(threshold=threshold)
    distinct = sorted(set(texts))
    sets = Shingler(KEY, settings.shingle, WordTokenizer(MASK)).make_shingle_sets(distinct)
    values = [frozenset(v.tolist()) for v in np.split(sets.values, sets.offsets[1:-1])]
    banding = choose_banding(threshold, settings.permutations)
    columns = np.stack(compute_buckets(compute_signatures(sets, banding.permutations), banding))
    dropped = near_duplicates(distinct, settings)
    counts: Counter[str] = Counter()
    for one, other, similarity in _all_pairs(values, threshold):
        where = "above" if similarity >= min(1.0, threshold + 0.1) else "between"
        counts[f"{where}/pairs"] += 1
        counts[f"{where}/compared"] += bool((columns[:, one] == columns[:, other]).any())
        counts[f"{where}/left"] += one not in dropped and other not in dropped
    true = sum(_jaccard(values[one], values[own]) >= threshold for one, own in dropped.items())
    gone = {distinct[number] for number in dropped}
    return {
        **describe_near_parameters(settings),
        "from_threshold_and_a_tenth": _recall(counts, "above"),
        "from_threshold": _recall(counts, "between"),
        "dropped": len(dropped),
        "precision": round(true / len(dropped), 5) if dropped else None,
        # of an original and its copies one stays, and it may be any of them
        "share_of_kind_dropped": {
            kind: round(float(np.mean([t in gone for t, k in zip(texts, kinds, strict=True) if k == kind])), 3)
            for kind in dict.fromkeys(kinds)
            if kind != "exact"
        },
    }


def _recall(counts: Counter[str], where: str) -> dict[str, float]:
    """``recall``: pairs that share a bucket, so are compared; ``both_left``: pairs of which neither goes."""
    pairs = counts[f"{where}/pairs"]
    recall, left = counts[f"{where}/compared"] / max(pairs, 1), counts[f"{where}/left"] / max(pairs, 1)
    return {"pairs": pairs, "recall": round(recall, 5), "both_left": round(left, 5)}


def _all_pairs(values: list[frozenset[int]], least: float) -> Iterator[tuple[int, int, float]]:
    """Every pair of this similarity or more: all pairs that share a value are looked at."""
    holders: dict[int, list[int]] = {}
    for number, own in enumerate(values):
        common = Counter(other for value in own for other in holders.get(value, ()))
        for other, count in common.items():
            similarity = count / (len(own) + len(values[other]) - count)
            if similarity >= least:
                yield other, number, similarity
        for value in own:
            holders.setdefault(value, []).append(number)


def _jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    return len(one & other) / len(one | other)


def near_duplicates(texts: list[str], settings: NearSettings) -> dict[int, int]:
    """{dropped text: the one that stays for it}, by the stages of mode minhash with their files."""
    banding = choose_banding(settings.threshold, settings.permutations)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, rank = [SignedFiles(folder, 0)], KEY.derive_subkey("dedup/rank")
        rows = np.zeros(len(texts), ROW)
        rows["id"] = np.arange(len(texts))
        rows["rank"] = [int.from_bytes(KEY.compute_text_digest(rank, text.encode())[:8], "little") for text in texts]
        write_signed_texts(
            files[0], rows, Shingler(KEY, settings.shingle, WordTokenizer(MASK)).make_shingle_sets(texts), banding
        )
        forests, groups = ([folder / f"{name}-{i}" for i in range(NEAR_RANGES)] for name in ("pairs", "groups"))
        for number, out in enumerate(forests):
            write_entries(out, compare_buckets(files, number, settings.threshold, {0}, False)[0])
        join_groups(forests, groups)
        chosen = (select_duplicates_to_drop(files, np.load(path), settings.threshold).tolist() for path in groups)
        return {point: first for pairs in chosen for point, first in pairs}


def speed(texts: list[str], rounds: int, text_dedup: str | None) -> dict[str, Any]:
    """Seconds for all texts, each contestant in turn; ours with its files and with true similarities."""
    settings = NearSettings(threshold=0.7)
    banding = choose_banding(settings.threshold, settings.permutations)
    task = Task(sorted(set(texts)), settings.threshold, settings.shingle, banding)
    contestants: dict[str, Contestant] = {
        "redactory": timed(lambda task: len(near_duplicates(list(task.texts), settings))),
        **rivals(text_dedup),
    }
    for work in contestants.values():
        work(task)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    dropped: dict[str, int] = {}
    for _ in range(rounds):
        for name, work in contestants.items():
            outcome = work(task)
            dropped[name] = outcome.dropped
            times[name].append(outcome.seconds)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {
        "texts": len(task.texts),
        "versions": {name: version(name) for name in ("datasketch", "rensa") if find_spec(name)},
        "dropped": dropped,
        "texts_per_second": {name: round(len(task.texts) / seconds) for name, seconds in medians.items()},
        "speedup_over": {
            name: round(statistics.median(np.array(times[name]) / np.array(times["redactory"])), 2)
            for name in contestants
            if name != "redactory"
        },
        "seconds": {name: [round(s, 3) for s in seconds] for name, seconds in times.items()},
    }


if __name__ == "__main__":
    main()
