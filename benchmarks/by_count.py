"""Public by count beside public by policies: perplexity at equal epsilon, and what a planted secret does.

    python benchmarks/by_count.py --data shared/data/customersim --work FOLDER

CustomerSim, curated three times: `policies` decide what is public, `count`, or `both`.  No detector runs: π
knows the labelled values and misses a tenth of them, π_c misses none and marks digits and names as well
(``labelled_policies.py``).  `crt` learns from each run at the same total epsilon for one exchanged point:
with counts, of the selection and the training together.  Perplexity outside of secrets, on held-out text.
Then numbers planted in a corpus of their own, each in some users' texts: how many cross the threshold, and
how many the law of the noise says.  And how often labelled text repeats, masked, without any noise.  Prints
one JSON object; minutes.

    python benchmarks/by_count.py --data shared/data/customersim --work FOLDER --repeats FILE [FILE ...]

With ``--grams`` in its place: sequences of words of which as many users wrote as a threshold asks for.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from hashlib import sha256
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from crt import CONSTANTS
from labelled_policies import LabelledPolicies
from outside_secrets import HeldOut
from scipy.stats import binomtest, norm

from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction import RunFolder, read_column, read_manifest
from redactory.redaction.mask import mask_intervals
from redactory.training import load_model, train_model
from redactory.training.count_selection import CountSelection
from redactory.training.data import count_public_occurrences
from redactory.training.guarantee.card import make_guarantee_card
from redactory.training.mechanisms.counted_texts import ROUNDING_MARGIN
from redactory.training.settings import TrainSettings

Row = dict[str, Any]
WAYS, MISSED, DELTA = ("policies", "count", "both"), 0.1, 1e-5
SELECTION: Row = {"epsilon": 1.0, "delta": 1e-6, "texts_per_user": 4}
PLANTED, NEAR = 200, (-30, -20, -10, -5, 0, 5, 10)
"""Numbers for each count of users: one user, and so many users beside the threshold."""


def main() -> None:
    """Train and measure, plant and count."""
    asked = _arguments()
    asked.work.mkdir(parents=True, exist_ok=True)
    if asked.repeats:
        print(json.dumps([one for path in asked.repeats for one in repeats(path)], indent=1))
        return
    if asked.grams:
        print(json.dumps([one for path in asked.grams for one in grams(path, asked.rows)], indent=1))
        return
    rows = list(islice(read_labelled_rows(asked.data / "train.jsonl"), asked.rows))
    test = islice(read_labelled_rows(asked.data / "test.jsonl"), asked.rows // 10)
    cut = make_segmenter(SegmentSettings.model_validate({"mode": "turn"}))
    points = (point for row in test for point in split_labelled_row(row, cut))
    held_out = HeldOut.of(((text, [(s["start"], s["end"]) for s in own]) for text, own in points), 3_000)
    found = {"selection": SELECTION, "delta": DELTA, "missed": MISSED, "rows": len(rows)}
    found |= {"ways": [one for way in WAYS for one in measured(asked, way, rows, held_out)]}
    print(json.dumps({**found, "planted": planted(asked.work)}, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with train.jsonl, test.jsonl")
    parser.add_argument("--work", type=Path, required=True, help="a folder for runs and models")
    parser.add_argument("--rows", type=int, default=2_000, help="dialogues")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", type=lambda given: [float(n) for n in given.split(",")], default=[1, 4])
    parser.add_argument("--repeats", type=Path, nargs="+", help="labelled rows: how often they repeat; no more")
    parser.add_argument("--grams", type=Path, nargs="+", help="labelled rows: sequences of words; no more")
    return parser.parse_args()


def curated(folder: Path, rows: list[Row], way: str, missed: float, **selection: Any) -> RunFolder:
    """A finished run of labelled rows."""
    run = RunFolder(folder / "run")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    corpus = folder / "corpus.jsonl"
    kept = ({name: row[name] for name in ("id", "user_id", "text")} for row in rows)
    corpus.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    config = {
        "input": str(corpus),
        "output": str(run.root),
        "segment": {"mode": "turn"},
        "dedup": {"private_mode": "none"},
        "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        "route": {"by": way, **(SELECTION if way != "policies" else {}), **selection},
    }
    curate(config, detector=LabelledPolicies.of(rows, missed, 1))
    return run


def measured(asked: argparse.Namespace, way: str, rows: list[Row], held_out: HeldOut) -> list[Row]:
    """A row for each epsilon, over seeds; and what the same text is worth without noise."""
    run = curated(asked.work / way, rows, way, MISSED)
    private = sum(1 for _ in read_column(run.private, "text"))
    stands_for, texts = count_public_occurrences(run), list(read_column(run.public, "text"))
    counts = read_manifest(run)["counts"]
    values = {row["text"][s["start"] : s["end"]] for row in rows for s in row["spans"]}
    facts = {
        "way": way,
        "public_texts": len(texts),
        "public_examples": 1 - private / (counts["examples"] - counts["quarantined"]),
        "public_texts_with_a_labelled_value": sum(any(v in text for v in values) for text in texts),
        "learnt_as": int(stands_for.sum()),
    }
    found = []
    for target in [None, *asked.epsilons]:
        scores, begun, card = [], time.process_time(), {}
        for seed in range(1, asked.seeds + 1):
            name = f"s{seed}-e{target or 0:g}"
            own = settings(name, seed, target, private)
            train_model(run, own)
            scores.append(held_out.measure(load_model(run.get_model_folder(name)), masked=True)["per_word"])
            card = make_guarantee_card(run, name)
        names = ("epsilon_substitution", "epsilon_bayesian", "epsilon_confidentiality", "noise_multiplier")
        spread = {"value": mean(scores), "least": min(scores), "greatest": max(scores)}
        told = {name: card[name] for name in names} if target else {}
        cpu = round((time.process_time() - begun) / asked.seeds, 1)
        found.append({**facts, "target": target, **told, "per_word": spread, "cpu_seconds": cpu})
    return found


def settings(name: str, seed: int, target: float | None, private: int) -> TrainSettings:
    """Of one training; without a target there is no noise."""
    # the same number of plain steps for each way, however few rows it leaves
    own: Row = {**CONSTANTS, "epochs": 4, "sampling_rate": 0.02, "min_public_steps": 250, "noise": "float"}
    own["tokenizer"] = "shipped"
    # near what each way leaves, so that ways compare; where it promises something, the size is an estimate
    own |= {"trainer": "crt" if target else "redact-only", "public_weighting": "count"}
    own |= {"epsilon": target or 1.0, "delta": DELTA, "expected_batch_size": max(1.0, own["sampling_rate"] * private)}
    network = {"kind": "lstm", "embedding_size": 64, "hidden_size": 64}
    return TrainSettings.model_validate({**own, "model": network, "seed": seed, "name": name})


def repeats(path: Path) -> list[Row]:
    """Texts that as many users wrote as a threshold asks for: of all that they wrote, and of k of it."""
    rows, found = list(read_labelled_rows(path)), []
    for mode in ("turn", "sentence"):
        cut = make_segmenter(SegmentSettings.model_validate({"mode": mode}))
        own: dict[str, list[str]] = {}
        for row in rows:
            texts = (
                mask_intervals(t, [(s["start"], s["end"]) for s in spans]) for t, spans in split_labelled_row(row, cut)
            )
            own.setdefault(row.get("user_id") or row["id"], []).extend(texts)
        every = Counter(text for texts in own.values() for text in texts)
        for epsilon in (1.0, 4.0):
            tau = CountSelection.calibrate(epsilon, 1e-5, 4).threshold
            told: Row = {"file": path.parent.name, "users": len(own), "mode": mode, "epsilon": epsilon}
            for most in (None, 4):
                users = Counter(t for u, texts in own.items() for t in bounded(u, texts, most))
                enough = [text for text, count in users.items() if count >= tau]
                share = sum(every[text] for text in enough) / every.total()
                told["all" if most is None else f"k={most}"] = {"texts": len(enough), "examples": share}
            found.append({**told, "threshold": tau, "points_per_user": every.total() / len(own)})
    return found


def grams(path: Path, most: int, k: int = 64) -> list[Row]:
    """Of 1 to 4 words after another, what enough users wrote, and the share of places that it covers.

    The extraction of Kim et al. (2021) without its noise: a sequence is counted where both that are shorter
    by a word were found, ``k`` of each length for a user; a length costs epsilon again.
    """
    cut = make_segmenter(SegmentSettings.model_validate({"mode": "turn"}))
    own: dict[str, list[list[str]]] = {}
    for row in islice(read_labelled_rows(path), most):
        texts = (
            mask_intervals(t, [(s["start"], s["end"]) for s in spans]).split()
            for t, spans in split_labelled_row(row, cut)
        )
        own.setdefault(row.get("user_id") or row["id"], []).extend(texts)

    def slices(words: list[str], n: int) -> list[str]:
        return [" ".join(words[at : at + n]) for at in range(len(words) - n + 1)]

    found = []
    for epsilon in (1.0, 4.0):
        tau, shorter = CountSelection.calibrate(epsilon, 1e-5, k).threshold, None
        lengths = []
        for n in (1, 2, 3, 4):
            users: Counter[str] = Counter()
            for user, texts in own.items():
                written = {g for words in texts for g in slices(words, n)}
                if shorter is not None:
                    written = {g for g in written if set(slices(g.split(), n - 1)) <= shorter}
                users.update(bounded(user, list(written), k))
            shorter = {g for g, count in users.items() if count >= tau}
            places = [g in shorter for texts in own.values() for words in texts for g in slices(words, n)]
            lengths.append({"words": n, "found": len(shorter), "covers": mean(places)})
        facts = {"file": path.parent.name, "users": len(own), "epsilon": epsilon, "threshold": tau, "k": k}
        found.append({**facts, "lengths": lengths})
    return found


def bounded(user: str, texts: list[str], most: int | None) -> list[str]:
    """Of a user's distinct ``texts`` the ``most`` whose digests are the smallest."""
    return sorted(set(texts), key=lambda text: sha256(f"{user} {text}".encode()).digest())[:most]


def planted(work: Path) -> list[Row]:
    """Rows {users, planted, crossed, expected, chance}: of so many users' numbers what is public.

    ``chance`` says how likely a share as far from ``expected`` is, by the exact law.
    """
    own = CountSelection.calibrate(SELECTION["epsilon"], SELECTION["delta"], 1)
    sizes = [1, *(own.threshold + near for near in NEAR if own.threshold + near > 1)]
    rows = [
        {"id": f"r{size}-{n}-{user}", "user_id": f"u{size}-{n}-{user}", "text": f"{size} {n}", "spans": []}
        for size in sizes
        for n in range(PLANTED)
        for user in range(size)
    ]
    run = curated(work / "planted", rows, "count", 0.0, texts_per_user=1)
    crossed = np.array([int(text.split()[0]) for text in read_column(run.public, "text")])
    found = []
    for size in sizes:
        expected = float(norm.sf((own.threshold - ROUNDING_MARGIN - size) / own.deviation))
        public = int((crossed == size).sum())
        chance = float(binomtest(public, PLANTED, expected).pvalue)
        found.append({"users": size, "planted": PLANTED, "crossed": public, "expected": expected, "chance": chance})
    return [{"threshold": own.threshold, "deviation": own.deviation}, *found]


if __name__ == "__main__":
    main()
