"""The corpus of the CRT paper's figures: labelled rows with canaries among them, and who was a member.

The order of the draws is part of a figure: the same rows give the same canaries and the same sentences.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from labelled_policies import LabelledPolicies
from outside_secrets import HeldOut

from redactory.evaluation.extraction import make_control_values
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.membership import SecretSentence, draw_member_texts
from redactory.evaluation.simulator import CANARY_DIGITS, CANARY_LABEL, CANARY_TEMPLATE, simulate_dialogues
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.segment import SegmentFunction, make_segmenter
from redactory.redaction import RunFolder

TEST_POINTS, LEAST_HELD_OUT, CANARIES, GROUP_SIZE = 3_000, 50, 10, 20
SEGMENT = "turn"
SPEAKER = "USR: "
MEMBER_LABELS = ("ADDRESS", "STREET_ADDRESS", "BOOKING_REFERENCE")
"""The secrets whose membership the paper infers, by the names that corpora give them (CRT, A.5)."""


class Corpus:
    """Rows to train on, with canaries among them, curated once for each miss rate; rows held out."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.out: Path = asked.out
        if asked.data is None:
            rows = list(simulate_dialogues(asked.rows, seed=1).rows)
            self.test = list(simulate_dialogues(max(asked.rows // 10, LEAST_HELD_OUT), seed=2).rows)
        else:
            rows = [row for row, _ in zip(read_labelled_rows(asked.data), range(asked.rows), strict=False)]
            self.test = list(read_labelled_rows(asked.test))
        # a user of the rows would make of every canary's copies one person's; a row's id is enough here
        self.rows = [
            {"id": str(row.get("id", n)), "text": row["text"], "spans": row["spans"]} for n, row in enumerate(rows)
        ]
        self.cut: SegmentFunction = make_segmenter(SegmentSettings.model_validate({"mode": SEGMENT}))
        self.canaries = self._planted(asked.copies)

    def _planted(self, copies: int) -> dict[str, Any]:
        """Put each canary ``copies`` times among the rows, as a labelled row of its own."""
        draw = random.Random("reproduce-canaries-1")
        numbers = [f"{n:0{CANARY_DIGITS}d}" for n in draw.sample(range(10**CANARY_DIGITS), 2 * CANARIES)]
        for n, number in enumerate(numbers[:CANARIES]):
            text = SPEAKER + CANARY_TEMPLATE.format(digits=number)
            span = {"start": len(text) - len(number), "end": len(text), "label": CANARY_LABEL}
            for copy in range(copies):
                # the id holds no digit of the canary
                row = {"id": f"canary-{n}-{copy}", "text": text, "spans": [span]}
                self.rows.insert(draw.randrange(len(self.rows) + 1), row)
        sides = {"inserted": numbers[:CANARIES], "control": numbers[CANARIES:]}
        return {"template": CANARY_TEMPLATE, **sides, "copies": copies}

    def curated(self, gamma: float) -> RunFolder:
        """The finished run under a π that misses ``gamma``; made once, and again where it was cut short."""
        folder = self.out / f"gamma-{gamma:g}"
        run = RunFolder(folder / "run")
        if run.success.exists():
            return run
        shutil.rmtree(run.root, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"id": r["id"], "text": r["text"]}) + "\n" for r in self.rows))
        config = {
            "input": str(corpus),
            "output": str(run.root),
            "segment": {"mode": SEGMENT},
            "dedup": {"mode": "none"},
            # no engine is asked: the labels are; the settings still need one
            "detect": {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}},
        }
        policies = LabelledPolicies.of(self.rows, gamma, 1, self.canaries["inserted"])
        curate(config, detector=policies)
        # the originals are the run's vault's from here on
        corpus.unlink()
        return run

    @cached_property
    def held_out(self) -> HeldOut:
        """Held-out points with the places of their secrets."""
        points = (point for row in self.test for point in split_labelled_row(row, self.cut))
        return HeldOut.of(((text, [(s["start"], s["end"]) for s in own]) for text, own in points), TEST_POINTS)

    def members(self, label: str | None, most: int) -> tuple[list[str], list[str]]:
        """Sentences with secrets that were trained on, and as many with a secret of that form that was not.

        Both are sentences of the corpus, of one label, drawn apart; in the second the secret is replaced.
        """
        counts: dict[str, int] = defaultdict(int)
        for row in self.rows:
            for span in row["spans"]:
                counts[span["label"]] += span["label"] != CANARY_LABEL
        known = [name for name in MEMBER_LABELS if name in counts]
        label = label or (known[0] if known else max(sorted(counts), key=lambda name: counts[name]))
        sentences = [
            SecretSentence(text, span["start"], span["end"], label)
            for row in self.rows
            for text, spans in split_labelled_row(row, self.cut)
            for span in spans
            if span["label"] == label
        ]
        whole = "\n".join(row["text"] for row in self.rows).casefold()

        def fresh(drawn: Sequence[SecretSentence]) -> Sequence[str | None]:
            values = [(one.label, one.value) for one in drawn]
            return make_control_values(values, lambda asked: {v for v in asked if v.casefold() in whole}, seed=0)

        members, others = draw_member_texts(sentences, fresh, most, 0)
        if len(members) < 2 * GROUP_SIZE:
            raise SystemExit(f"label {label}: {len(members)} secrets for each half; groups need {2 * GROUP_SIZE}")
        return members, others
