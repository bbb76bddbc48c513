"""The review page in Chromium: by keyboard alone and by touch, on a desk and on a phone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page, sync_playwright

import redactory
from redactory.evaluation.labelled import read_labelled_rows
from redactory.redaction import RunFolder
from tests.pipelines.nightly.made_job import Job
from tests.pipelines.support import read_release_state, write_rows

pytestmark = pytest.mark.slow
WIDTHS = (1280, 375)
TEXTS = ["Zaphod pays 4711, <b>now</b>", "nothing here", "😀 Mail to zoe@example.org\nor 東京"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "these tests need Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@contextmanager
def _review(chromium: Browser, width: int, *arguments: object) -> Iterator[tuple[Page, list[str]]]:
    """The page that the command opens, and what the command printed at its end."""
    command = [sys.executable, "-m", "redactory", "review", *map(str, arguments), "--no-browser"]
    root = str(Path(redactory.__file__).parents[1])
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": root}, **pipes)
    context = chromium.new_context(viewport={"width": width, "height": 740}, has_touch=width < 500)
    printed, problems = list[str](), list[str]()
    try:
        address = process.stderr.readline().split()[1]
        host = address.split("/?")[0]
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda r: r.url.startswith(host) or problems.append(f"a request elsewhere: {r.url}"))
        page.goto(address)
        page.wait_for_url(lambda url: "token" not in url)
        yield page, printed
        assert problems == []
    finally:
        context.close()
        process.send_signal(signal.SIGINT)
        printed += process.communicate(timeout=60)
        assert process.returncode == 0, printed


def _check_width(page: Page) -> None:
    page.wait_for_load_state()  # before its style sheet is there, a page is wider
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url
    tables = "tables => tables.every(table => table.scrollWidth <= table.clientWidth)"
    assert page.eval_on_selector_all(".table", tables), page.url


def _press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def _tab_to(page: Page, selector: str) -> None:
    for _ in range(60):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached by Tab")


def _key_of(page: Page, label: str) -> str:
    return str(page.get_attribute(f'#labels button[data-label="{label}"]', "data-key"))


def _expect_row(page: Page, number: int) -> None:
    page.wait_for_url(re.compile(rf"/rows/{number}$"))
    page.wait_for_selector("#text .cursor")
    _check_width(page)


def _save(page: Page) -> None:
    """Save by Enter, and wait for the comparison."""
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.wait_for_selector("#text .cursor")
    assert page.locator("#next").is_visible()
    _check_width(page)


def _read_secrets(path: Path) -> list[list[tuple[str, str]]]:
    rows = read_labelled_rows(path)
    return [[(row["text"][s["start"] : s["end"]], s["label"]) for s in row["spans"]] for row in rows]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Rows, and a configuration that loads in a moment."""
    config = tmp_path / "detect.yaml"
    config.write_text(yaml.safe_dump({"detect": {"spacy": None, "tagger": None}}))
    return write_rows(tmp_path / "tickets.jsonl", [{"text": text} for text in TEXTS]), config


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_labelled_by_keyboard_alone(chromium: Browser, files: tuple[Path, Path], width: int) -> None:
    rows, config = files
    with _review(chromium, width, rows, "--annotator", "ann", "--config", config) as (page, printed):
        _check_width(page)
        page.wait_for_function("document.activeElement.matches('a.main')")
        _press(page, "Enter")
        _expect_row(page, 1)
        assert page.locator(".policy").count() == 0
        # a wrong label first, removed again; then the right ones
        _press(page, _key_of(page, "DATE"), "Delete", _key_of(page, "PERSON"))
        _press(page, "ArrowRight", "ArrowRight", _key_of(page, "ACCOUNT"))
        _save(page)
        assert page.locator("h2", has_text="Compared with the policy").count() == 1
        _press(page, "Enter")
        _expect_row(page, 2)
        _save(page)
        _press(page, "Enter")
        _expect_row(page, 3)
        _press(page, "ArrowRight", "ArrowRight", "ArrowRight", *["Shift+ArrowRight"] * 4)
        _press(page, _key_of(page, "EMAIL_ADDRESS"), "ArrowDown", "End", "Shift+ArrowLeft")
        _press(page, _key_of(page, "LOCATION"))
        _save(page)
        assert page.locator(".policy").all_inner_texts() == ["zoe", "@", "example", ".", "org"]
        # a change after the comparison is saved, too
        _press(page, "End", "Delete")
        assert not page.locator("#next").is_visible()
        _save(page)
        _press(page, "Enter")
        page.wait_for_url(re.compile("/sheets/file$"))
        _check_width(page)
        page.click("text=Errors of the policy")
        page.wait_for_selector("text=Each error")
        _check_width(page)
    assert "3 of 3 rows of tickets.jsonl answered by ann." in printed[0]
    assert "redactory fit tagger" in printed[0]
    assert _read_secrets(rows.with_name("tickets.ann.jsonl")) == [
        [("Zaphod", "PERSON"), ("4711", "ACCOUNT")],
        [],
        [("zoe@example.org", "EMAIL_ADDRESS")],
    ]
    assert [row.get("revised") for row in read_labelled_rows(rows.with_name("tickets.ann.jsonl"))] == [None, None, True]


def test_a_row_is_labelled_by_touch(chromium: Browser, files: tuple[Path, Path]) -> None:
    rows, config = files
    with _review(chromium, 375, rows, "--config", config) as (page, _):
        page.goto(page.url + "/rows/3")
        word = page.locator("#text .word")
        word.nth(3).tap()
        word.nth(7).tap()
        page.locator('#labels button[data-label="EMAIL_ADDRESS"]').tap()
        # a labelled word stands for its span: another label replaces it
        word.nth(5).tap()
        page.locator('#labels button[data-label="SECRET"]').tap()
        word.nth(0).tap()
        page.locator('#labels button[data-label="PERSON"]').tap()
        page.locator('#labels button[data-label=""]').tap()
        page.locator("#save").tap()
        page.wait_for_selector("#next")
    assert _read_secrets(rows.with_name("tickets.labelled.jsonl")) == [[("zoe@example.org", "SECRET")]]


def test_a_change_that_is_not_saved_is_not_lost_unasked(chromium: Browser, files: tuple[Path, Path]) -> None:
    rows, config = files
    with _review(chromium, 1280, rows, "--config", config) as (page, _):
        page.goto(page.url + "/rows/1")
        _press(page, _key_of(page, "PERSON"))
        kinds = list[str]()
        page.on("dialog", lambda dialog: (kinds.append(dialog.type), dialog.accept()))
        page.locator("nav a").first.click()
        page.wait_for_url(re.compile("/sheets/file$"))
        assert kinds == ["beforeunload"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_is_approved_by_keyboard_alone(chromium: Browser, tmp_path: Path, width: int) -> None:
    job = Job(tmp_path)
    job.write("1.jsonl", "call 55", "fine and well")
    job.night()
    job.write("2.jsonl", "broken Zaphod")
    held = job.run()
    with _review(chromium, width, job.job.root) as (page, _):
        _check_width(page)
        _tab_to(page, f'a[href="/runs/{held.root.name}"]')
        _press(page, "Enter")
        page.wait_for_url(re.compile("/runs/"))
        _check_width(page)
        _tab_to(page, "select")
        page.keyboard.type("App")
        _press(page, "Tab")
        page.keyboard.type("Ann Lee")
        _press(page, "Tab")
        page.keyboard.type("looked at it")
        _press(page, "Tab", "Space")
        _tab_to(page, "form[action$=decision] button")
        _press(page, "Enter")
        page.wait_for_selector("text=released. Latest:")
        _check_width(page)
        page.goto(page.url.replace("decision", "quarantine/0-0"))
        assert "broken Zaphod" in page.inner_text("main")
        _check_width(page)
    assert read_release_state(RunFolder(held.root)) == "released"
    [_, entry] = redactory.list_releases(job.job.root)["runs"]
    assert (entry["by"], entry["reason"]) == ("Ann Lee", "looked at it")
