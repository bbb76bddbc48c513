"""The review page: who may see it, what a row's answer becomes, and what a run's page decides."""

from __future__ import annotations

import html
import json
import logging
import re
import shutil
import stat
import webbrowser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml
from starlette.testclient import TestClient

import redactory
from redactory.evaluation.labelled import read_labelled_rows
from redactory.flows.release_commands import describe_release
from redactory.flows.review.access import ADDRESS, AccessGuard
from redactory.flows.review.pages import LABEL_KEYS, Review, build_app
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import create_key_file
from redactory.pipelines.curation.loading import load_text_config
from redactory.pipelines.curation.policy import Policy
from redactory.pipelines.curation.release_log import read_log
from redactory.pipelines.documents import serve_http
from redactory.pipelines.measure.annotation import LabelSheet, compare_spans, split_words
from redactory.redaction import RunFolder, route_example
from redactory.redaction.folder import JobFolder
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.support import DigitDetector, invoke_command, read_release_state, write_rows

PORT = 8790
ORIGIN = f"http://127.0.0.1:{PORT}"
TEXTS = ["Zaphod pays 4711, <b>now</b>", "nothing here", "😀 Mail to zoe@example.org"]
POLICY: dict[str, Any] = {"detect": {"spacy": None, "tagger": None}}


class Browser:
    """A client of a page that was opened with its token."""

    def __init__(self, place: Path, annotator: str = "ann", detector: Any = None) -> None:
        self.review = Review(place, annotator, POLICY)
        if detector is not None:
            # in place of the engines
            self.review.get_sheet("file").policy = Policy(POLICY, detector=detector)
        self.guard = AccessGuard(build_app(self.review), PORT)
        self.address = self.guard.address
        self.client = TestClient(self.guard, base_url=ORIGIN, raise_server_exceptions=False)

    def sign_in(self) -> Browser:
        assert self.client.get(self.address).status_code == 200
        return self

    def get(self, path: str) -> Any:
        return self.client.get(path)

    def post(self, path: str, origin: str | None = ORIGIN, **form: str) -> Any:
        return self.client.post(path, data=form, headers={"origin": origin} if origin else {})


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "tickets.jsonl", [{"text": text} for text in TEXTS])


@pytest.fixture
def browser(rows_file: Path) -> Browser:
    return Browser(rows_file, detector=DigitDetector()).sign_in()


def _save(browser: Browser, row: int, *spans: tuple[int, int, str]) -> Any:
    return browser.post(f"/sheets/file/rows/{row}", spans=json.dumps([_span(*span) for span in spans]))


def _span(start: int, end: int, label: str) -> dict[str, Any]:
    return {"start": start, "end": end, "label": label}


# ---- access


def test_the_token_opens_the_page_once_and_the_cookie_is_for_this_page_only(rows_file: Path) -> None:
    browser = Browser(rows_file)
    for path in ("/", "/sheets/file/rows/1", "/review.js", "/?token=", "/?token=wrong"):
        answer = browser.get(path)
        assert answer.status_code == 403
        assert "Zaphod" not in answer.text
    opened = browser.client.get(browser.address)
    [cookie] = opened.headers.get_list("set-cookie")
    assert {"httponly", "samesite=strict", "path=/"} <= set(cookie.lower().split("; "))
    assert "domain" not in cookie.lower()
    assert browser.get("/sheets/file/rows/1").status_code == 200
    # another browser that saw the address
    other = TestClient(browser.guard, base_url=ORIGIN)
    assert other.get(browser.address).status_code == 403
    assert other.get("/", cookies={f"redactory-review-{PORT}": "guess"}).status_code == 403


def test_a_head_request_does_not_use_up_the_token(rows_file: Path) -> None:
    browser = Browser(rows_file)
    assert browser.client.head(browser.address).status_code == 403
    assert browser.client.get(browser.address).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""])
def test_another_host_name_is_refused_even_with_the_cookie(browser: Browser, host: str) -> None:
    answer = browser.client.get("/sheets/file/rows/1", headers={"host": host})
    assert answer.status_code == 403
    assert "Zaphod" not in answer.text


@pytest.mark.parametrize("origin", [None, "null", "http://127.0.0.1:9999", "https://evil.example", ORIGIN + "0"])
def test_a_form_of_another_page_changes_nothing(browser: Browser, origin: str | None) -> None:
    assert browser.post("/sheets/file/rows/1", origin, spans="[]").status_code == 403
    assert browser.review.get_sheet("file").read_answers() == {}


def test_a_form_that_the_browser_calls_foreign_changes_nothing(browser: Browser) -> None:
    headers = {"origin": ORIGIN, "sec-fetch-site": "same-site"}
    answer = browser.client.post("/sheets/file/rows/1", data={"spans": "[]"}, headers=headers)
    assert answer.status_code == 403
    assert browser.review.get_sheet("file").read_answers() == {}


def test_every_answer_forbids_storing_framing_and_foreign_content(browser: Browser) -> None:
    stranger = TestClient(browser.guard, base_url=ORIGIN)
    for answer in (browser.get("/"), browser.get("/review.css"), browser.get("/nowhere"), stranger.get("/")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"


def test_pages_name_no_foreign_address_and_no_inline_code(browser: Browser) -> None:
    _save(browser, 1, (0, 6, "PERSON"))
    for path in ("/sheets/file", "/sheets/file/rows/1", "/sheets/file/rows/2", "/review.js", "/review.css"):
        page = browser.get(path).text
        assert not re.search(r"https?://|\bon\w+=|style=|@import|url\(|<script>|javascript:", page), path


def test_only_the_loopback_address_is_listened_on() -> None:
    with serve_http.listen(ADDRESS, 0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(ConfigurationError, match=f"--port: cannot listen on 127.0.0.1, port {port}"):
            serve_http.listen(ADDRESS, port, "--port")


def test_the_browser_is_started_without_the_token(rows_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of the machine can list the command lines of its processes."""
    opened, started = list[str](), list[str]()

    def run_server(guard: AccessGuard, *_: Any) -> None:
        page = Path(urlparse(opened[0]).path)
        assert (stat.S_IMODE(page.stat().st_mode), stat.S_IMODE(page.parent.stat().st_mode)) == (0o600, 0o700)
        assert guard.address in page.read_text()
        started.append(guard.address.partition("token=")[2])

    monkeypatch.setattr(serve_http, "run_server", run_server)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert invoke_command("review", rows_file).exit_code == 0
    [address], [token] = opened, started
    assert address.startswith("file:///")
    assert token not in address
    assert not Path(urlparse(address).path).exists()


# ---- errors quote nothing


def test_an_unexpected_error_shows_and_logs_no_text(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("Zaphod pays 4711")

    caplog.set_level(logging.DEBUG)
    _save(browser, 1)
    monkeypatch.setattr(LabelSheet, "find_policy_spans", fail)
    answer = browser.get("/sheets/file/rows/1")
    assert answer.status_code == 500
    assert "unexpected ValueError" in answer.text
    shown = "".join((answer.text, *capfd.readouterr(), caplog.text))
    assert "Zaphod" not in shown
    assert "4711" not in shown


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/nowhere", 404), ("/sheets/file/rows/0", 400), ("/sheets/file/rows/4", 400), ("/sheets/x", 400)),
        *(("/runs/x", 400), ("/sheets/file/agreement/ann/bob", 400), ("/sheets/file/rows/1?x=%ff", 200)),
    ],
)
def test_unknown_pages_are_not_there(browser: Browser, path: str, status: int) -> None:
    assert browser.get(path).status_code == status


@pytest.mark.parametrize(
    "spans",
    [
        "",
        "null",
        "{}",
        "[1]",
        '[{"start": 0}]',
        '[{"start": 0, "end": 6, "label": "ZAPHOD"}]',
        '[{"start": 6, "end": 6, "label": "PERSON"}]',
        '[{"start": 0, "end": 900, "label": "PERSON"}]',
        '[{"start": -1, "end": 3, "label": "PERSON"}]',
        '[{"start": "0", "end": 3, "label": "PERSON"}]',
        '[{"start": 0.0, "end": 3, "label": "PERSON"}]',
        '[{"start": [], "end": 3, "label": ["PERSON"]}]',
        "[" * 100_000,
    ],
)
def test_an_invalid_answer_is_refused_and_not_saved(browser: Browser, spans: str) -> None:
    answer = browser.post("/sheets/file/rows/1", spans=spans)
    assert answer.status_code == 400
    assert browser.review.get_sheet("file").read_answers() == {}


def test_a_form_larger_than_a_megabyte_is_refused(browser: Browser) -> None:
    assert browser.post("/sheets/file/rows/1", spans=" " * (1 << 20)).status_code == 413


# ---- labelling


def test_a_saved_row_is_one_that_measuring_and_fitting_read(browser: Browser, rows_file: Path) -> None:
    assert _save(browser, 3, (10, 25, "EMAIL_ADDRESS")).status_code == 200
    assert _save(browser, 1, (12, 16, "ACCOUNT"), (0, 6, "PERSON")).status_code == 200
    path = rows_file.with_name("tickets.ann.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    rows = list(read_labelled_rows(path))
    assert [row["text"] for row in rows] == [TEXTS[0], TEXTS[2]]
    assert [[row["text"][span["start"] : span["end"]] for span in row["spans"]] for row in rows] == [
        ["Zaphod", "4711"],
        ["zoe@example.org"],
    ]
    measured = redactory.evaluate_detect(path, POLICY, detector=DigitDetector())
    assert (measured["rows"], measured["spans"]) == (2, 3)
    assert {p.name for p in rows_file.parent.iterdir()} == {"tickets.jsonl", "tickets.ann.jsonl"}


def test_policy_decisions_are_hidden_until_the_row_is_answered(browser: Browser) -> None:
    before = browser.get("/sheets/file/rows/1").text
    assert "policy" not in before
    assert browser.review.get_sheet("file").policy._custom_detector.detected_texts == []
    _save(browser, 1, (0, 6, "PERSON"))
    after = browser.get("/sheets/file/rows/1").text
    assert re.search(r"<td>only policy: NUMBER</td><td>4711</td>", after)
    assert re.search(r"<td>only you: PERSON</td><td>Zaphod</td>", after)
    assert "policy" not in browser.get("/sheets/file/rows/2").text


def test_spans_that_a_file_brings_are_the_policys_and_are_hidden_too(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 6, "label": "PERSON"}]
    rows = [{"id": "7", "chosen_to_fit": "doubt", "text": TEXTS[0], "spans": spans}]
    browser = Browser(write_rows(tmp_path / "chosen.jsonl", rows)).sign_in()
    page = browser.get("/sheets/file/rows/1").text
    assert 'data-spans="[]"' in page
    assert 'class="word policy"' not in page
    _save(browser, 1, (12, 16, "ACCOUNT"))
    assert "only policy: PERSON" in browser.get("/sheets/file/rows/1").text
    [row] = read_labelled_rows(tmp_path / "chosen.ann.jsonl", to_fit=True)
    # a row that was not drawn at random must not be measured on
    assert (row["chosen_to_fit"], row["id"]) == ("doubt", "7")
    with pytest.raises(InputError, match="chosen by redactory label active"):
        list(read_labelled_rows(tmp_path / "chosen.ann.jsonl"))


def test_two_annotators_do_not_see_each_other(rows_file: Path) -> None:
    first, second = (Browser(rows_file, name, DigitDetector()).sign_in() for name in ("ann", "bob"))
    _save(first, 1, (0, 6, "PERSON"))
    assert 'data-spans="[]"' in second.get("/sheets/file/rows/1").text
    _save(second, 1)
    assert first.review.get_sheet("file").list_annotators() == ["ann", "bob"]
    assert first.review.get_sheet("file").read_answers()[1]["spans"] != []


def test_an_answer_changed_after_the_comparison_is_marked(browser: Browser) -> None:
    sheet = browser.review.get_sheet("file")
    _save(browser, 1, (0, 6, "PERSON"))
    _save(browser, 1, (0, 6, "PERSON"))
    assert "revised" not in sheet.read_answers()[1]
    _save(browser, 1)
    _save(browser, 1)
    assert sheet.read_answers()[1]["revised"] is True


def test_text_is_shown_as_text(browser: Browser) -> None:
    page = browser.get("/sheets/file/rows/1").text
    assert "<b>" not in page
    assert ">&lt;</span>" in page


def test_answers_to_another_file_are_not_overwritten(browser: Browser, rows_file: Path) -> None:
    other = rows_file.with_name("tickets.ann.jsonl")
    write_rows(other, [{"text": "other", "spans": [], "review_row": 1}])
    before = other.read_bytes()
    for answer in (browser.get("/sheets/file"), _save(browser, 2)):
        assert answer.status_code == 400
        assert "answers to another file" in answer.text
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a.b", "a/b", "é", "x" * 33])
def test_an_annotators_name_cannot_be_a_path(rows_file: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="--annotator: use 1 to 32 letters"):
        Review(rows_file, name)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.csv", "text\nZoe was here\n", ["Zoe was here"]),
        ("a.txt", "Zoe was here", ["Zoe was here"]),
        ("a.jsonl", '{"text": "Zoe"}\n\n{"text": "Tom"}\n', ["Zoe", "Tom"]),
        ("a.jsonl", '{"text": "Zoe", "spans": []}\n', ["Zoe"]),
    ],
)
def test_files_of_several_formats_are_labelled(tmp_path: Path, name: str, content: str, texts: list[str]) -> None:
    (tmp_path / name).write_text(content)
    sheet = LabelSheet(tmp_path / name, load_text_config(POLICY, (str(tmp_path / name),)), "ann")
    assert [row["text"] for row in sheet.rows] == texts
    sheet.save_answer(1, [])
    assert sheet.find_next_row() == (2 if len(texts) > 1 else None)


def test_labels_are_those_of_the_file_then_those_of_the_policy_each_kind_once(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 1, "label": label} for label in ("PER", "BADGE", "BADGE")]
    path = write_rows(tmp_path / "a.jsonl", [{"text": "Zoe", "spans": spans}])
    labels = LabelSheet(path, load_text_config(POLICY, (str(path),)), "ann").labels
    assert labels[:2] == ["BADGE", "PER"]
    assert labels[-1] == "SECRET"
    assert "PERSON" not in labels
    assert len(labels) <= len(LABEL_KEYS)


@pytest.mark.parametrize("text", ["", "a_b  c's\n\tX1", "日本語 and ไทย", "e\u0301\u200d😀👍🏽", "a\r\nb\0"])
def test_words_cover_the_whole_text_in_order(text: str) -> None:
    words = split_words(text)
    assert "".join(text[start:end] for start, end in words) == text
    assert all(start < end for start, end in words)
    assert all(left[1] == right[0] for left, right in pairwise(words))


def test_words_are_small_enough_to_label() -> None:
    texts = ["日本語", "user_mary", "zoe@x.org", "Müller-Lüdenscheidt"]
    assert [[text[a:b] for a, b in split_words(text)] for text in texts] == [
        ["日", "本", "語"],
        ["user", "_", "mary"],
        ["zoe", "@", "x", ".", "org"],
        ["Müller", "-", "Lüdenscheidt"],
    ]


def test_spans_are_compared_by_place_and_kind() -> None:
    mine = [(0, 3, "PER"), (4, 7, "ORG"), (8, 11, "DATE"), (20, 21, "AGE")]
    policy = [(0, 3, "PERSON"), (4, 7, "DATE"), (8, 10, "DATE"), (12, 13, "URL")]
    sides = {name: [_span(*span) for span in side] for name, side in (("you", mine), ("policy", policy))}
    assert [row["result"] for row in compare_spans("x" * 30, sides)] == [
        "both: PER",
        "you: ORG, policy: DATE",
        "policy: DATE, with other bounds",
        "you: DATE, with other bounds",
        "only policy: URL",
        "only you: AGE",
    ]


# ---- two annotators, errors


def test_agreement_is_of_the_rows_that_both_answered(rows_file: Path) -> None:
    first, second = (Browser(rows_file, name, DigitDetector()).sign_in() for name in ("ann", "bob"))
    assert first.get("/sheets/file/agreement/ann/bob").status_code == 400
    _save(first, 1, (0, 6, "PERSON"))
    _save(second, 2)
    assert "have not answered a common row yet" in first.get("/sheets/file/agreement/ann/bob").text
    _save(first, 3, (10, 25, "EMAIL_ADDRESS"))
    _save(second, 3, (7, 25, "EMAIL_ADDRESS"))
    assert "Agreement of ann and bob" in first.get("/sheets/file").text
    page = _read_cells(first.get("/sheets/file/agreement/ann/bob").text)
    # 7 tokens: 😀, Mail, to and zoe @ example . org; they differ in one ("to" is not in a span of ann)
    labels = page[page.index("EMAIL_ADDRESS") :]
    observed, expected = 7 / 8, (5 / 8 * 6 / 8) + (3 / 8 * 2 / 8)
    assert labels[3].startswith(f"{(observed - expected) / (1 - expected):.2f} (")
    assert (labels[4][:4], labels[5][:6]) == ("0.0%", "100.0%")
    assert page[-3:] == ["3", "EMAIL_ADDRESS 1", "EMAIL_ADDRESS 1"]
    compared = first.get("/sheets/file/rows/3").text.split("Compared with bob")[-1]
    assert _read_cells(compared)[-4:] == [
        *("bob: EMAIL_ADDRESS, with other bounds", "to zoe@example.org"),
        *("you: EMAIL_ADDRESS, with other bounds", "zoe@example.org"),
    ]


def _read_cells(page: str) -> list[str]:
    return [html.unescape(cell) for cell in re.findall(r"<(?:td|p|th[^>]*)>(?:<a[^>]*>)?([^<]*)", page)]


def test_errors_are_those_of_the_command_with_lines_to_copy(browser: Browser, rows_file: Path) -> None:
    _save(browser, 3, (10, 25, "EMAIL_ADDRESS"))
    _save(browser, 1, (0, 6, "PERSON"))
    path = rows_file.with_name("tickets.ann.jsonl")
    r = redactory.evaluate_errors(path, POLICY)
    assert [(group["problem"], group["label"], group["rows"]) for group in r["errors"]] == [("missed", "PERSON", [1])]
    page = browser.get("/sheets/file/errors").text
    assert _read_cells(page)[-4:] == ["1", "missed", "PERSON", "Zaphod"]
    assert 'href="/sheets/file/rows/1"' in page
    [lines] = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    lists = yaml.safe_load(html.unescape(lines))["detect"]["lists"]
    assert lists == {"deny": [{"label": "PERSON", "words": ["Zaphod"]}], "allow": []}
    # with these lines nothing is missed
    assert redactory.evaluate_errors(path, {"detect": {**POLICY["detect"], "lists": lists}})["errors"] == []


# ---- runs and jobs


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with a released run, and one that is held because no example of it can be read."""
    job = Job(tmp_path_factory.mktemp("world"))
    job.write("1.jsonl", "call 55", "Tom was here", "call 66", "fine and well")
    job.night()
    job.write("2.jsonl", "broken Zaphod 4711")
    [held] = job.night()["nights"]
    assert held["state"] == "held"
    return job.job.root


@pytest.fixture
def job(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world, tmp_path / "job", symlinks=True))


def _list_runs(job: Path) -> list[str]:
    return [run["run"] for run in redactory.list_releases(job)["runs"]]


def test_a_job_leads_to_its_runs_and_they_to_what_was_quarantined(job: Path) -> None:
    browser, (released, held) = Browser(job).sign_in(), _list_runs(job)
    start = browser.get("/").text
    assert f'href="/runs/{held}"' in start.split("All runs")[0]
    assert f'href="/runs/{released}"' not in start.split("All runs")[0]
    assert f'href="/runs/{released}"' in start
    page = browser.get(f"/runs/{held}").text
    lines = [line for line in describe_release(redactory.show_release(job / held)) if isinstance(line, str)]
    assert any("no readable example" in line for line in lines)
    for line in lines:
        assert html.escape(line) in page
    assert f"Compared with {released}" in page
    assert "engine_error" in page
    # text is shown for the entry only
    assert "Zaphod" not in page
    [entry] = re.findall(r'href="(/runs/[^"]*/quarantine/[^"]*)"', page)
    assert "<td>broken Zaphod 4711</td>" in browser.get(entry).text


@pytest.mark.parametrize(("decision", "state"), [("approve", "released"), ("reject", "rejected")])
def test_a_decision_in_the_page_is_that_of_the_command(job: Path, decision: str, state: str) -> None:
    browser, (_, held) = Browser(job).sign_in(), _list_runs(job)
    form = {"by": "Ann Lee", "reason": "known <fault>", "decision": decision}
    if decision == "approve":
        refused = browser.post(f"/runs/{held}/decision", **form)
        assert refused.status_code == 400
        assert "--empty" in refused.text
        form["empty"] = "yes"
    assert browser.post(f"/runs/{held}/decision", "http://127.0.0.1:1", **form).status_code == 403
    assert read_release_state(RunFolder(job / held)) == "held"
    assert state in browser.post(f"/runs/{held}/decision", **form).text
    assert read_release_state(RunFolder(job / held)) == state
    last = [record for record in read_log(JobFolder(job)) if record.body["run"] == held][-1]
    assert (last.body["by"], last.body["reason"]) == ("Ann Lee", "known <fault>")
    page = browser.get(f"/runs/{held}").text
    assert "known &lt;fault&gt;" in page
    assert ('name="decision"' in page) is (state == "released")


def test_a_decision_needs_a_name_and_a_choice(job: Path) -> None:
    browser, (_, held) = Browser(job).sign_in(), _list_runs(job)
    for form in ({"decision": "reject", "reason": "x"}, {"by": "Ann", "reason": "x"}, {}):
        assert browser.post(f"/runs/{held}/decision", **form).status_code == 400
    assert read_release_state(RunFolder(job / held)) == "held"


def test_a_sample_of_a_run_is_labelled_and_scored(job: Path) -> None:
    released, _ = _list_runs(job)
    browser = Browser(job / released).sign_in()
    assert f'action="/runs/{released}/samples"' in browser.get("/").text
    drawn = browser.post(f"/runs/{released}/samples", name="first", n="10")
    assert drawn.url.path == f"/sheets/{released}/first"
    assert "already holds a sample" in browser.post(f"/runs/{released}/samples", name="first", n="10").text
    sheet = browser.review.get_sheet(f"{released}/first")
    assert sorted(row["text"] for row in sheet.rows) == ["Tom was here", "call 55", "call 66", "fine and well"]
    for number, row in enumerate(sheet.rows, 1):
        spans = [_span(*match.span(), "NUMBER") for match in re.finditer(r"\d+|Tom", row["text"])]
        browser.post(f"/sheets/{released}/first/rows/{number}", spans=json.dumps(spans))
    page = browser.get(f"/sheets/{released}/first").text
    assert f"redactory label score {job / released} {sheet.get_answers_path()} --sample first" in page
    assert stat.S_IMODE(sheet.get_answers_path().stat().st_mode) == 0o600
    router = make_detector_router(DigitDetector())
    r = redactory.label_score(job / released, sheet.get_answers_path(), name="first", route_texts=router)
    # Tom, whom the first policy does not mask
    assert (r["secrets"], r["misses"]["gamma"]["misses"]) == (3, 1)
    assert redactory.verify(job / released)["ok"]


def make_detector_router(detector: Any) -> Any:
    """Route texts as the run did."""

    def route(texts: Any) -> list[tuple[str, str]]:
        decisions = (route_example(text, found) for text, found in zip(texts, detector.detect(texts), strict=True))
        return [(decision.split, decision.text) for decision in decisions]

    return route


@pytest.mark.parametrize("form", [{"n": "0"}, {"n": "x"}, {"n": "-1"}, {"n": "9" * 30}, {"n": "5", "name": "../x"}, {}])
def test_a_sample_with_wrong_settings_is_refused(job: Path, form: dict[str, str]) -> None:
    browser, (released, _) = Browser(job).sign_in(), _list_runs(job)
    assert browser.post(f"/runs/{released}/samples", **form).status_code == 400
    assert not RunFolder(job / released).samples.exists()


def test_text_of_an_encrypted_run_needs_its_key_and_a_decision_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_key_file("encryption", tmp_path / "key")
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(tmp_path / "key"))
    job = Job(tmp_path)
    job.write("1.jsonl", "call 55", "Tom was here", "broken Zaphod")
    run = job.run()
    redactory.label_random(run.root, 10)
    name, browser = run.root.name, Browser(job.job.root).sign_in()
    paths = [f"/runs/{name}/quarantine/0-0", f"/sheets/{name}/sample", f"/sheets/{name}/sample/rows/1"]
    assert [browser.get(path).status_code for path in paths] == [200] * 3
    monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY_FILE")
    browser = Browser(job.job.root).sign_in()
    answers = [browser.get(path) for path in paths]
    answers.append(Browser(run.get_sample_folder("sample").rows.parent.parent.parent.parent).sign_in().get(paths[2]))
    for answer in answers:
        assert answer.status_code == 400
        assert "encrypted" in answer.text
        assert not re.search("Tom|Zaphod|call", answer.text)
    with pytest.raises(ConfigurationError, match="is encrypted"):
        Review(run.get_sample_folder("sample").rows, "ann")
    page = browser.get(f"/runs/{name}")
    assert page.status_code == 200
    for heading in ("Quarantine", "Label"):
        assert "is encrypted" in page.text.split(f"<h2>{heading}</h2>")[1].split("</section>")[0]
    assert not re.search("Tom|Zaphod", page.text)
    form = {"by": "Ann", "reason": "x", "decision": "reject"}
    assert browser.post(f"/runs/{name}/decision", **form).status_code == 200


def test_the_command_says_what_it_cannot_review(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    expected = {"": "neither a run nor a job", "empty.jsonl": "no row with text", "none.jsonl": "not found: give a run"}
    for place, message in ((tmp_path / name, message) for name, message in expected.items()):
        result = invoke_command("review", place, "--no-browser")
        assert message in str(result.exception)


def test_an_answer_does_not_bring_back_an_erased_file(browser: Browser, rows_file: Path) -> None:
    assert browser.get("/sheets/file/rows/1").status_code == 200
    sheet = browser.review.get_sheet("file")
    rows_file.unlink()
    with pytest.raises(InputError, match="nothing was saved"):
        sheet.save_answer(1, [])
    assert browser.get("/sheets/file/rows/1").status_code == 400
    assert _save(browser, 1, (0, 6, "PERSON")).status_code == 400
    assert not list(rows_file.parent.iterdir())
