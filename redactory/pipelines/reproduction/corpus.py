"""The corpus of a reproduction: labelled rows with canaries among them, curated once for each miss rate."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from redactory.evaluation.labelled_policies import LabelledPolicies
from redactory.evaluation.outside_secrets import HeldOut, Places
from redactory.evaluation.simulator import CANARY_DIGITS, CANARY_LABEL, CANARY_TEMPLATE, simulate_customersim
from redactory.foundation.files import commit
from redactory.foundation.progress import Progress
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.curate import curate
from redactory.pipelines.labelling.labelled import labelled_points, labelled_rows
from redactory.pipelines.reproduction.plan import Plan
from redactory.pipelines.segment import Cutter, segmenter
from redactory.redaction import MASK, RunFolder, read_column

Row = dict[str, Any]
_SPEAKER = "USR: "
_LEAST_HELD_OUT = 50
_CORPUS_SEED, _HELD_OUT_SEED, _CANARY_SEED, _MISS_SEED = 1, 2, 1, 1


@dataclass(frozen=True)
class Corpus:
    """Rows to train on, canaries and all; rows held out; the canaries as their file would hold them."""

    plan: Plan
    rows: list[Row] = field(repr=False)
    held_out_rows: list[Row] = field(repr=False)
    canaries: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, plan: Plan) -> Corpus:
        """The first ``plan.rows`` rows of the data, or as many simulated ones, with the canaries planted."""
        held_out = max(plan.rows // 10, _LEAST_HELD_OUT)
        if plan.data is None or plan.test is None:
            rows = list(simulate_customersim(plan.rows, seed=_CORPUS_SEED).rows)
            test = list(simulate_customersim(held_out, seed=_HELD_OUT_SEED).rows)
        else:
            rows = [row for row, _ in zip(labelled_rows(plan.data), range(plan.rows), strict=False)]
            test = list(labelled_rows(plan.test))
        # a user of the rows would make of every canary's copies one person's; a row's id is enough here
        rows = [
            {"id": str(row.get("id", n)), "text": row["text"], "spans": row["spans"]}
            for n, row in enumerate(rows)
        ]
        return cls(plan, *_planted(rows, plan, test))

    @cached_property
    def cut(self) -> Cutter:
        """How the corpus is cut into points."""
        return segmenter(SegmentSettings.model_validate({"mode": self.plan.segment}))

    def held_out(self) -> HeldOut:
        """Held-out points with the places of their secrets."""
        return HeldOut.of(self._points(self.held_out_rows), self.plan.test_points)

    def curated(self, gamma: float, progress: Progress) -> RunFolder:
        """The finished run under a π that misses ``gamma``; made once, and again where it was cut short."""
        folder = self.plan.out / f"gamma-{gamma:g}"
        run = RunFolder(folder / "run")
        if run.success.exists():
            return run
        if run.root.exists():
            shutil.rmtree(run.root)
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.jsonl"
        with commit(corpus) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": row["id"], "text": row["text"]}) + "\n" for row in self.rows)
        config = {
            "input": str(corpus),
            "output": str(run.root),
            "segment": {"mode": self.plan.segment},
            "dedup": {"mode": self.plan.dedup},
            # no engine is asked: the labels are; the settings still need one
            "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        }
        try:
            curate(config, detector=self.policies(gamma), progress=progress)
        finally:
            # the originals are the run's vault's from here on; nobody needs them in the open
            corpus.unlink()
        return run

    def policies(self, gamma: float) -> LabelledPolicies:
        """π and π_c at a miss rate."""
        return LabelledPolicies.of(self.rows, gamma, _MISS_SEED, self.canaries["inserted"])

    def _points(self, rows: Iterable[Row]) -> Iterator[tuple[str, Places]]:
        for row in rows:
            for text, own in labelled_points(row, self.cut):
                yield text, [(s["start"], s["end"]) for s in own]


def run_facts(run: RunFolder) -> dict[str, int]:
    """How many points stand on each side, and how many of the private ones hold a mask."""
    private = read_column(run.private, "text")
    return {
        "public": len(read_column(run.public, "text")),
        "private": len(private),
        "vault": len(read_column(run.vault, "text")),
        "private_masked": sum(MASK in text for text in private),
    }


def _planted(rows: list[Row], plan: Plan, test: list[Row]) -> tuple[list[Row], list[Row], dict[str, Any]]:
    """``rows`` with each canary ``plan.copies`` times among them, as a labelled row of its own."""
    draw = random.Random(f"reproduce-canaries-{_CANARY_SEED}")
    numbers = [f"{n:0{CANARY_DIGITS}d}" for n in draw.sample(range(10**CANARY_DIGITS), 2 * plan.canaries)]
    inserted, control = numbers[: plan.canaries], numbers[plan.canaries :]
    before = _SPEAKER if plan.segment == "turn" else ""
    for number in inserted:
        text = before + CANARY_TEMPLATE.format(digits=number)
        span = {"start": len(text) - len(number), "end": len(text), "label": CANARY_LABEL}
        for copy in range(plan.copies):
            # the id holds no digit of the canary
            row = {"id": f"canary-{inserted.index(number)}-{copy}", "text": text, "spans": [span]}
            rows.insert(draw.randrange(len(rows) + 1), row)
    told = {"template": CANARY_TEMPLATE, "inserted": inserted, "control": control, "copies": plan.copies}
    return rows, test, told
