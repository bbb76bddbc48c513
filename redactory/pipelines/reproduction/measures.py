"""What is measured of each model of a reproduction: perplexity, canary exposure, membership."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redactory.evaluation.simulator import CANARY_LABEL
from redactory.foundation.errors import InputError
from redactory.pipelines.labelling.labelled import labelled_points
from redactory.pipelines.reproduction.corpus import Corpus
from redactory.pipelines.reproduction.plan import ON_ORIGINALS, Plan
from redactory.pipelines.reproduction.training import Training

Measure = Callable[[Any, Training], dict[str, Any]]
LABELS = ("ADDRESS", "STREET_ADDRESS", "BOOKING_REFERENCE")
"""The secrets whose membership the paper infers, by the names that corpora give them (CRT, A.5)."""
_SEED = 0


def measure_of(plan: Plan, corpus: Corpus) -> Measure:
    """The measurement that ``plan.figure`` needs, with whatever it shares between models made once."""
    return {"perplexity": _perplexity, "exposure": _exposure, "membership": _membership}[plan.measure](
        plan, corpus
    )


def _perplexity(plan: Plan, corpus: Corpus) -> Measure:
    held_out = corpus.held_out()
    return lambda model, one: held_out.measure(model, masked=one.trainer not in ON_ORIGINALS)


def _exposure(plan: Plan, corpus: Corpus) -> Measure:
    from redactory.evaluation.canary import canary_exposure

    def measure(model: Any, one: Training) -> dict[str, Any]:
        found = canary_exposure(model, corpus.canaries)
        by = {
            side: [row["exposure"] for row in found["canaries"] if row["inserted"] is planted]
            for side, planted in (("inserted", True), ("control", False))
        }
        names = ("highest_exposure", "mean_exposure", "control_highest_exposure", "control_mean_exposure")
        return {**{name: found[name] for name in names}, "candidates": found["candidates"], "exposures": by}

    return measure


def _membership(plan: Plan, corpus: Corpus) -> Measure:
    from redactory.evaluation.membership import membership

    members, others = member_texts_of(plan, corpus)

    def measure(model: Any, one: Training) -> dict[str, Any]:
        found = membership(
            model,
            members,
            others,
            groups=plan.members,
            group_size=plan.group_size,
            confidence=1 - 0.05 / plan.comparisons,
            seed=_SEED,
        )
        alone, group = found["individual"], found["group"]
        return {
            "members": len(members),
            "others": len(others),
            "confidence": found["confidence"],
            "accuracy": alone["accuracy"],
            "auc": alone["auc"],
            "group_accuracy": group["accuracy"],
            "group_size": plan.group_size,
        }

    return measure


def member_texts_of(plan: Plan, corpus: Corpus) -> tuple[list[str], list[str]]:
    """Sentences with secrets that were trained on, and as many with a secret of the same form that was not.

    Both are sentences of the corpus, of one label, drawn apart; in the second the secret is replaced.
    ``InputError`` where the label has too few values.
    """
    from redactory.evaluation.control_values import control_values
    from redactory.evaluation.member_texts import SecretSentence, member_texts

    label = plan.label or default_label(corpus)
    sentences = [
        SecretSentence(text, span["start"], span["end"], label)
        for row in corpus.rows
        for text, spans in labelled_points(row, corpus.cut)
        for span in spans
        if span["label"] == label
    ]
    whole = "\n".join(row["text"] for row in corpus.rows).casefold()

    def fresh(drawn: Sequence[SecretSentence]) -> Sequence[str | None]:
        values = [(one.label, one.value) for one in drawn]
        return control_values(values, lambda asked: {v for v in asked if v.casefold() in whole}, seed=_SEED)

    members, others = member_texts(sentences, fresh, plan.members, _SEED)
    if len(members) < 2 * plan.group_size:
        raise InputError(
            f"label {label}: {len(members)} different secrets for each half, and groups of {plan.group_size} "
            f"need {2 * plan.group_size}; give more rows, or another label"
        )
    return members, others


def default_label(corpus: Corpus) -> str:
    """The label whose membership the paper infers, or the most frequent one where the corpus has no such."""
    counts: dict[str, int] = {}
    for row in corpus.rows:
        for span in row["spans"]:
            counts[span["label"]] = counts.get(span["label"], 0) + 1
    counts.pop(CANARY_LABEL, None)
    known = [label for label in LABELS if label in counts]
    if not counts:
        raise InputError("data: no row has a labelled secret, so there is no membership to infer")
    return known[0] if known else max(sorted(counts), key=lambda label: counts[label])
