"""The pages of a run and of its models, for people; they need no network and no script.

The sentences stand in ``words.j2``, the pages in the other templates.
"""

from __future__ import annotations

import functools
import heapq
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

from redactory.dedup.rules import summary as dedup_summary
from redactory.detectors import blind_of, blind_words
from redactory.evaluation.canary import highest_quantile
from redactory.evaluation.drift import METRICS
from redactory.evaluation.sample import resting_on_labellers
from redactory.evaluation.simulator import CANARY_DIGITS
from redactory.foundation.errors import some, upwards
from redactory.foundation.files import read_json, write_text
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import is_finished, result_of
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from jinja2 import Environment, Template


_POLICIES = ("strict", "conservative")
_BLOCK, _MORE = "▇▇", "…"
_LONGEST_TEXT, _LONGEST_SKELETON = 320, 24
_WORD_OR_MASK = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


def render_report(run: RunFolder) -> str:
    """The page of a finished run and its finished models, the same for the same run folder.

    It quotes some public points, shows private ones as skeletons only, and loads nothing.
    """
    manifest = read_json(run.manifest)
    counts, missed = manifest["counts"], _result(run.recall)
    shards = _result(run.redaction)
    return template("report.html.j2").render(
        manifest=manifest,
        counts=counts,
        blind=blind_words(blind_of(manifest)),
        flow=flow(counts),
        laws=conservation(manifest),
        found=_hits(manifest["hits"]),
        dedup=dedup_summary(manifest["dedup"]),
        missed=missed,
        resting=resting_on_labellers(missed) if missed and "sample" in missed else [],
        shards=said("shards", shards) if shards else [],
        drift=_result(run.gate),
        metrics={name: words.split(", by ")[0] for name, words in METRICS.items()},
        models=[model_report(run.model(name)) for name in run.model_names()],
        public=[_shortened(text) for text in _first(run.public)],
        skeletons=[skeleton(text) for text in _first(run.private)],
        canary_digits=CANARY_DIGITS,
        mask=MASK,
    )


def render_model(report: ModelReport) -> str:
    """The page of one model: how good it is, what is promised, what attacks found; it loads nothing."""
    return template("model.html.j2").render(model=report)


def pages_of(run: RunFolder) -> Iterator[tuple[Path, str]]:
    """Each page of a finished run and what stands on it: its finished models', and then its own report.

    A model has its page as HTML and as Markdown.
    """
    for name in run.model_names():
        folder = run.model(name)
        report = model_report(folder)
        yield folder.report, render_model(report)
        yield folder.measured, template("model.md.j2").render(model=report).replace(MASK, f"`{MASK}`")
    yield run.report, render_report(run)


def write_report(run: RunFolder) -> Path:
    """Commit :func:`pages_of` the run, mode 0600, and return the path of ``RUN/report.html``."""
    for path, page in pages_of(run):
        write_text(path, page)
    return run.report


def _result(folder: Any) -> Any:
    """The result of a finished measurement; None where it was not made."""
    return read_json(folder.root / "result.json") if is_finished(folder) else None


# What became of the rows, and the sums that must hold.


class Law(NamedTuple):
    """A sum that must hold: ``whole`` is ``parts`` together."""

    whole: tuple[str, int]
    parts: list[tuple[str, int]]

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.whole[1] == sum(count for _, count in self.parts)


def conservation(manifest: Mapping[str, Any]) -> list[Law]:
    """The laws of conservation of a run, each to be shown with whether it holds."""
    counts = manifest["counts"]

    def law(whole: str, *parts: str) -> Law:
        return Law((whole, counts[whole]), [(part, counts[part]) for part in parts])

    parts = [
        law("duplicate", "public_duplicate", "private_duplicate"),
        *(Law((name, counts[name]), sorted(manifest[name].items())) for name in ("rejected", "quarantined")),
    ]
    return [
        law("rows", "documents", "rejected"),
        law("points", "public", "private", "duplicate", "quarantined"),
        # "0 = 0" says nothing, unless something should have been there
        *(law for law in parts if law.whole[1] or any(count for _, count in law.parts)),
    ]


@dataclass(frozen=True)
class Bar:
    """A bar of the flow: the class that colours it, what its share is of, and what it divides into."""

    name: str
    count: int
    kind: str
    whole: int = 0
    parts: tuple[Bar, ...] = ()


def flow(counts: Mapping[str, int]) -> Bar:
    """Rows into documents, points, sides and shards; what has no count has no bar."""

    def bar(name: str, count: int, kind: str, *parts: Bar, whole: int = counts["points"]) -> Bar:
        return Bar(name, count, kind, whole, tuple(part for part in parts if part.count))

    public, private = (
        (
            bar(f"{side.capitalize()} shards", counts[side], side),
            bar("Duplicates", counts[f"{side}_duplicate"], "duplicate"),
        )
        for side in ("public", "private")
    )
    sides = (
        bar("Public side", sum(part.count for part in public), "public", *public),
        bar("Private side", sum(part.count for part in private), "private", *private[::-1]),
        bar("Quarantined", counts["quarantined"], "quarantined"),
    )
    points = bar("Points", counts["points"], "neutral", *sides, whole=0)
    documents = bar("Documents", counts["documents"], "neutral", points, whole=0)
    rejected = bar("Rejected", counts["rejected"], "rejected", whole=counts["rows"])
    return bar("Rows", counts["rows"], "neutral", documents, rejected, whole=0)


def _hits(hits: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The hits by policy, most frequent first, counted before overlapping spans are merged."""
    ordered = sorted(hits, key=lambda hit: (-hit["count"], hit["label"]))
    tables = [(name, [hit for hit in ordered if hit["policy"] == name]) for name in _POLICIES]
    return [table for table in tables if table[1]]


# Examples: public points as they are, private ones as skeletons without a word.


def skeleton(text: str) -> list[str]:
    """What may be seen of a private point: ``<MASK>`` where a mask is, one same block for any word.

    A masked text can still hold what π missed, so neither letters nor lengths of words are shown.
    """
    pieces = [MASK if piece == MASK else _BLOCK for piece in _WORD_OR_MASK.findall(text)]
    return pieces if len(pieces) <= _LONGEST_SKELETON else [*pieces[:_LONGEST_SKELETON], _MORE]


def _first(folder: Path, count: int = 8) -> list[str]:
    """The texts of the ``count`` points whose released ids come first.

    Released ids are keyed pseudonyms, so the pick is random over the points and the same in each rendering.
    """
    rows: list[tuple[str, str]] = []
    for batch in read_batches(folder, ["point_id", "text"]):
        # few of millions of points become Python objects
        least = batch.take(pc.select_k_unstable(batch, count, [("point_id", "ascending")]))
        rows = heapq.nsmallest(count, [*rows, *zip(*(c.to_pylist() for c in least.columns), strict=True)])
    return [text for _, text in rows]


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + _MORE


# A model in words that need no mathematics first: what its guarantee promises, what was measured of it.


EVALUATIONS = ("perplexity", "accuracy", "canary", "extraction", "membership", "audit")
_LARGEST_IN_FULL = 1e6
_TITLES = {
    "epsilon_substitution": "one private sentence, whatever secret it holds",
    "epsilon_bayesian": "a secret that at least one policy catches, nobody knows which",
    "epsilon_confidentiality": "every secret alike, also those that both policies miss",
}


@dataclass(frozen=True)
class Figure:
    """A number of the card as it is shown, or, where ``stated`` is false, why there is none."""

    title: str
    text: str
    stated: bool


@dataclass(frozen=True)
class Finding:
    """A figure, what it is of, and what it means; ``alarming`` where an attack did better than chance."""

    title: str
    figure: str
    sentence: str
    alarming: bool = False


@dataclass(frozen=True)
class ModelReport:
    """One finished model: its guarantee card, its results by evaluation, and both in words."""

    name: str
    card: Mapping[str, Any]
    results: Mapping[str, Mapping[str, Any]]
    epsilon: float | None
    promises: list[str]
    figures: list[Figure]
    utility: list[Finding]
    attacks: list[Finding]


def model_report(folder: ModelFolder) -> ModelReport:
    """One finished model, with every evaluation of it that there is."""
    card = read_json(folder.guarantee)
    results = {evaluation: result_of(folder, evaluation) or {} for evaluation in EVALUATIONS}
    told = (said(part, results) for part in ("utility", "attacks"))
    return ModelReport(
        folder.root.name, card, results, _named_epsilon(card), promises(card), figures(card), *told
    )


def said(part: str, *facts: Any) -> list[Finding]:
    """What the macro ``part`` of ``words.j2`` says of ``facts``."""
    found: list[Finding] = []

    def say(title: str = "", figure: str = "", alarming: bool = False, *, caller: Callable[[], str]) -> str:
        found.append(Finding(title, figure, " ".join(caller().split()), alarming))
        return ""

    getattr(template("words.j2").make_module({"say": say}), part)(*facts)
    return found


def promises(card: Mapping[str, Any]) -> list[str]:
    """What the card promises, a few sentences each; empty where it promises nothing."""
    epsilon = _named_epsilon(card)
    return [] if epsilon is None else [one.sentence for one in said("promises", card, epsilon)]


def _named_epsilon(card: Mapping[str, Any]) -> float | None:
    """The figure for one named secret; what an earlier version called ``epsilon_substitution`` only."""
    value: float | None = card["epsilon"] if "epsilon" in card else card["epsilon_substitution"]
    return value


def figures(card: Mapping[str, Any]) -> list[Figure]:
    """The card's figures, each with its meaning."""
    rows = _figures_of_units(card) if "epsilon_sound" in card else _figures_of_secrets(card)
    return [
        Figure(title, text or f"no figure: {card['reasons'][key]}", bool(text)) for title, key, text in rows
    ]


def _figures_of_secrets(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(title, key of the reason, text or nothing) of each figure of a card that is about private points."""
    for key, title in _TITLES.items():
        yield title, key, _epsilons([card[key]])
    if groups := card["epsilon_group"]:
        yield f"{', '.join(groups)} private sentences at once", "epsilon_group", _epsilons(groups.values())
    failure = card["coverage_failure"]
    share = "" if failure is None else f"at most {100 * failure:.2g}%"
    yield "share of secrets with no guarantee at all", "coverage_failure", share


def _figures_of_units(card: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The same for a card of a trainer that hides users or entities, or of one of their baselines."""
    yield f"{card['unit']}: {card['relation']}", "epsilon_sound", _epsilons([card["epsilon_sound"]])
    if card.get("epsilon_user_removal") is not None:
        name = card["adjacency_user_removal"]
        yield name, "epsilon_user_removal", _epsilons([card["epsilon_user_removal"]])
    for size, value in (card.get("curve") or {}).items():
        if value is not None:
            unit = f"an entity in the points of at most {size} users"
            if "adjacency_curve" in card:
                unit = f"units of at most {size} points"
            elif card["protect"] == "users":
                unit = f"{size} users at once"
            yield unit, "curve", _epsilons([value])
    published = card.get("epsilon_as_published")
    if isinstance(published, Mapping):
        published = published.get("epsilon")
    if published is not None:
        yield "as published, not a guarantee", "epsilon_as_published", _epsilons([published])


def _epsilons(values: Iterable[float | None]) -> str:
    """Figures as they are printed; nothing where there is none."""
    known = ["none" if value is None else upwards(value, 3) for value in values]
    return f"ε = {', '.join(known)}" if set(known) - {"none"} else ""


# The templates, and what they call.


def template(name: str) -> Template:
    """One of this room's templates; each is compiled once a process, not once a model."""
    return _environment().get_template(name)


def amount(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits; a dash for null."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LARGEST_IN_FULL else f"{value:.{digits}g}"


def share(part: int, whole: int) -> str:
    """A percentage that rounds neither something to nothing nor a part to the whole."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if percent > 99.9 and part < whole:
        return ">99.9%"
    return f"{percent:.1f}%"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _engine(stands_on: Mapping[str, Any]) -> str:
    """What an engine stands on, in a line: its model, the digests of its files, its packages."""
    digests = stands_on.get("sha256", ())
    digests = [digests] if isinstance(digests, str) else digests
    named = " ".join(str(stands_on[key]) for key in ("name", "version") if key in stands_on)
    packages = ", ".join(f"{name} {version}" for name, version in stands_on.get("versions", {}).items())
    return "; ".join(filter(None, (named, *(f"sha256 {digest[:16]}…" for digest in digests), packages)))


@functools.cache
def _environment() -> Environment:
    # most commands write no report
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("redactory.evaluation", "."),
        autoescape=lambda name: name is None or name.endswith((".html.j2", ".css.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "amount": amount,
        "percent": _percent,
        "share": share,
        "some": some,
        "upwards": lambda value: upwards(value, 3),
        "exp": math.exp,
        "log2": math.log2,
        "duration": _duration,
        "engine": _engine,
        "highest_quantile": highest_quantile,
    }
    environment.filters.update(filters)
    return environment
