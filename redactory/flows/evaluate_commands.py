"""Commands that search and measure: scan, fit, evaluate, label."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Literal

from rich.text import Text

import redactory
from redactory.flows.options import (
    REQUIRED,
    RUN_ARGUMENT,
    argument,
    command,
    is_stdout_terminal,
    option,
    read_standard_input,
    switch,
)
from redactory.flows.show import CommandResult, err, out, print_table
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, ignore_progress

MASKED_STYLE, FLAGGED_STYLE, PUBLIC_STYLE = "bold white on red", "black on yellow", "black on green"
_CONTEXT_CHARS = 60

# ``redactory scan``: a quick scan of texts, files and folders, also for the pre-commit hook.


@command(
    "scan: own_config",
    what=argument(
        "FILE|FOLDER|TEXT|-",
        "Files, folders, URLs, or a text of several words; - reads standard input.",
        list[str],
        None,
    ),
    text=option("A text; needed if it is a single word.", list[str]),
    explain=switch("Explain what each policy does with one text, and why."),
    every=switch("With --explain: list every span of every engine and rule.", flag="--all"),
    policy=option(
        "strict: what would be masked; conservative: also what only makes text private.",
        Literal["strict", "conservative"],
        "strict",
    ),
    text_column=option("Column that holds the text; default: from the configuration.", str),
    allow=option("A file of terms to ignore; repeatable.", list[str]),
    check=switch("Exit with 1 if anything was found or could not be read."),
    reveal=switch("Show the text around each span; on a terminal only.", flag="--show"),
    limit=option("List at most this many spans; all are counted.", int, 1_000, min=0),
)
def scan(
    progress: Progress,
    as_json: bool,
    own_config: str | None,
    what: list[str] | None,
    text: list[str] | None,
    explain: bool,
    every: bool,
    check: bool,
    reveal: bool,
    **options: Any,
) -> CommandResult | None:
    """Find personal data in files or a text, and show where it is and what found it, without the text."""
    if explain:
        print_explanation(redactory.explain(_get_single_text(what, text), own_config, progress=progress), every)
        return None
    paths, texts = _separate_paths_and_texts(what or [])
    texts += text or []
    if not paths and not texts:
        raise ConfigurationError("nothing to scan: give files, folders, a text, or - for standard input")
    if reveal and (as_json or not is_stdout_terminal()):
        raise ConfigurationError("--show prints text, only on a terminal: not with --json, a file or a pipe")
    if reveal:
        # a bar would interleave with the printed lines
        err.print("Loading the engines; this takes a few seconds.")
        options |= {"on_span": _print_span_context, "progress": ignore_progress}
    options = {"progress": progress, "config": own_config, **options}
    result = redactory.scan(paths, texts=texts, **options)
    unread = [file["file"] for file in result["files"] if _is_unread(file)]
    code = 2 if unread else 1 if check and not result["clean"] else 0
    return CommandResult("scan_counts" if reveal else "scanned", result, code, {"unread": unread})


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


def _is_unread(file: Any) -> bool:
    """Return whether all rows of a file were rejected for a reason other than an empty table cell."""
    from redactory.pipelines.documents.scan import has_no_text

    return not file["texts"] and not all(has_no_text(reason, file["format"]) for reason in file["rejected"])


# ``redactory scan --explain``: the one page that shows text, and only on the terminal.


def print_explanation(result: dict[str, Any], show_all: bool) -> None:
    """Print the text coloured by each policy's effect, then the deciding spans, or all spans."""
    text, marks = result["text"], result["marks"]
    shown = Text(text)
    # masks hide spans that are only flagged
    styles = ((PUBLIC_STYLE, "public"), (FLAGGED_STYLE, "makes_private"), (MASKED_STYLE, "masks"))
    for style, key in styles:
        for mark in marks:
            if mark[key]:
                shown.stylize(style, mark["start"], mark["end"])
    out.print(shown, soft_wrap=True)
    legend = Text.assemble((" masked by strict ", MASKED_STYLE), " ", (" makes the example private ", FLAGGED_STYLE))
    if any(mark["public"] for mark in marks):
        legend.append(" ").append(" public because of its label ", PUBLIC_STYLE)
    out.print(legend)
    out.print()
    if result["failure"]:
        out.print(f"The example would be quarantined: {result['failure']}")
        return
    out.print(f"Split: {result['split']}. Result: ", end="")
    out.print(Text(result["masked"]), soft_wrap=True)
    groups = [[mark] for mark in marks] if show_all else _group_deciding_marks(text, marks)
    rows = [_format_mark_row(text, group) for group in sorted(groups, key=lambda group: group[0]["start"])]
    if rows:
        header = ["place ¦ text ¦ label ¦ score ¦ found by ¦ ", "---"]
        print_table("Marks" if show_all else "What decides", [*header, *rows])
    else:
        out.print("Nothing in it is masked or makes it private.")
    if left := len(marks) - sum(len(group) for group in groups):
        out.print(f"{left} more {'span changes' if left == 1 else 'spans change'} nothing; --all shows them.")


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


def _format_mark_row(text: str, marks: list[dict[str, Any]]) -> str:
    start, end = marks[0]["start"], max(mark["end"] for mark in marks)
    labels, by = (", ".join(dict.fromkeys(mark[key] for mark in marks)) for key in ("label", "detector"))
    first = marks[0]
    effect_words = {"masks": "masked", "makes_private": "makes private", "public": "public"}
    effect = next((words for key, words in effect_words.items() if first[key]), "")
    score = f"{max(mark['score'] for mark in marks):.3f}"
    return " ¦ ".join((f"{start}–{end}", repr(text[start:end]).replace("¦", "|"), labels, score, by, effect))


# ``redactory fit tagger``: a tagger, or the conservative policy.


@command(
    "fit tagger: seed",
    labelled=argument("LABELLED...", "JSONL with the true spans (text, spans).", list[Path]),
    out=option("The tagger's folder.", Path, REQUIRED),
    epochs=option("Number of passes over the rows.", int, min=1),
)
def fit_tagger(labelled: list[Path], out: Path, progress: Progress, **settings: Any) -> CommandResult:
    """Train and calibrate a token tagger on labelled rows."""
    return CommandResult("tagger_fitted", redactory.fit_tagger(labelled, out, settings, progress=progress))


@command(
    "fit policy: own_config confidence",
    labelled=argument("LABELLED", "JSONL with the true spans (text, spans).", Path),
    out=option("The policy file to write.", Path, Path("policy.yaml")),
    miss_rate=option("Upper bound on the share of missed secrets.", float, 0.001),
)
def fit_policy(labelled: Path, own_config: str | None, progress: Progress, **settings: Any) -> CommandResult:
    """Fit the conservative policy to labelled rows to bound the share of missed secrets."""
    result = redactory.fit_policy(labelled, config=own_config, progress=progress, **settings)
    return CommandResult("policy_fitted", result, 1 if result["chosen"] is None else 0)


@command(
    "evaluate detection: output",
    what=argument(
        "CONFIG|RUN",
        "A configuration: measure its misses on evaluate.labelled. A run: what its shards reveal.",
        str,
        None,
    ),
    labelled=option("JSONL with the true spans (text, spans).", Path),
    against=option(
        "With --labelled: engines to compare on the same text, separated by commas; repeatable: presidio, spacy "
        "(both also :PIPELINE), stanza:FOLDER, transformers:FOLDER, or NAME:FOLDER of a package.",
        list[str],
    ),
    engine=option(
        "For a run: an engine that was not used for masking and searches for leftovers: patterns, tagger, "
        "or any engine of --against except presidio.",
        str,
    ),
    sample=option("For a run: number of examples checked per split.", int, 5_000, min=1),
    rare=option("For a run: a phrase in at most this many public examples is rare.", int, 2, min=1),
)
def evaluate_detection(
    what: str | None,
    output: str | None,
    labelled: Path | None,
    against: list[str] | None,
    progress: Progress,
    **run_options: Any,
) -> CommandResult:
    """Measure what the policies find and miss in labelled text, or what the shards of a run reveal."""
    if against:
        if labelled is None:
            raise ConfigurationError("--against compares engines on labelled rows: add --labelled")
        names = [name for part in against for name in part.split(",")]
        return CommandResult("beside", redactory.evaluate_against(labelled, names, what, progress=progress))
    if labelled is not None:
        return CommandResult("detection", redactory.evaluate_detect(labelled, what, progress=progress))
    if what is None:
        raise ConfigurationError("give --labelled with a file of labelled rows, a configuration, or a run")
    if os.path.isdir(what):
        return CommandResult("redaction", redactory.evaluate_redaction(what, progress=progress, **run_options))
    return CommandResult("recall", redactory.evaluate_recall(what, output=output, progress=progress))


@command("evaluate model: run model", test=option("Held-out corpus; default: from the configuration.", list[str]))
def evaluate_model(progress: Progress, **options: Any) -> CommandResult:
    """Measure perplexity on held-out text, original and masked; for a classifier, the test error rate."""
    result = redactory.evaluate_model(progress=progress, **options)
    return CommandResult("perplexity" if "as_is" in result else "accuracy", result)


@command(
    "evaluate synthetic: run",
    corpus=argument("FOLDER", "Output folder of redactory synthesize.", Path),
    model=option("The model that wrote it; default: from the configuration.", str),
    test=option("Held-out corpus; default: from the configuration.", list[str]),
    canaries=option("FILE.canaries.json; default: from the configuration.", Path),
)
def evaluate_synthetic(progress: Progress, **options: Any) -> CommandResult:
    """Compare synthetic text with real text: its usefulness, and what it reveals of the training text."""
    result = redactory.evaluate_synthetic(progress=progress, **options)
    return CommandResult("synthetic", result, 0 if result["holds"] else 1)


AttackKind = Literal["canary", "extraction", "membership"]


@command(
    "evaluate attack: model seed",
    kind=argument(
        "KIND",
        "canary: exposure of planted canaries; extraction: secrets in generated texts; membership: whether "
        "trained-on secrets, or of a classifier texts, can be told from others.",
        AttackKind,
    ),
    run=RUN_ARGUMENT,
    samples=option(
        "canary: candidates drawn if there are more than a million (default 20,000, at least 2,000); "
        "extraction: texts to generate (1,000).",
        int,
        min=1,
    ),
    canaries=option("canary: FILE.canaries.json; default: from the configuration.", Path),
    tokens=option("extraction: maximum tokens per text (64).", int, min=1),
    temperature=option("extraction: sampling temperature; 0 always takes the likeliest token (1).", float, min=0),
    top_k=option("extraction: sample from this many of the likeliest tokens (all).", int, min=1),
    completions=option("extraction: secrets to prompt for with the words before them (500).", int, min=0),
    secrets=option("membership: a corpus with true spans; default: evaluate.labelled.", Path),
    others=option(
        "membership: labelled JSONL of values that were never trained on (drawn); of a classifier, rows "
        "(evaluate.test).",
        Path,
    ),
    label=option("membership: label of the secrets (the most common one).", str),
    reference=option("membership: another model of this run, or another run, for a stronger attack.", str),
    count=option("membership: maximum sentences of each kind (1,000).", int, min=4),
    group_size=option("membership: sentences per group (20).", int, min=1),
    confidence=option("membership: confidence per interval; 1 - 0.05 / k for k comparisons (0.95).", float),
)
def evaluate_attack(kind: AttackKind, run: Path, progress: Progress, **options: Any) -> CommandResult:
    """Attack a model: exposure of canaries, extraction of secrets, or membership inference."""
    attack = getattr(redactory, f"evaluate_{kind}")
    for name in options.keys() - inspect.signature(attack).parameters.keys():
        raise ConfigurationError(f"--{name.replace('_', '-')} is not an option of the {kind} attack")
    if kind == "canary" and options.get("samples", 2_000) < 2_000:
        raise ConfigurationError("--samples: must be at least 2,000")
    return CommandResult(kind, attack(run, progress=progress, **options))


@command(
    "evaluate plant-canaries",
    corpus=argument("CORPUS", "A JSONL corpus.", Path),
    out=option("The copy with canaries, to be curated.", Path, REQUIRED),
    canaries=option("Number of canaries, each with a fair coin.", int, 1_000, min=1),
    form=option(
        "What a coin decides: one number or another, a number or its mask, a user or none.",
        Literal["pair", "masked", "absent"],
        "pair",
    ),
    template=option("The sentence that ends with a number.", str, "The code is: {digits}"),
    text=option("Column of the text.", str, "text", flag="--text-column"),
    identity=option("Column of the document id.", str, "id", flag="--id-column"),
    user=option("Column of the user.", str, "user_id", flag="--user-column"),
    seed=option("Test mode with coins that anybody can reproduce.", int),
)
def plant_canaries(
    corpus: Path, out: Path, text: str, identity: str, user: str, progress: Progress, **settings: Any
) -> CommandResult:
    """Plant canaries by fair coins in a copy of a corpus: curate it, train, then run evaluate audit."""
    columns = {"text": text, "id": identity, "user_id": user}
    planted = redactory.plant_canaries(corpus, out, columns=columns, progress=progress, **settings)
    return CommandResult("planted", planted)


@command(
    "evaluate audit: run model confidence",
    coins=option("The .coins.json file of plant-canaries; default: the one beside the input.", Path),
)
def evaluate_audit(progress: Progress, **settings: Any) -> CommandResult:
    """One-run audit: compare the epsilon that an attack proves with the stated one; exit 1 if it is larger."""
    result = redactory.evaluate_audit(progress=progress, **settings)
    return CommandResult("audit", result, 0 if result["holds"] else 1)


# ``redactory label``: people label rows to fit a tagger, or a sample to measure misses.


@command(
    "label active: config",
    out=option("Folder to write; it holds original text.", Path, REQUIRED),
    n=option("Number of documents.", int, 50, flag="-n", min=1),
    labelled=option("Rows that are already labelled; repeatable.", list[Path]),
    seed=option("Another seed examines other documents.", int, 0),
)
def select_active_sample(config: str, progress: Progress, **settings: Any) -> CommandResult:
    """Choose the documents that help a tagger most, where the policies are unsure; not for measuring."""
    chosen = redactory.label_active(config, progress=progress, **settings)
    return CommandResult("chosen", chosen, 0, {"config": config})


@command(
    "label random: run seed name",
    n=option("Maximum number of texts to label.", int, 400, flag="-n", min=1),
    public_share=option("Share of public texts.", float, 0.6),
)
def draw_label_sample(**settings: Any) -> CommandResult:
    """Sample examples of a finished run for people to label: JSON lines, Label Studio tasks, a table."""
    return CommandResult("sampled", redactory.label_random(**settings))


@command(
    "label score: run confidence name",
    labelled=argument("LABELLED", "The labelled JSON lines, or a Label Studio JSON export.", Path),
    unchanged=switch("Score the labels even if none was changed from the prefilled ones."),
)
def score_labels(progress: Progress, **options: Any) -> CommandResult:
    """Measure which labelled secrets the policies miss; guarantees use these numbers."""
    return CommandResult("scored", redactory.label_score(progress=progress, **options))
