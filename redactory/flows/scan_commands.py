"""``redactory scan``: a quick scan of texts, files and folders, also for the pre-commit hook."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import OwnConfig, command, is_stdout_terminal, read_standard_input
from redactory.flows.show import Page, Shown, err, out, print_page, report_progress, table
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import ignore_progress

MASKED_STYLE, FLAGGED_STYLE, PUBLIC_STYLE = "bold white on red", "black on yellow", "black on green"
_CONTEXT_CHARS = 60
# no text steers the terminal, and each character keeps its place
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}


@command("scan")
def scan(
    context: typer.Context,
    what: Annotated[
        list[str] | None, Argument(metavar="FILE|FOLDER|TEXT|-", help="Files, folders, URLs, or a text; - is stdin.")
    ] = None,
    own_config: OwnConfig = None,
    text: Annotated[list[str] | None, Option(help="A text; needed if it is a single word.")] = None,
    explain: Annotated[bool, Option("--explain", help="Explain what each policy does with one text, and why.")] = False,
    every: Annotated[bool, Option("--all", help="With --explain: list every span of every engine and rule.")] = False,
    policy: Annotated[
        Literal["strict", "conservative"], Option(help="strict: what is masked; conservative: also what is private.")
    ] = "strict",
    text_column: Annotated[str | None, Option(help="Column of the text; default: input.text.")] = None,
    encoding: opt.Encoding = None,
    only: opt.Only = None,
    excluded: opt.Except = None,
    allow: opt.Allow = None,
    deny: opt.Deny = None,
    sensitivity: opt.Sensitivity = None,
    language: opt.Language = None,
    language_column: opt.LanguageColumn = None,
    check: Annotated[bool, Option("--check", help="Exit with 1 if anything was found or could not be read.")] = False,
    reveal: Annotated[bool, Option("--show", help="Show the text around each span; on a terminal only.")] = False,
    limit: Annotated[int, Option(help="List at most this many spans; all are counted.", min=0)] = 1_000,
) -> Shown:
    """Find personal data in files or a text, and show where it is and what found it, without the text."""
    from redactory.pipelines.documents.detection_options import load_detection_options
    from redactory.pipelines.documents.scan import has_no_text

    config = load_detection_options(own_config, only, excluded, allow, deny, sensitivity, language, language_column)
    if explain:
        explained = redactory.explain(_get_single_text(what, text), config, progress=report_progress)
        report_progress.stop()
        print_page(describe_explanation(explained, show_all=every))
        return None
    paths, texts = _separate_paths_and_texts(what or [])
    texts += text or []
    if not paths and not texts:
        raise ConfigurationError("nothing to scan: give files, folders, a text, or - for standard input")
    if reveal and (context.obj or not is_stdout_terminal()):
        raise ConfigurationError("--show prints text, only on a terminal: not with --json, a file or a pipe")
    if reveal:
        # a bar would interleave with the printed lines
        err.print("Loading the engines; this takes a few seconds.")
    result = redactory.scan(
        paths,
        texts=texts,
        config=config,
        policy=policy,
        text_column=text_column,
        encoding=encoding,
        language_column=language_column,
        limit=limit,
        on_span=_print_span_context if reveal else None,
        progress=ignore_progress if reveal else report_progress,
    )
    unread = [
        # all rows were rejected, for a reason other than an empty table cell
        file["file"]
        for file in result["files"]
        if not file["texts"] and not all(has_no_text(reason, file["format"]) for reason in file["rejected"])
    ]
    code = 2 if unread else 1 if check and not result["clean"] else 0
    return result, _describe_scan(result, unread, list_spans=not reveal), code


def _describe_scan(r: Mapping[str, Any], unread: list[str], list_spans: bool) -> Page:
    if list_spans:
        yield from map(format_span, r["spans"])
    with_spans = sum(1 for file in r["files"] if file["found"])
    counts = f"files {len(r['files']):,}, with spans {with_spans:,}; texts {r['texts']:,}"
    if unread:
        # what nobody looked at is not found to be clean
        yield f"No row could be checked in {', '.join(unread)}; spans elsewhere {r['found']:,}; {counts}"
    elif r["found"]:
        labels = ", ".join(f"{label} {count:,}" for label, count in r["by_label"].items())
        yield f"Spans {r['found']:,} ({labels}); {counts}"
    else:
        yield f"Nothing found; {counts}"
    if more := r["found"] - len(r["spans"]):
        yield f"{more:,} more; --limit lists them."
    for file in r["files"]:
        for effect, reasons in (("rows rejected", file["rejected"]), ("examples failed", file["quarantined"])):
            yield from (f"{file['file']}: {count:,} {effect}: {reason}" for reason, count in reasons.items())


def _get_single_text(arguments: list[str] | None, text: list[str] | None) -> str:
    all_texts = [*(arguments or ()), *(text or ())]
    if len(all_texts) != 1:
        raise ConfigurationError("--explain needs one text: give it, or - for standard input")
    if arguments and os.path.isfile(all_texts[0]):
        raise ConfigurationError(
            f"{all_texts[0]} is a file: use redactory scan FILE without --explain; to explain a text with the "
            "same name as a file, pass it with --text"
        )
    return read_standard_input() if all_texts[0] == "-" else all_texts[0]


def _separate_paths_and_texts(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Separate the arguments into paths and texts.

    ``ConfigurationError`` for one that may be a mistyped path, because as a text it would be reported as clean, and for
    one that begins like a URL, because it would be sent to that address.
    """
    from redactory.pipelines.readers.files import detect_format
    from redactory.pipelines.store import is_url

    paths, texts = list[str](), list[str]()
    for number, entry in enumerate(arguments, 1):
        has_space = any(letter.isspace() for letter in entry)
        if entry == "-":
            texts.append(read_standard_input())
        elif os.path.exists(entry) or (not has_space and (is_url(entry) or any(letter in entry for letter in "*?["))):
            paths.append(entry)
        elif has_space and detect_format(entry) is None and not is_url(entry):
            texts.append(entry)
        else:
            # not quoted: it may be a text
            raise ConfigurationError(
                f"argument {number} is not an existing file or folder; pass a text of one word, or one that "
                "looks like a URL or a file name, with --text"
            )
    return paths, texts


def format_span(span: Any) -> str:
    """Format ``file:line:column`` (in a table ``file:row:line:column``), and what found the span."""
    row = [] if span["row"] is None else [span["row"]]
    location = ":".join(str(part) for part in (span["file"], *row, span["line"], span["column"]))
    what = "masks" if span["policy"] == "strict" else "makes private"
    return f"{location}: {span['label']} {span['score']:.2f} {span['detector']} ({span['policy']}: {what})"


def _print_span_context(span: Any, line: str) -> None:
    from redactory.pipelines.operations.quarantine import escape_for_terminal

    start = span["column"] - 1
    end = min(len(line), start + span["end"] - span["start"])
    line_parts = (line[max(0, start - _CONTEXT_CHARS) : start], line[start:end], line[end : end + _CONTEXT_CHARS])
    before, span_text, after = (
        escape_for_terminal(line_part.encode("utf-8", "surrogatepass")) for line_part in line_parts
    )
    style = MASKED_STYLE if span["policy"] == "strict" else FLAGGED_STYLE
    out.print(format_span(span), soft_wrap=True, markup=False)
    out.print(Text.assemble("  ", before, (span_text, style), after), soft_wrap=True)


# ``redactory scan --explain``: the one page that shows text, and only that of the command line.


def describe_explanation(result: Mapping[str, Any], show_all: bool) -> Page:
    """Color the text by each policy's effect, then list the deciding spans, or all spans."""
    text, marks = result["text"], result["marks"]
    shown = Text(text.translate(_CONTROL_PICTURES))
    # masks hide spans that are only flagged
    styles = {"public": PUBLIC_STYLE, "makes_private": FLAGGED_STYLE, "masks": MASKED_STYLE}
    for effect, style in styles.items():
        for mark in marks:
            if mark[effect]:
                shown.stylize(style, mark["start"], mark["end"])
    yield shown
    legend = Text.assemble((" masked by strict ", MASKED_STYLE), " ", (" makes the example private ", FLAGGED_STYLE))
    if any(mark["public"] for mark in marks):
        legend.append(" ").append(" public because of its label ", PUBLIC_STYLE)
    yield legend
    if result["failure"]:
        yield f"The example would be quarantined: {result['failure']}"
        return
    yield Text(f"Split: {result['split']}. Result: {result['masked'].translate(_CONTROL_PICTURES)}")
    groups = [[mark] for mark in marks] if show_all else _group_deciding_marks(text, marks)
    rows = [_format_mark_row(text, group) for group in sorted(groups, key=lambda group: group[0]["start"])]
    header = ("place", "text", "label", "score", "found by", "")
    yield table("Marks" if show_all else "What decides", header, rows)
    yield None if rows else "Nothing in it is masked or makes it private."
    if left := len(marks) - sum(len(group) for group in groups):
        yield f"{left} more {'span changes' if left == 1 else 'spans change'} nothing; --all shows them."


def _group_deciding_marks(text: str, marks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group overlapping spans that mask or make private, and those with public labels.

    Spans within a mask are left out, because they change nothing.
    """
    from redactory.redaction.mask import merge_intervals

    masked = [mark for mark in marks if mark["masks"]]
    flagged = [
        mark
        for mark in marks
        if mark["makes_private"]
        and not any(
            mark["start"] < masking_mark["end"] and masking_mark["start"] < mark["end"] for masking_mark in masked
        )
    ]
    return [
        [mark for mark in kind if start <= mark["start"] < end]
        for kind in (masked, flagged, [mark for mark in marks if mark["public"]])
        for start, end in merge_intervals(text, [(mark["start"], mark["end"]) for mark in kind], merge_near=False)
    ]


def _format_mark_row(text: str, marks: list[dict[str, Any]]) -> tuple[str, ...]:
    start, end = marks[0]["start"], max(mark["end"] for mark in marks)
    labels, by = (", ".join(dict.fromkeys(mark[key] for mark in marks)) for key in ("label", "detector"))
    effects = {"masks": "masked", "makes_private": "makes private", "public": "public"}
    effect = next((words for key, words in effects.items() if marks[0][key]), "")
    score = max(mark["score"] for mark in marks)
    return f"{start}–{end}", repr(text[start:end]), labels, f"{score:.3f}", by, effect
