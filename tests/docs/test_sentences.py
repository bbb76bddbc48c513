"""Sentences for people: every bound that is printed holds, and no sentence says what is no theorem."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from jinja2 import Environment, nodes
from scipy.optimize import brentq
from scipy.stats import beta, norm

from redactory.dedup.settings import summarize_dedup
from redactory.evaluation.report import list_card_metrics, list_promises, load_template
from redactory.flows.evaluate_commands import describe_measurements
from redactory.flows.model_commands import describe_audit_result, describe_budget, describe_guarantee, describe_promise
from redactory.flows.show import Table
from redactory.foundation.bounds import TEMPLATE_FILTERS
from redactory.pipelines.curation.finish import render_dataset_card, render_export_card, render_synthetic_card
from redactory.training.guarantee.card import UNITS_FORMAT, render_guarantee_page
from tests.docs.pages import EVERYTHING, ROOT, name_of
from tests.evaluation.report_run import first_lines, manifest

PACKAGE = ROOT / "redactory"
TEMPLATES = sorted(PACKAGE.rglob("*.j2"))

# Every template and every message prints a bound by redactory.foundation.bounds.

_BOUND = re.compile(r"(?:\w+_)?(?:epsilon|delta|delta_2|gamma|upper|lower|failure)(?:_\w+)?|confidence")
_OUTWARDS = {*TEMPLATE_FILTERS, "share", "between"}
_ARITHMETIC = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.Pow, nodes.Mod)
_DRAWN = ("Add", "Sub", "Mul", "Div")
"""Arithmetic of places in a picture."""
_PATHS = (nodes.Getattr, nodes.Getitem)


def _terminal(node: nodes.Node) -> str:
    """The last name of ``a.b["c"]``; nothing of another expression, or of a reason for no figure."""
    if isinstance(node, _PATHS) and _terminal(node.node) in ("reasons", "why_not"):
        return "reason"
    if isinstance(node, nodes.Getattr):
        return str(node.attr)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return str(node.arg.value)
    return node.name if isinstance(node, nodes.Name) else ""


def _formatted(node: nodes.Node, by: str = "") -> Iterator[str]:
    """Each bound that an expression formats otherwise than outwards; what is only asked prints nothing."""
    ends = _terminal(node) in ("low", "high") and by not in _DRAWN
    if by and (ends or _BOUND.fullmatch(_terminal(node))):
        yield f"line {node.lineno}: {_terminal(node)} by {by}"
    if isinstance(node, nodes.Filter) and node.name in _OUTWARDS:
        return
    if isinstance(node, nodes.Filter):
        by = node.name if node.name not in ("list", "selectattr", "rejectattr", "map", "length") else by
    elif isinstance(node, _ARITHMETIC):
        by = type(node).__name__
    elif isinstance(node, nodes.Call) and _terminal(node.node) == "format":
        by = "format"
    elif isinstance(node, _PATHS) and _terminal(node):
        return
    for name, part in node.iter_fields():
        asked = name == "test" or isinstance(node, nodes.Compare | nodes.Test)
        for child in part if isinstance(part, list) else [part]:
            if isinstance(child, nodes.Node) and not asked:
                yield from _formatted(child, by)


def _badly_formatted(template: str) -> list[str]:
    return list(_formatted(Environment().parse(template)))


@pytest.mark.parametrize("path", TEMPLATES, ids=name_of)
def test_no_template_formats_a_bound_by_itself(path: Path) -> None:
    assert _badly_formatted(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "template",
    [
        '{{ "%.4g" % c.epsilon }}',
        '{{ "%.2g" | format(100 * failure) }}',
        "{{ r.gamma_upper|n('.4f') }}",
        "{{ card.delta | round }}",
        "{{ 2.718 ** m.route.epsilon }}",
        '{{ "{:,.1f}".format(2.7 ** c.epsilon_with_public) }}',
        '{% set x = "%d" % (100 * guess(epsilon)) %}',
        '{{ "none" if value is none else audit["epsilon_lower"] | amount }}',
        "{% call say(title, upper | amount) %}{% endcall %}",
        "{{ (100 * own.misses.confidence) | int }}",
        "{% for row in rows %}{{ row.low | percent }}{% endfor %}",
    ],
)
def test_a_bound_that_is_rounded_to_nearest_would_be_found(template: str) -> None:
    assert len(_badly_formatted(template)) == 1


def test_what_rounds_outwards_or_only_asks_is_let_through() -> None:
    template = """{{ epsilon | up(3) }}{{ "x %s" % (delta | up) }}{% if epsilon > 13.8 %}{% endif %}
    {{ epsilon }}{{ c.reasons.epsilon | upper }}{{ r.gamma.rate | n }}
    {{ "a" if 2 * epsilon > 3 else own | share }}{{ failure | up_percent }}"""
    assert _badly_formatted(template) == []


def _messages_with_bounds() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                words = re.findall(r"\w+", ast.unparse(node.value))
                if any(_BOUND.fullmatch(word) for word in words) and "format_" not in ast.unparse(node.value):
                    yield f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"


def test_no_message_formats_a_bound_by_itself() -> None:
    assert list(_messages_with_bounds()) == []


# Cards, reports and pages, rendered over a grid: no number lies just on the wrong side of what it bounds.

_NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)( ?%)?")
_GRID = [
    # epsilon, delta, share (of secrets, of a guess), threshold
    (1.02761, 1.23456e-6, 0.0148712, 61),
    (0.29999, 9.99e-7, 0.9990001, 61),
    (2.30049, 3.00004e-8, 0.00010049, 61),
    (5.55551, 7.7777e-5, 0.333334, 61),
    (24.38171, 4.00000001e-9, 0.071, 61),
    (0.0, 1.23456e-6, 0.0148712, 61),
]


def _numbers(page: str) -> set[Fraction]:
    """All that is printed, a percentage as the share that it is."""
    return {Fraction(n.replace(",", "")) / (100 if share else 1) for n, share in _NUMBER.findall(page)}


def _wrong(page: str, upper: Mapping[str, Fraction], lower: Mapping[str, Fraction]) -> list[str]:
    """Names of bounds beside which a number stands that is too small (large), or that are not printed."""
    found, near = [], Fraction(1, 40)
    for bounds, sign in ((upper, 1), (lower, -1)):
        for name, exact in bounds.items():
            off = [(number - exact) * sign for number in _numbers(page) if abs(number - exact) <= near * exact]
            found += [f"{name}: {[*map(float, off)]}"] if not off or min(off) < 0 else []
    return found


@cache
def _exact(epsilon: float, delta: float, share: float) -> dict[str, Fraction]:
    """What the numbers of one row of the grid bound, at 80 digits, by other code than the package's."""
    with mpmath.workdps(80):
        times = Fraction(str(mpmath.exp(mpmath.mpf(repr(epsilon)))))
    chance = Fraction(repr(delta))
    return {
        "epsilon": Fraction(repr(epsilon)),
        "delta": chance,
        "share": Fraction(repr(share)),
        "times": times,
        "one in": 1 / chance,
        "guess": (times + 99 * chance) / (99 + times),
    }


def _card(epsilon: float, delta: float, share: float, **more: Any) -> dict[str, Any]:
    measured = {"labels": 7, "confidence": 0.95, "date": "2026-11-02"}
    epsilons = (
        *("epsilon", "epsilon_confidentiality", "epsilon_bayesian", "epsilon_substitution"),
        *("epsilon_add_remove", "epsilon_sound", "epsilon_with_public"),
    )
    return {
        "format": "redactory-guarantee/2",
        "kind": "lstm",
        "task": "next-word",
        "model": "crt",
        "trainer": "crt",
        "holds": True,
        "unit": "one secret",
        "relation_meaning": "m",
        "relation": "r",
        "reasons": {},
        "holds_reason": None,
        "recall": "",
        "delta": delta,
        "coverage_failure": share,
        "epsilon_group": {"2": epsilon},
        "seeded": False,
        "vocabulary": {"entries": 3, "fit": {"tokens_per_word": None}},
        "accountants": None,
        "remarks": [],
        "sampling_rate": None,
        "run": "run",
        "assumptions": [],
        "not_covered": [],
        "public_labels": [],
        "event": "",
        "curve": {},
        **dict.fromkeys(epsilons, epsilon),
        "miss_rates": {"gamma_upper": share, "delta_2_upper": share, "measured": measured},
        **more,
    }


def _shown(page: Iterable[Any]) -> str:
    return "\n".join(f"{part.title} {part.rows}" if isinstance(part, Table) else str(part or "") for part in page)


def _pages(epsilon: float, delta: float, share: float, threshold: int) -> Iterator[tuple[str, str, str]]:
    """(page, its text, which bounds it prints) for every page on which a guarantee stands."""
    route = {"epsilon": epsilon, "delta": delta, "threshold": threshold, "strategy": "count"}
    card = _card(epsilon, delta, share)
    counted = {**card, "selection": route}
    of_units = {**counted, "format": UNITS_FORMAT, "relation": "r", "privacy_unit": "users", "curve": {"1": epsilon}}
    del (counted["epsilon_sound"], counted["epsilon_with_public"], card["epsilon_sound"], card["epsilon_with_public"])
    yield "model card", render_guarantee_page(card), "epsilon delta share times"
    yield "model card, by count", render_guarantee_page(counted), "epsilon delta times guess"
    yield "model card, units", render_guarantee_page(of_units), "epsilon delta times"
    policies = {"strict": {"hash": "a" * 64}, "conservative": {"hash": "b" * 64}}
    run = {**manifest(), "route": route, "policies": policies}
    run["dedup"] = {**run["dedup"], "splits": {}}
    yield "data set card", render_dataset_card("run", run), "epsilon delta times"
    said = {**run, "date": "2026-01-01", "release": 1, "models": [], "policies": dict.fromkeys(policies, "a" * 64)}
    yield "export card", render_export_card(said), "epsilon delta times"
    written = {"run": "run", "model": "crt", "counts": {"public": 3}, "columns": {}, "histogram": None}
    written |= {"sampling": {"temperature": 1, "top_p": 1, "tokens": 9}, "labels": None}
    del written["columns"], written["labels"]
    yield "synthetic card", render_synthetic_card({**written, "versions": run["versions"]}, card), "epsilon delta"
    for name, one in (("report", card), ("report, by count", counted), ("report, units", of_units)):
        figured = " ".join(metric.figure or metric.sentence for metric in list_card_metrics(one))
        wanted = "epsilon one in" + (" times" if epsilon < 6.9 else "") + ("" if one is of_units else " share")
        yield name, " ".join([*list_promises(one), figured]), wanted
    yield "figures", _shown(describe_guarantee(card)), "epsilon delta share"
    audit = {
        "canaries": 3,
        "epsilon_lower": share,
        "epsilon_upper": epsilon,
        "comparable": True,
        "holds": True,
        "confidence": 0.95,
    }
    yield "audit", describe_audit_result(audit), "epsilon lower"
    one = {"training": "t", "steps": 3, "epsilon_after": epsilon, "delta": delta}
    budget = {"budget": "b", "spent": epsilon, "epsilon": epsilon, "delta": delta, "unit": "u", "trainings": [one]}
    yield "budget", _shown(describe_budget(budget)), "epsilon delta"
    yield "promise", _shown(describe_promise({"model": "m", "guarantee": {**card, "reason": ""}})), "epsilon delta"
    given = {"misses": 3, "rate": share, "upper": share}
    misses = {"n": 9, "gamma": given, "delta_2": given, "confidence": 0.95, "labels": {}}
    left = {"labels": {}, "secrets": 9, "left_public": 0, "left_private": 0}
    yield "recall", _shown(describe_measurements({"recall": {"misses": misses, "left": left}})), "share"
    missed = {"misses": misses, "left": left, "secrets": 9, "texts": 3}
    yield "misses", load_template("report_misses.html.j2").render(missed=missed, resting=[], open=""), "share"
    bloom = {"public": {"measured_on": 9, "measured_lost": 1, "loss_rate_upper": share, "capacity": 9}}
    bloom["public"] |= {"error_rate": 0.001, "texts_added": 5}
    yield "duplicates", " ".join(summarize_dedup({"bloom": bloom})), "share"


@pytest.mark.parametrize("row", _GRID)
def test_every_printed_bound_holds(row: tuple[float, float, float, int]) -> None:
    exact, wrong = _exact(*row[:3]), {}
    for name, page, printed in _pages(*row):
        wanted = [key for key in exact if key in printed and (key == "delta" or exact[key])]
        lower = {"share": exact["share"]} if "lower" in printed else {}
        lower |= {"one in": exact["one in"]} if "one in" in printed else {}
        upper = {key: exact[key] for key in wanted if key != "one in"}
        if failed := _wrong(page, upper, lower):
            wrong[name] = failed
    assert wrong == {}


def test_every_card_begins_with_the_answers_to_five_questions() -> None:
    cards = [page for name, page, _ in _pages(*_GRID[0]) if "card" in name]
    assert len(cards) == 6
    assert all(first_lines(page) for page in cards)


# What no sentence may say, and the numbers that sentences state.

_FALSE = re.compile(
    r"except with (?:a )?probability|but for a chance of|apart from (?:a case|an event) of probability"
    r"|made no difference at all|learn nothing about it|nobody said or wrote"
    r"|odds (?:at most|of a)|-fold\b.{0,40}odds"
    r"|odds.{0,80}-fold"
    # ε without δ; a promise of shards; of a copy, of a list, of a policy, more than what was found
    r"|[Ee]psilon bounds|shards that have (?:one|a guarantee)|without personal data|never misses (?:its|a)\b"
    # whatever is tried, of whatever else is there; what a failed attack shows; arithmetic that hides all
    r"|against every attack|No more than chance|addition gives nothing away|gives nothing away scores 50%\."
    # every secret, where one that repeats, or that both policies missed, is not meant
    r"|(?:figure|for|promise) (?:for )?every secret(?! (?:in|of|that)\b)(?:[,;.:]| alike)"
    # a bound of a share without its confidence; a log or an error that is free of text by theorem
    r"|bounded by labelling, never|never contain text|at most this share [^.,]*\."
    r"|an audit how much it shows at least"
    r"|guarantees? (?:that )?no(?:thing)? (?:leak|is learn)|(?:fully|completely|perfectly) (?:anonym|safe)",
    re.DOTALL,
)
_SAID = [
    *TEMPLATES,
    *PACKAGE.rglob("*.toml"),
    *(page for page in EVERYTHING if page.name != "CHANGELOG.md"),
    *(ROOT / "docs").rglob("*.svg"),
]


@pytest.mark.parametrize("page", _SAID, ids=name_of)
def test_no_sentence_says_what_is_no_theorem(page: Path) -> None:
    text = " ".join(re.sub(r"<[^>]*>", "", page.read_text(encoding="utf-8")).split())
    # the page of proofs says why it is false
    text = text.replace("It is *not* so that odds rise at most e^ε-fold except with probability δ", "")
    assert not _FALSE.search(text)


def test_the_table_of_what_an_epsilon_is_worth_is_rounded_up() -> None:
    page = (ROOT / "docs/how-to/guarantee.md").read_text(encoding="utf-8")
    table = page[page.index("### What an ε is worth") :]
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+)% \|$", table, re.MULTILINE)
    assert [float(epsilon) for epsilon, _ in rows] == [0.5, 1.0, 2.0, 4.0, 8.0]
    for epsilon, percent in rows:
        exact = 100 * _exact(float(epsilon), 1e-5, 0.5)["guess"]
        step = Fraction(10) ** (len(str(int(exact))) - 2)
        assert exact <= Fraction(percent) < exact + step, epsilon


def test_the_tutorial_and_the_proofs_state_the_numbers_that_follow() -> None:
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    assert f"{TEMPLATE_FILTERS['factor'](8.0)} times as often" in tutorial
    # P(loss > epsilon) of one unsampled step, far above delta: why odds are not spoken of
    shift, delta = 2.0 / 200.0, 1e-5
    epsilon = brentq(
        lambda e: norm.cdf(shift / 2 - e / shift) - np.exp(e) * norm.cdf(-shift / 2 - e / shift) - delta, 0, 1
    )
    stated = re.search(r"σ = 200 and δ = 10⁻⁵ that has probability (\d\.\d+)", _proofs())
    assert stated is not None
    assert float(stated[1]) == pytest.approx(norm.sf(epsilon / shift - shift / 2), rel=0.02)


def test_what_labels_show_is_rounded_up() -> None:
    page = (ROOT / "docs/explanation/confidentiality.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for labels, *stated in rows:
        n = int(labels.replace(",", ""))
        for misses, percent in zip((0, 1, 3), stated, strict=True):
            exact = 100 * float(beta.ppf(0.95, misses + 1, n - misses))
            assert exact <= float(percent) < 1.1 * exact, (n, misses)


def test_what_one_message_costs_is_rounded_up() -> None:
    page = (ROOT / "docs/how-to/ldp.md").read_text(encoding="utf-8")
    stated = re.search(r"ε = ([\d.]+) for z = 2, ([\d.]+) for z = 4, ([\d.]+) for z = 8", page)
    assert stated is not None
    for noise, epsilon in zip((2, 4, 8), map(float, stated.groups()), strict=True):
        shift = 2 / noise
        sides = [norm.cdf(sign * shift / 2 - epsilon / shift) for sign in (1, -1)]
        assert 0.9e-5 < sides[0] - np.exp(epsilon) * sides[1] <= 1e-5, noise


def test_what_chance_gives_a_canary_is_stated() -> None:
    page = (ROOT / "docs/explanation/measurements.md").read_text(encoding="utf-8")
    stated = re.search(
        r"Chance gives ([\d.]+) bits on average.*?is ([\d.]+) bits on average and stays below ([\d.]+) bits",
        page,
        re.DOTALL,
    )
    assert stated is not None
    one, ten, quantile = map(float, stated.groups())
    # an exposure of a number that the model never saw is exponential, with mean 1 / ln 2
    assert one == round(1 / np.log(2), 1)
    assert ten == round(sum(1 / k for k in range(1, 11)) / np.log(2), 1)
    assert 0.95 <= (1 - 2.0**-quantile) ** 10 < 0.96


def _proofs() -> str:
    return (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
