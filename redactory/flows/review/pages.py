"""The pages of a review: rows to label, and for runs the release decision, the quarantine and samples.

Each page calls the function of a command and shows its page; forms do what the command does.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

import redactory
from redactory.evaluation.labelled import CHOSEN_KEY
from redactory.evaluation.report import load_template
from redactory.flows.evaluate_commands import describe_errors
from redactory.flows.job_commands import describe_decision, describe_quarantine, describe_releases
from redactory.flows.label_commands import describe_agreement
from redactory.flows.release_commands import describe_release
from redactory.flows.show import Page, Table, table
from redactory.foundation.errors import ConfigurationError, InputError, RedactoryError, SealedError, pluralize
from redactory.foundation.files import SUCCESS
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.curation.loading import ConfigLike, load_text_config
from redactory.pipelines.curation.release_log import is_empty_run
from redactory.pipelines.documents.serve_http import read_body
from redactory.pipelines.measure.annotation import LabelSheet, compare_spans, split_words
from redactory.pipelines.measure.evaluate_detection import find_labelled_errors
from redactory.pipelines.operations.quarantine import escape_for_terminal, read_quarantine_entry
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, find_runs

LABEL_KEYS = string.digits[1:] + "0" + string.ascii_lowercase
"""The key that sets each label, in order."""
_NO_PAGE = "there is no such page"
_FILE_SHEET = "file"
Form = Mapping[str, str]
Trail = list[tuple[str, str]]


class Section(NamedTuple):
    """A part of a page: a heading, lines and tables as on the command line, links of cells, and a template."""

    heading: str
    parts: Page = ()
    links: Mapping[str, str] = {}
    form: str = ""


class Review:
    """The pages about one file, one run, or all runs of a job."""

    def __init__(self, place: Path, annotator: str, config: ConfigLike | None = None) -> None:
        """Check ``place`` and ``annotator``; ``ConfigurationError`` if it is no file, run or job."""
        if not place.exists():
            raise ConfigurationError(f"{place} not found: give a run, a job's folder of runs, or a file to label")
        self.place, self.annotator, self._config = place, annotator, config
        self._sheets: dict[Path, LabelSheet] = {}
        self.is_file, self.is_job = place.is_file(), JobFolder(place).exists()
        if self.is_file:
            _ = self.get_sheet(_FILE_SHEET).rows
        else:
            find_runs(place)

    def get_run(self, name: str) -> RunFolder:
        """Return the run of that name; ``InputError`` if there is none."""
        runs = [] if self.is_file else [run for run in find_runs(self.place) if run.root.name == name]
        if not runs:
            raise InputError(_NO_PAGE)
        return runs[0]

    def get_sheet(self, name: str) -> LabelSheet:
        """Return the sheet of the file, or of ``RUN/SAMPLE``; it keeps its rows and engines."""
        path = self.place
        if not self.is_file:
            run_name, _, sample = name.partition("/")
            path = self.get_run(run_name).get_sample_folder(sample).rows
        elif name != _FILE_SHEET:
            raise InputError(_NO_PAGE)
        if (sheet := self._sheets.get(path)) is not None:
            if sheet.is_current():
                return sheet
            del self._sheets[path]
        if self.is_file:
            config = load_text_config(self._config, (str(path),))
        else:
            config = Config.from_manifest(read_manifest(self.get_run(run_name))["configuration"])
        return self._sheets.setdefault(path, LabelSheet(path, config, self.annotator))

    def show_start(self, request: Request, form: Form) -> Response:
        """Lead to the file or the run, or list the runs of a job."""
        if self.is_file:
            return RedirectResponse(f"/sheets/{_FILE_SHEET}")
        if not self.is_job:
            return RedirectResponse(_link_run(find_runs(self.place)[0].root.name))
        r = redactory.list_releases(self.place)
        links = {run["run"]: _link_run(run["run"]) for run in r["runs"]}
        held = [[run["run"]] for run in r["runs"] if run["state"] == "held"]
        waiting = [Section("Waiting for a decision", [Table("", (), held)], links)] if held else []
        return _render(self.place.resolve().name, [], [*waiting, Section("All runs", describe_releases(r), links)])

    def summarize(self) -> tuple[dict[str, Any], list[str]]:
        """Return what was labelled in this review, for the command's result and its page."""
        lines, counts = list[str](), dict[str, int]()
        for sheet in self._sheets.values():
            counts[str(sheet.path)] = len(sheet.read_answers())
            lines += describe_answers(sheet, not self.is_file)
        return {"place": str(self.place), "annotator": self.annotator, "answered": counts}, lines

    # Runs: decisions, quarantine, samples.

    def show_run(self, request: Request, form: Form) -> Response:
        """Show the decision about a run, its quarantine and its samples."""
        run = self.get_run(request.path_params["run"])
        base, sections, state = _link_run(run.root.name), list[Section](), None
        with _explain_missing("Release", sections):
            r = redactory.show_release(run.root)
            state = r["state"]
            sections.append(
                Section("Release", describe_release(r), form="" if state == "rejected" else "decision.html.j2")
            )
        names = sorted(path.parent.name for path in run.samples.glob(f"*/{SUCCESS}"))
        with _explain_missing("Quarantine", sections):
            entries = redactory.quarantine_list(run.root)
            links = {entry["id"]: f"{base}/quarantine/{entry['id']}" for entry in entries["runs"][0]["listed"]}
            sections.append(Section("Quarantine", describe_quarantine(entries), links))
        with _explain_missing("Label", sections):
            sections.append(self._list_samples(run, names))
        is_empty = is_finished(run) and is_empty_run(read_manifest(run)["counts"])
        values = {"base": base, "state": state, "is_empty": is_empty, "samples": names}
        return _render(run.root.name, self._get_trail(), sections, **values)

    def _list_samples(self, run: RunFolder, names: Sequence[str]) -> Section:
        sheets = {name: self.get_sheet(f"{run.root.name}/{name}") for name in names}
        rows = [(name, str(len(sheet.rows)), str(len(sheet.read_answers()))) for name, sheet in sheets.items()]
        links = {name: _link_sheet(f"{run.root.name}/{name}") for name in names}
        header = ("sample", "texts", f"answered by {self.annotator}")
        return Section("Label", [Table("", header, rows)], links, "sample.html.j2")

    def decide(self, request: Request, form: Form) -> Response:
        """Approve or reject a run, as ``redactory release`` does."""
        run = self.get_run(request.path_params["run"])
        by, reason = form.get("by", ""), form.get("reason", "")
        if form.get("decision") == "approve":
            r = redactory.approve_release(run.root, by, reason, empty=form.get("empty") == "yes")
        elif form.get("decision") == "reject":
            r = redactory.reject_release(run.root, by, reason)
        else:
            raise InputError("choose Approve or Reject")
        _, page, *_ = describe_decision(r) or ({}, ())
        return _render("Decision", self._get_trail(run), [Section("", [*page])])

    def show_quarantine_entry(self, request: Request, form: Form) -> Response:
        """Show the content of one entry of a quarantine."""
        run = self.get_run(request.path_params["run"])
        content = escape_for_terminal(read_quarantine_entry(run.root, request.path_params["entry"]))
        title = f"Quarantine entry {request.path_params['entry']}"
        return _render(title, self._get_trail(run), [Section("", [Table("", (), [[content]])])])

    def draw_sample(self, request: Request, form: Form) -> Response:
        """Draw a sample to label, as ``redactory label random`` does."""
        run, name, n = self.get_run(request.path_params["run"]), form.get("name", ""), form.get("n", "")
        if not n.isdecimal() or not 0 < len(n) < 7:
            raise InputError("the number of texts must be between 1 and 999999")
        redactory.label_random(run.root, int(n), name=name)
        return RedirectResponse(_link_sheet(f"{run.root.name}/{name}"), 303)

    def _get_trail(self, run: RunFolder | None = None) -> Trail:
        trail = [(self.place.resolve().name, "/")] if self.is_job else []
        return trail + ([(run.root.name, _link_run(run.root.name))] if run else [])

    # Sheets: rows to label.

    def show_sheet(self, request: Request, form: Form) -> Response:
        """Show how many rows are answered, and what to do with the answers."""
        sheet, base, trail = self._open_sheet(request)
        answers, next_row, links = sheet.read_answers(), sheet.find_next_row(), list[tuple[str, str]]()
        if answers:
            links.append(("Errors of the policy", f"{base}/errors"))
        for one, other in combinations(sheet.list_annotators(), 2):
            links.append((f"Agreement of {one} and {other}", f"{base}/agreement/{one}/{other}"))
        values: dict[str, Any] = {"base": base, "answers": answers, "next_row": next_row, "more": links}
        section = Section("", describe_answers(sheet, not self.is_file), form="sheet.html.j2")
        return _render(trail[-1][0], trail[:-1], [section], total=len(sheet.rows), **values)

    def show_agreement(self, request: Request, form: Form) -> Response:
        """Compare two annotators, as ``redactory label agreement`` does, on the rows that both answered."""
        sheet, base, trail = self._open_sheet(request)
        first, second = (request.path_params[key] for key in ("first", "second"))
        if not {first, second} <= {*sheet.list_annotators()}:
            raise InputError(_NO_PAGE)
        r = sheet.compare_annotators(first, second)
        links = {str(row["row"]): f"{base}/rows/{row['row']}" for row in r["differing_rows"]}
        title = f"Agreement of {first} (first) and {second} (second)"
        return _render(title, trail, [Section("", describe_agreement(r), links)])

    def show_errors(self, request: Request, form: Form) -> Response:
        """Group the errors of the policy on the answered rows, as ``redactory evaluate errors`` does."""
        sheet, base, trail = self._open_sheet(request)
        r, errors, suggestions = find_labelled_errors(sheet.get_answers_path(), sheet.config)
        numbers = sorted(sheet.read_answers())
        groups = [{**group, "rows": [numbers[row - 1] for row in group["rows"]]} for group in r["errors"]]
        # the lines themselves are shown, not how many a file would have
        sections = [Section("", describe_errors({**r, "errors": groups, "deny": 0, "allow": 0}))]
        if r["deny"] + r["allow"]:
            sections.append(Section("Lines to copy into the configuration", form="lists.html.j2"))
        rows = [(str(numbers[error.row - 1]), error.problem, error.label, error.text) for error in errors]
        links = {str(number): f"{base}/rows/{number}" for number in numbers}
        sections.append(Section("Each error", [Table("", ("row", "problem", "label", "text"), rows)], links))
        return _render("Errors of the policy", trail, sections, lists=suggestions.to_yaml())

    def show_row(self, request: Request, form: Form) -> Response:
        """Show a row to label; the policy's spans only once it is answered."""
        sheet, base, trail = self._open_sheet(request)
        number = request.path_params["row"]
        if not 0 < number <= len(sheet.rows):
            raise InputError(_NO_PAGE)
        answer, text, next_row = sheet.read_answers().get(number), sheet.rows[number - 1]["text"], None
        sections, masked = [Section("", form="row.html.j2")], list[dict[str, Any]]()
        if answer:
            next_row = sheet.find_next_row(number)
            with _explain_missing("Compared with the policy", sections):
                masked = sheet.find_policy_spans(number)
                sections.append(_compare(text, answer["spans"], "policy", masked))
            for name in sheet.list_annotators():
                if name != self.annotator and (other := sheet.read_answers(name).get(number)):
                    sections.append(_compare(text, answer["spans"], name, other["spans"]))
        values = {
            "words": [_describe_word(text, start, end, masked) for start, end in split_words(text)],
            "spans": json.dumps([] if answer is None else answer["spans"]),
            "labels": sheet.labels,
            "keys": LABEL_KEYS,
            "answered": answer is not None,
            "next_row": next_row,
            "next_link": f"{base}/rows/{next_row}" if next_row else base,
            "row": number,
            "total": len(sheet.rows),
        }
        title = f"Row {number} of {len(sheet.rows):,}"
        return _render(title, trail, sections, **values)

    def save_row(self, request: Request, form: Form) -> Response:
        """Save the spans of a row, and show it compared with the policy."""
        sheet, _, _ = self._open_sheet(request)
        try:
            spans = json.loads(form.get("spans", ""))
            if type(spans) is not list or any(type(span[key]) is not int for span in spans for key in ("start", "end")):
                raise TypeError
            places = [{key: span[key] for key in ("start", "end", "label")} for span in spans]
        except (ValueError, TypeError, LookupError, RecursionError):
            raise InputError("the labels did not arrive: reload the page; it needs JavaScript") from None
        sheet.save_answer(request.path_params["row"], places)
        return RedirectResponse(request.url.path, 303)

    def _open_sheet(self, request: Request) -> tuple[LabelSheet, str, Trail]:
        name = request.path_params["sheet"]
        run = None if self.is_file else self.get_run(name.partition("/")[0])
        sheet, link = self.get_sheet(name), _link_sheet(name)
        title = f"Sample {name.partition('/')[2]}" if run else sheet.path.name
        return sheet, link, [*self._get_trail(run), (title, link)]


def describe_answers(sheet: LabelSheet, is_sample: bool) -> list[str]:
    """Return how many rows are answered, in which file, and the commands that read it once all are."""
    count, path = len(sheet.read_answers()), sheet.get_answers_path()
    lines = [f"{count:,} of {pluralize(len(sheet.rows), 'row')} of {sheet.path.name} answered by {sheet.annotator}."]
    lines += [f"Answers: {path} (original text, mode 0600)."] if count else []
    if count < len(sheet.rows):
        return lines
    lines.append(f"Fit a tagger to them: redactory fit tagger {path} --out FOLDER")
    if is_sample:
        # RUN/state/samples/NAME/sample.jsonl
        run, name = sheet.path.parents[3], sheet.path.parent.name
        lines.append(f"Measure what the policies miss: redactory label score {run} {path} --sample {name}")
    elif CHOSEN_KEY not in sheet.rows[0]:
        lines.append(f"Measure detection: redactory evaluate detection {path}")
    return lines


def _compare(text: str, spans: Any, name: str, others: Any) -> Section:
    compared = compare_spans(text, {"you": spans, name: others})
    lines: Page = [table("", "result text", compared)] if compared else ["Nobody labelled anything."]
    return Section(f"Compared with {'the ' * (name == 'policy')}{name}", lines)


def _describe_word(text: str, start: int, end: int, masked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    word = text[start:end]
    is_masked = any(span["start"] < end and span["end"] > start for span in masked)
    shown = word.replace("\r", "") if word.isspace() else escape_for_terminal(word.encode("utf-8", "replace"))
    return {"start": start, "end": end, "shown": shown, "is_gap": word.isspace(), "is_masked": is_masked}


@contextmanager
def _explain_missing(heading: str, sections: list[Section]) -> Iterator[None]:
    """Add the error as a section in place of one that cannot be shown, like that of a missing key."""
    try:
        yield
    except RedactoryError as error:
        sections.append(Section(heading, [str(error)]))


def _link_run(name: str) -> str:
    return f"/runs/{quote(name, safe='')}"


def _link_sheet(name: str) -> str:
    return f"/sheets/{quote(name)}"


# From functions to an application.


def _render(title: str, trail: Trail, sections: Sequence[Section], status: int = 200, **values: Any) -> Response:
    page = load_template("page.html.j2", __package__).render(title=title, trail=trail, sections=sections, **values)
    return HTMLResponse(page, status)


def _render_error(message: str, status: int) -> Response:
    return _render("Something is wrong", [("Back to the start", "/")], [Section("", [message])], status)


def _make_endpoint(show: Callable[[Request, Form], Response]) -> Any:
    """Call ``show`` with the form of a request, in a thread; an error becomes a page that quotes no text."""

    async def answer(request: Request) -> Response:
        body = await read_body(request)
        try:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True))
            return await run_in_threadpool(run_with_hidden_error_text, "a page was shown", show, request, form)
        except SealedError as error:
            return _render_error(str(error), 500)
        except (RedactoryError, UnicodeDecodeError) as error:
            return _render_error(str(error) if isinstance(error, RedactoryError) else "The form is not UTF-8.", 400)

    return answer


def build_app(review: Review) -> Starlette:
    """Return the application, without the guard of its access."""
    pages = (
        ("/", review.show_start, "GET"),
        ("/runs/{run}", review.show_run, "GET"),
        ("/runs/{run}/decision", review.decide, "POST"),
        ("/runs/{run}/samples", review.draw_sample, "POST"),
        ("/runs/{run}/quarantine/{entry}", review.show_quarantine_entry, "GET"),
        ("/sheets/{sheet:path}/rows/{row:int}", review.show_row, "GET"),
        ("/sheets/{sheet:path}/rows/{row:int}", review.save_row, "POST"),
        ("/sheets/{sheet:path}/agreement/{first}/{second}", review.show_agreement, "GET"),
        ("/sheets/{sheet:path}/errors", review.show_errors, "GET"),
        ("/sheets/{sheet:path}", review.show_sheet, "GET"),
    )
    routes = [Route(path, _make_endpoint(show), methods=[method]) for path, show, method in pages]
    folder = Path(__file__).parent
    routes += [
        Route(f"/{name}", lambda r: FileResponse(folder / r.url.path[1:])) for name in ("review.js", "review.css")
    ]
    messages = {404: _NO_PAGE, 413: "The form is larger than a megabyte."}
    errors = {status: _render_error(message, status) for status, message in messages.items()}
    return Starlette(routes=routes, exception_handlers={s: lambda _, e: errors[e.status_code] for s in errors})
