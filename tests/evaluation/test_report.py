"""The report: whole, escaped, loading nothing, and silent about private text."""

from __future__ import annotations

import copy
import html
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.evaluation.report import (
    FlowBar,
    build_flow_chart,
    build_model_report,
    format_share,
    list_card_metrics,
    list_promises,
    render_findings,
    render_pages,
    render_report,
    write_report,
)
from redactory.redaction.folder import RunFolder
from tests.evaluation.report_run import (
    COUNTS,
    PRIVATE_TEXTS,
    PUBLIC_TEXTS,
    add_models,
    add_result,
    card,
    first_lines,
    manifest,
    write_run,
)

_FOLLOWED = {"src", "href", "action", "data", "xlink:href"}
_VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Page(HTMLParser):
    """Checks that tags nest, and keeps what a reader sees and what a browser would follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.targets: list[str] = []
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [value or "" for name, value in attrs if name in _FOLLOWED]
        self.ids.update(value or "" for name, value in attrs if name == "id")
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "run")


@pytest.fixture
def page(run: RunFolder) -> str:
    add_models(run)
    return render_report(run)


def test_it_is_sound_html_that_loads_and_runs_nothing(page: str) -> None:
    parsed = _Page(page)
    assert parsed.targets
    assert all(target.startswith("#") and target[1:] in parsed.ids for target in parsed.targets)
    assert not parsed.tags & {"script", "link", "img", "iframe", "object", "embed", "form"}
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    assert "Content-Security-Policy\" content=\"default-src 'none'" in page


@pytest.mark.parametrize(("public", "private"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_report_quotes_public_points_and_never_a_private_one(tmp_path: Path, public: bool, private: bool) -> None:
    run = write_run(tmp_path / "run")
    for there, folder in ((public, run.public), (private, run.private)):
        for part in () if there else folder.iterdir():
            part.unlink()
    page = render_report(run)
    shown = "".join(_Page(page).text)
    assert len(re.findall("<bdi>(.*?)</bdi>", page)) == (len(PUBLIC_TEXTS) if public else 0)
    assert all((text in shown) == public for text in PUBLIC_TEXTS)
    assert "<script>" not in page
    assert ("There is no public example." in shown) != public
    assert not any(f"<bdi>{html.escape(text)}</bdi>" in page for text in PRIVATE_TEXTS)
    assert not any(word in page.lower() for word in ("quillfeather", "zacharyville", "wilhelmina"))


def test_the_counts_of_the_manifest_are_all_there(page: str) -> None:
    shown = "".join(_Page(page).text)
    for name, count in COUNTS.items():
        assert f"{count:,}" in shown, name
    for hit in manifest()["spans"]:
        assert hit["label"] in shown
        assert f"{hit['count']:,}" in shown
    for word in ("broken_json", "misaligned", "rule:digit", "Fresh key", "77aa77aa", "train.jsonl"):
        assert word in shown
    assert "private files are not encrypted" in shown
    assert "unsigned" in shown
    assert "The sums hold" in shown
    assert 'class="broken"' not in page


def test_models_are_told_with_their_promises_and_the_lack_of_them(page: str) -> None:
    shown = " ".join("".join(_Page(page).text).split())
    assert "at most 20.5 times what it would be otherwise, plus 1 in 100,000" in shown
    assert "at most 4.02 times" in shown
    assert "misses at most 14.3% of the sensitive spans" in shown
    assert "at most 0.0098%" in shown
    assert "delta 1e-05 is not above the bound of delta_2" in shown
    assert "Nothing is promised about this model: it was trained on the original text without noise" in shown
    for figure in ("6.92", "19.9", "1.31"):
        assert figure in shown
    # the table of models has a heading for each figure
    section = page[page.index('id="models"') :]
    rows = re.findall(r"<tr>.*?</tr>", section[: section.index("</table>")], re.DOTALL)
    assert len(rows) >= 3
    assert len({len(re.findall(r"<t[hd]\b", row)) for row in rows}) == 1


def test_a_broken_sum_a_run_without_models_and_an_empty_one_are_shown(tmp_path: Path) -> None:
    body = copy.deepcopy(manifest())
    body["counts"]["private"] += 1
    page = render_report(write_run(tmp_path / "run", body))
    assert page.count('class="broken"') == 1
    assert "A sum does not hold" in page
    assert "No model has been trained on these splits yet" in page
    assert "what it would be otherwise" not in page
    body["counts"] = dict.fromkeys(COUNTS, 0)
    body.update(rejected={}, quarantined={}, reasons={}, hits=[], stages=[], inputs=[], masks=0)
    _Page(render_report(write_run(tmp_path / "empty", body)))


def test_it_is_written_whole_private_and_the_same_each_time(run: RunFolder) -> None:
    first = write_report(run).read_bytes()
    assert stat.S_IMODE(run.report.stat().st_mode) == 0o600
    assert write_report(run).read_bytes() == first == render_report(run).encode()


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            decision: st.integers(0, 10**9)
            for decision in ("public", "private", "public_duplicate", "private_duplicate", "quarantined")
        }
    )
)
def test_the_flow_holds_every_count_that_is_not_nothing(decisions: dict[str, int]) -> None:
    points = sum(decisions.values())
    top = build_flow_chart({**decisions, "rows": points + 1, "documents": points, "rejected": 1, "examples": points})

    def below(bar: FlowBar) -> list[FlowBar]:
        assert not bar.parts or sum(part.count for part in bar.parts) == bar.count
        return [bar, *(later for part in bar.parts for later in below(part))]

    leaves = [bar for bar in below(top) if not bar.parts]
    assert sorted(bar.count for bar in leaves) == sorted(count for count in (*decisions.values(), 1) if count)


def test_shares_never_round_to_nothing_or_to_all() -> None:
    assert (format_share(0, 10), format_share(0, 0), format_share(10, 10)) == ("0%", "0%", "100.0%")
    assert (format_share(1, 10**6), format_share(10**6 - 1, 10**6), format_share(1, 3)) == ("<0.1%", ">99.9%", "33.3%")


def _rates(measured: dict[str, Any] | None) -> dict[str, Any]:
    return {"gamma_upper": 0.1, "delta_2_upper": 0.01, "measured": measured}


_PRIVATE = card(
    "crt", epsilon_substitution=0.5, epsilon_bayesian=0.0, epsilon_confidentiality=0.0, coverage_failure=0.0
)
_UNMEASURED = card(
    "crt",
    epsilon_substitution=9.0,
    epsilon_bayesian=9.0,
    epsilon_confidentiality="no labels",
    coverage_failure="no labels",
)
_UNMEASURED["miss_rates"]["gamma_upper"] = 1.0
_LABELLED = card("crt", epsilon_substitution=0.5, epsilon_bayesian=0.2, coverage_failure=0.01)


@pytest.mark.parametrize(
    ("told", "parts"),
    [
        (_PRIVATE, ["at most 1.65 times", "at most what it would be otherwise, plus", "every example is private"]),
        (_UNMEASURED, ["so large a factor", "has not been measured"]),
        ({**_LABELLED, "miss_rates": _rates(None)}, ["times", "times", "Up to 1% of all sensitive spans"]),
        ({**_LABELLED, "miss_rates": _rates({"confidence": 0.95})}, ["", "", "", "95% confidence"]),
        (
            card("dpsgd", epsilon_substitution=1.0, epsilon_bayesian="not used"),
            ["any other private sentence in its place"],
        ),
        (card("sgd", epsilon_substitution="no noise was added"), []),
    ],
)
def test_promises_follow_the_card(told: dict[str, Any], parts: list[str]) -> None:
    sentences = list_promises(told)
    assert len(sentences) == len(parts)
    assert all(part in sentence for part, sentence in zip(parts, sentences, strict=True))


def test_a_figure_that_does_not_exist_is_not_stated() -> None:
    assert [bool(metric.figure) for metric in list_card_metrics(_UNMEASURED)] == [True, True, False, True, False]


# Measurements and attacks: in order, and alarmed where it should be.


_AUDIT = {"confidence": 0.95, "epsilon_upper": None, "holds": True}


def _membership(low: float) -> dict[str, Any]:
    accuracy = {"value": low + 0.05, "low": low, "high": low + 0.1}
    return {"individual": {"accuracy": accuracy}, "group": {"accuracy": accuracy}}


@pytest.fixture
def attacked(run: RunFolder) -> RunFolder:
    """Two models, ``crt`` that withstood its attacks and ``sgd`` that did not."""
    add_models(run)
    add_result(run, "crt", "membership", _membership(0.45))
    add_result(run, "sgd", "membership", _membership(0.7))
    add_result(run, "crt", "audit", {**_AUDIT, "epsilon_lower": 0.4, "epsilon_upper": 3.02})
    add_result(run, "sgd", "audit", {**_AUDIT, "epsilon_lower": 9.0, "holds": None})
    return run


def test_each_model_has_utility_promise_and_attacks_in_this_order(attacked: RunFolder) -> None:
    page = render_report(attacked)
    for name in ("crt", "sgd"):
        article = page[page.index(f"Model “{name}”") :]
        article = article[: article.index("</article>")]
        places = [article.index(f"<h4>{h}") for h in ("How good", "What is promised", "What attacks found")]
        assert places == sorted(places)
    crt, sgd = (build_model_report(attacked.get_model_folder(name)) for name in ("crt", "sgd"))
    assert not any(one.alarming for one in crt.attacks)
    assert [one.alarming for one in sgd.attacks if one.title.startswith("membership")] == [True, True]


def test_the_first_screen_answers_five_questions_in_plain_words(attacked: RunFolder) -> None:
    write_report(attacked)
    crt, sgd = (attacked.get_model_folder(name) for name in ("crt", "sgd"))
    pages = [first_lines(" ".join(_Page(p.report.read_text("utf-8")).text)) for p in (attacked, crt, sgd)]
    pages += [first_lines(folder.measured.read_text("utf-8")) for folder in (crt, sgd)]
    run, good, bad, *_ = pages
    for words in ("118,402 examples", "was not measured", "crt”: epsilon 3.02", "sgd”: nothing is promised"):
        assert words in run
    assert "Only under this promise" in good
    assert "No." in bad
    assert "2 of 4 attack results are alarming" in bad


def test_what_forbids_a_release_is_said_first(tmp_path: Path) -> None:
    body = copy.deepcopy(manifest())
    assert "Nothing here forbids it" in render_report(write_run(tmp_path / "fine", body))
    body["uncovered"]["kinds"] = {"names": ["en"]}
    for accepted, forbidden in (((), True), (("names",), False)):
        body["configuration"] = {"release": {"allow_uncovered_kinds": list(accepted)}}
        page = first_lines("".join(_Page(render_report(write_run(tmp_path / f"{forbidden}", body))).text))
        assert ("Nothing here forbids it" in page) != forbidden
        assert "Not covered: no engine" in page
    body["counts"] = {**COUNTS, "private": 3}
    assert "A sum of the counts does not hold" in first_lines(render_report(write_run(tmp_path / "sum", body)))


def test_exposure_is_set_beside_chance_and_a_broken_promise_is_said_aloud() -> None:
    inserted = [{"inserted": True}] * 10
    canary = {"candidates": 10**6, "canaries": inserted}
    for results, alarming, words in (
        ({"canary": {"highest_exposure": 6.9, **canary}}, False, "no more than chance"),
        ({"canary": {"highest_exposure": 9.0, **canary}}, True, "7.62 bits: this is more than chance"),
        ({"audit": {**_AUDIT, "epsilon_lower": 5.0, "epsilon_upper": 1.0, "holds": False}}, True, "do not release"),
        ({"audit": {**_AUDIT, "epsilon_lower": 0.5, "epsilon_upper": 1.0}}, False, "not contradict"),
    ):
        (found,) = render_findings("attacks", results)
        assert found.alarming == alarming
        assert words in found.sentence


def test_what_was_not_measured_is_said(tmp_path: Any) -> None:
    assert render_findings("utility", {}) == render_findings("attacks", {}) == []
    run = write_run(tmp_path / "other")
    add_models(run)
    for evaluation in ("perplexity", "canary"):
        run.get_model_folder("crt").get_result_folder(evaluation).success.unlink()
    page = dict(render_pages(run))[run.get_model_folder("crt").report]
    assert "was not measured" in page
    assert "No attack on this model was tried" in page
