"""The models of a run for its report: what each promises in plain words, what each was measured to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redactory.evaluation import guarantee_words as words
from redactory.evaluation import report_findings as findings
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.model_results import result_of

EVALUATIONS = ("perplexity", "accuracy", "canary", "extraction", "membership", "audit")


@dataclass(frozen=True)
class ModelReport:
    """One finished model: its guarantee card in words and figures, and what was measured of it.

    ``utility`` and ``attacks`` say it for everybody, around the promises.  ``error_rate`` is a classifier's
    on held-out text; the report has a column for it where a model has one.
    """

    name: str
    trainer: str
    warning: str
    promises: list[str]
    nothing_promised: str
    figures: list[words.Figure]
    assumptions: list[str]
    not_covered: list[str]
    row: list[tuple[str, float | None]]
    error_rate: float | None
    utility: list[findings.Finding]
    attacks: list[findings.Finding]
    no_utility: str = findings.NO_UTILITY
    no_attack: str = findings.NO_ATTACK


def model_reports(run: RunFolder) -> list[ModelReport]:
    """Every finished model of ``run``, by name."""
    return [model_report(run.model(name)) for name in run.model_names()]


def model_report(folder: ModelFolder) -> ModelReport:
    """One finished model, with every evaluation of it that there is."""
    name, card = folder.root.name, read_json(folder.guarantee)
    results = {evaluation: result_of(folder, evaluation) or {} for evaluation in EVALUATIONS}
    return ModelReport(
        name=name,
        trainer=card["trainer"],
        warning=words.warning(card),
        promises=words.promises(card),
        nothing_promised=words.nothing_promised(card),
        figures=words.figures(card),
        assumptions=card["assumptions"],
        not_covered=card["not_covered"],
        row=_row(card, results["perplexity"], results["canary"]),
        error_rate=results["accuracy"].get("error_rate"),
        utility=findings.utility(results),
        attacks=findings.attacks(results),
    )


def _row(
    card: Mapping[str, Any], perplexity: Mapping[str, Any], canary: Mapping[str, Any]
) -> list[tuple[str, float | None]]:
    """The model's line in the table: (title, figure), None where there is no such figure."""
    as_is, masked = perplexity.get("as_is", {}), perplexity.get("masked", {})
    return [
        ("perplexity", as_is.get("perplexity")),
        ("perplexity, masked by π", masked.get("perplexity")),
        ("ε, named secret", words.named_epsilon(card)),
        ("ε, Bayesian", card.get("epsilon_bayesian")),
        ("canary exposure, highest", canary.get("highest_exposure")),
        ("exposure of controls, highest", canary.get("control_highest_exposure")),
        ("canary copies left", canary.get("copies_left")),
    ]
