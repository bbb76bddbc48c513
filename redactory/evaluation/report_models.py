"""The models of a run for its report: what each promises in plain words, what each was measured to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redactory.evaluation import guarantee_words as words
from redactory.evaluation.canary import highest_quantile
from redactory.evaluation.report_facts import amount
from redactory.foundation.files import read_json
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import is_finished, result_of

EVALUATIONS = ("perplexity", "accuracy", "canary", "extraction", "membership", "audit")


NO_UTILITY = "How good the model is was not measured (redactory evaluate perplexity)."
NO_ATTACK = (
    "No attack on this model was tried (redactory evaluate canary, extraction, membership, audit). That "
    "says nothing of what it gives away."
)


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
    utility: list[Finding]
    attacks: list[Finding]
    no_utility: str = NO_UTILITY
    no_attack: str = NO_ATTACK


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
        utility=utility(results),
        attacks=attacks(results),
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


# What was measured of a model, and what attacks found, each figure with a sentence for everybody.


Result = Mapping[str, Any]
_UNLIKELY = 0.05


@dataclass(frozen=True)
class Finding:
    """A figure, what it is of, and what it means; ``alarming`` where an attack did better than chance."""

    title: str
    figure: str
    sentence: str
    alarming: bool = False


def utility(results: Mapping[str, Result]) -> list[Finding]:
    """How good the model is, from its results by evaluation."""
    found = list(_perplexity(results.get("perplexity", {})))
    error_rate = results.get("accuracy", {}).get("error_rate")
    if error_rate is not None:
        found.append(
            Finding(
                "test errors",
                _percent(error_rate),
                f"Of a hundred texts that it had not seen, it puts about {100 * error_rate:.0f} into the "
                "wrong class.",
            )
        )
    return found


def attacks(results: Mapping[str, Result]) -> list[Finding]:
    """What attacks on the model found, the strongest kind of evidence last."""
    return [
        *_exposure(results.get("canary", {})),
        *_extraction(results.get("extraction", {})),
        *_membership(results.get("membership", {})),
        *_audit(results.get("audit", {})),
    ]


def _perplexity(result: Result) -> Iterator[Finding]:
    forms = (("as_is", "perplexity"), ("masked", "perplexity, masked by π"))
    for form, title in forms:
        value = (result.get(form) or {}).get("perplexity")
        if value is not None:
            text = "text" if form == "as_is" else "text with its secrets masked"
            yield Finding(
                title,
                amount(value),
                f"On {text} that it had not seen, it is as unsure of each next word as somebody who has to "
                f"choose among {amount(value)} equally likely ones. Lower is better; compare models on the "
                "same text only.",
            )


def _exposure(result: Result) -> Iterator[Finding]:
    highest = result.get("highest_exposure")
    if highest is None:
        return
    planted = sum(bool(row.get("inserted")) for row in result.get("canaries", ()))
    chance = (result.get("chance") or {}).get("highest_95")
    if chance is None and planted:
        chance = highest_quantile(planted)
    above = chance is not None and highest > chance
    told = ""
    if chance is not None:
        verdict = "this is more than chance gives" if above else "this is no more than chance gives"
        told = f" In 95 of 100 cases chance alone stays under {amount(chance)} bits: {verdict}."
    candidates = result.get("candidates")
    place = ""
    if candidates:
        rank = max(round(candidates / 2.0**highest), 1)
        place = (
            f" The one that the model gives away most stands at place {rank:,} of {candidates:,} when all "
            "that could stand there are put in the order of likelihood."
        )
    yield Finding(
        "canary exposure, highest",
        f"{amount(highest)} bits",
        f"Invented numbers were planted in the text.{place}{told}",
        above,
    )


def _extraction(result: Result) -> Iterator[Finding]:
    found, sought = result.get("secrets_found"), result.get("secrets")
    if found is None or sought is None:
        return
    control, p_value = result.get("controls_found"), result.get("p_value")
    beside = "" if control is None else f" Of made-up values that were never there, it wrote {control:,}."
    yield Finding(
        "secrets that it wrote by itself",
        f"{found:,} of {sought:,}",
        "The model was left to write, and what it wrote was searched for the secrets of its training text."
        f"{beside}",
        found > (control or 0) if p_value is None else p_value < _UNLIKELY,
    )


def _membership(result: Result) -> Iterator[Finding]:
    kinds = (
        ("individual", "membership, single sentences", "a sentence with a secret"),
        ("group", "membership, groups", "a group of sentences with secrets"),
        ("rmia", "membership, beside a second model", "a sentence, with a second model to compare"),
    )
    for kind, title, what in kinds:
        accuracy = ((result.get(kind) or {}).get("accuracy")) or {}
        if accuracy.get("value") is None:
            continue
        beyond = accuracy["low"] is not None and accuracy["low"] > 0.5
        verdict = "better than a coin" if beyond else "no better than a coin, as far as this can tell"
        yield Finding(
            title,
            _percent(accuracy["value"]),
            f"Shown {what}, an attacker says whether the model was trained on that, and is right in "
            f"{_percent(accuracy['value'])} of the cases ({_percent(accuracy['low'])} to "
            f"{_percent(accuracy['high'])}): {verdict}.",
            beyond,
        )


def _audit(result: Result) -> Iterator[Finding]:
    lower, upper = result.get("epsilon_lower"), result.get("epsilon_upper")
    if lower is None:
        return
    broken = result.get("holds") is False
    promised = "nothing is promised of it" if upper is None else f"promised is {amount(upper)}"
    verdict = (
        " The promise is broken: do not release this model."
        if broken
        else ""
        if upper is None
        else " That does not contradict the promise."
    )
    yield Finding(
        "audit: epsilon is at least",
        amount(lower),
        "Texts were put into the training by the toss of a coin, and the coins guessed from the model. So "
        f"many were right that its epsilon is at least {amount(lower)}; {promised}.{verdict}",
        broken,
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


# What attacks on the shards alone found, with a sentence for everybody.


_UNITS = {"document": "document", "user": "person"}


def shard_findings(run: RunFolder) -> list[Finding]:
    """Of ``redactory evaluate redaction``; empty where it was not made."""
    if not is_finished(run.redaction):
        return []
    result = read_json(run.redaction.root / "result.json")
    return [*_linked(result["linkage"]), *_left(result["residual"]), *_across(result["across"])]


def _linked(linkage: Mapping[str, Any]) -> Iterator[Finding]:
    for unit, own in linkage.items():
        if own is None:
            continue
        if own["share"]["value"] is None:
            yield Finding(
                f"linked to the same {_UNITS[unit]}",
                "none",
                "No private point shares a rare phrase with one public point alone: none could be tied.",
            )
            continue
        above = (own["excess"]["low"] or 0.0) > 0.0
        yield Finding(
            f"linked to the same {_UNITS[unit]}",
            f"{100 * own['share']['value']:.1f}%",
            f"{own['claimed']:,} of {own['private']:,} private points share a rare phrase with one public "
            f"point. In {100 * own['share']['value']:.1f}% of these cases both are of the same "
            f"{_UNITS[unit]}; pairs drawn at random would be in {100 * own['chance']['value']:.1f}%.",
            above,
        )


def _left(residual: Mapping[str, Any] | None) -> Iterator[Finding]:
    for side in ("public", "private"):
        own = (residual or {}).get(side)
        if residual is None or own is None or own["share"]["value"] is None:
            continue
        yield Finding(
            f"suspected identifiers, {side}",
            f"{100 * own['share']['value']:.1f}%",
            f"{residual['engine']}, which had no part in masking, was shown {own['looked_at']:,} {side} "
            f"points and saw a name, a long number or another identifier that is no ordinary word in "
            f"{own['held']:,}. It is mistaken at times: look at the points that the result lists."
            + (f" Mind: {residual['note']}." if residual.get("note") else ""),
            side == "public" and own["held"] > 0,
        )


def _across(across: Mapping[str, Any] | None) -> Iterator[Finding]:
    if across is not None:
        yield Finding(
            "near-duplicates across the split",
            f"{across['public_points']:,}",
            "So many public points are nearly the same as a private one. What is secret in the one may stand "
            "in the open in the other; audit/across lists them.",
            across["public_points"] > 0,
        )


# The page of a model as Markdown: utility, guarantee, attacks, in this order.


def model_page(report: ModelReport) -> str:
    """``report`` in Markdown; private, since it tells what was computed from private text."""
    lines = [
        f"# {report.name}",
        "",
        f"A model trained with `{report.trainer}`. What was measured is computed from private text and not "
        "covered by the guarantee: treat this page as private. `README.md` has the whole guarantee.",
        "",
        "## How good it is",
        "",
        *(_told(report.utility) if report.utility else [report.no_utility]),
        "",
        "## What is promised",
        "",
        *_promised(report),
        "",
        "## What attacks found",
        "",
        *(_told(report.attacks) if report.attacks else [report.no_attack]),
    ]
    if report.attacks:
        lines += [
            "",
            "An attack that failed proves nothing: another may succeed. The promise above holds against "
            "every attack, where there is one.",
        ]
    return "\n".join(lines).replace(MASK, f"`{MASK}`") + "\n"


def _told(found: Iterable[Finding]) -> Iterator[str]:
    for one in found:
        yield f"- {one.title}: **{one.figure}**. {one.sentence}"


def _promised(report: ModelReport) -> Iterator[str]:
    if not report.promises:
        yield report.nothing_promised
        return
    if report.warning:
        yield f"**{report.warning}** With a secret key, the same training would promise this:"
        yield ""
    yield from (f"{number}. {sentence}" for number, sentence in enumerate(report.promises, 1))
    yield ""
    yield from (f"- {figure.title}: {figure.text}" for figure in report.figures)
