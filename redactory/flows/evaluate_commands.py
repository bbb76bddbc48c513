"""Commands that look and measure: scan, fit, evaluate, label."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

import redactory
from redactory.flows import options as o
from redactory.flows.options import command, on_terminal
from redactory.flows.run_commands import app
from redactory.flows.show import Shown, err, out, print_table
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent

evaluations = typer.Typer(no_args_is_help=True, help="Measure detection, a trained model, or attacks on it.")
labels = typer.Typer(no_args_is_help=True, help="Have people label a sample, and score what they labelled.")
app.add_typer(evaluations, name="evaluate")
app.add_typer(labels, name="label")

LabelledOption = Annotated[
    Path | None, typer.Option("--labelled", help="JSONL with the true spans (text, spans).")
]
NameOption = Annotated[str, typer.Option("--name", help="Name of the sample.")]
MASKED, FLAGGED = "bold white on red", "black on yellow"
_BESIDE = 60
"""Letters of a line that are shown before and after a hit."""


# ``redactory scan``: a quick look at texts, files and folders, and the check of the pre-commit hook.


@command(app)
def scan(
    progress: Progress,
    as_json: bool,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|FOLDER|TEXT|-",
            help="What to look at, one or several; - is standard input. A text has several words.",
        ),
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text", help="A text, of one word too.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show one text, and what each policy does with it, and why.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="With --explain: every mark of every engine and rule.")
    ] = False,
    policy: Annotated[
        Literal["strict", "conservative"],
        typer.Option(help="strict: what would be masked; conservative: also what only makes text private."),
    ] = "strict",
    config: o.ConfigOption = None,
    column: Annotated[
        str | None, typer.Option(help="The column of the text; the configuration's by default.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="A file of terms that are no hits; repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with 1 where something was found or could not be read.")
    ] = False,
    reveal: Annotated[
        bool, typer.Option("--show", help="Show the text around each hit, on a terminal alone.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="List at most so many hits; all are counted.")] = 1_000,
) -> Shown | None:
    """Look for personal data in files or a text: where it is, and what found it. No text is shown."""
    if explain:
        explained(redactory.explain(_one_text(what, text), config, progress=progress), every)
        return None
    paths, texts = _sorted_out(what or [])
    texts += text or []
    if not paths and not texts:
        raise ConfigurationError("give what to look at: files, folders, a text, or - for standard input")
    if reveal and (as_json or not on_terminal()):
        raise ConfigurationError("--show prints text, to a terminal alone: not with --json, a file or a pipe")
    if reveal:
        # a bar would stand between the lines that are shown
        err.print("The engines are loaded, which takes some seconds.")
    result = redactory.scan(
        paths,
        texts=texts,
        config=config,
        policy=policy,
        column=column,
        allow=allow or (),
        limit=limit,
        look=_reveal if reveal else None,
        progress=silent if reveal else progress,
    )
    unread = [file["file"] for file in result["files"] if _is_unread(file)]
    code = 2 if unread else 1 if check and not result["clean"] else 0
    return Shown("scan_counts" if reveal else "scanned", result, code, {"unread": unread})


def _one_text(what: list[str] | None, text: list[str] | None) -> str:
    given = [*(what or ()), *(text or ())]
    if len(given) != 1:
        raise ConfigurationError("--explain shows one text: give it, or - for standard input")
    if what and os.path.isfile(given[0]):
        raise ConfigurationError(
            f"{given[0]}: this is a file: without --explain, redactory scan FILE looks into files; a text "
            "that is a file's name goes behind --text"
        )
    return o.standard_input() if given[0] == "-" else given[0]


def _sorted_out(given: list[str]) -> tuple[list[str], list[str]]:
    """Which arguments are paths, and which are texts.

    ``ConfigurationError`` for one that could be a mistyped path: taken for a text, it would be found clean.
    Nor is a text that begins like a URL taken for one: it would be sent to whoever the URL names.
    """
    from redactory.pipelines.readers.files import format_of
    from redactory.pipelines.store import is_url

    paths, texts = list[str](), list[str]()
    for number, one in enumerate(given, 1):
        spaced = any(sign.isspace() for sign in one)
        if one == "-":
            texts.append(o.standard_input())
        elif os.path.exists(one) or (not spaced and (is_url(one) or any(sign in one for sign in "*?["))):
            paths.append(one)
        elif spaced and format_of(one) is None and not is_url(one):
            texts.append(one)
        else:
            # not named: it may be a text after all
            raise ConfigurationError(
                f"argument {number} is not a file or folder that exists; a text of one word, or one that "
                "begins like a URL or ends like a file's name, goes behind --text"
            )
    return paths, texts


def hit_line(hit: Any) -> str:
    """``file:line:column`` (of a table ``file:row:line:column``), and what found it."""
    row = [] if hit["row"] is None else [hit["row"]]
    place = ":".join(str(part) for part in (hit["file"], *row, hit["line"], hit["column"]))
    what = "masks" if hit["policy"] == "strict" else "makes private"
    return f"{place}: {hit['label']} {hit['score']:.2f} {hit['detector']} ({hit['policy']}: {what})"


def _reveal(hit: Any, line: str) -> None:
    """Print one hit with the text around it."""
    from redactory.pipelines.quarantine import harmless

    start = hit["column"] - 1
    end = min(len(line), start + hit["end"] - hit["start"])
    pieces = (line[max(0, start - _BESIDE) : start], line[start:end], line[end : end + _BESIDE])
    before, found, after = (harmless(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
    style = MASKED if hit["policy"] == "strict" else FLAGGED
    out.print(hit_line(hit), soft_wrap=True, markup=False)
    out.print(Text.assemble("  ", before, (found, style), after), soft_wrap=True)


def _is_unread(file: Any) -> bool:
    """Whether all rows of a file were rejected, for more than being empty; an empty cell of a table is."""
    empty = {"empty_text"} if file["format"] == "jsonl" else {"empty_text", "missing_text"}
    return not file["texts"] and bool(file["rejected"].keys() - empty)


# ``redactory scan --explain``: the one page that shows text, and only on the terminal.


def explained(result: dict[str, Any], every: bool) -> None:
    """Print the text with what each policy does to it in colours, then what decides it, or every mark."""
    text, marks = result["text"], result["marks"]
    shown = Text(text)
    # what is masked covers what is only flagged
    for style, key in ((FLAGGED, "makes_private"), (MASKED, "masks")):
        for mark in marks:
            if mark[key]:
                shown.stylize(style, mark["start"], mark["end"])
    out.print(shown, soft_wrap=True)
    out.print(Text.assemble((" masked by π ", MASKED), " ", (" makes the point private ", FLAGGED)))
    out.print()
    if result["failure"]:
        out.print(f"The point would be quarantined: {result['failure']}")
        return
    out.print(f"Side: {result['side']}. What stands there: ", end="")
    out.print(Text(result["masked"]), soft_wrap=True)
    groups = [[mark] for mark in marks] if every else _deciding(marks)
    rows = [_mark_row(text, group) for group in sorted(groups, key=lambda group: group[0]["start"])]
    if rows:
        header = ["place ¦ text ¦ label ¦ score ¦ by ¦ ", "---"]
        print_table("Marks" if every else "What decides", [*header, *rows])
    else:
        out.print("Nothing in it is masked or makes it private.")
    if left := len(marks) - sum(len(group) for group in groups):
        out.print(f"{left} more {'mark changes' if left == 1 else 'marks change'} nothing; --all shows them.")


def _deciding(marks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The marks that decide something, those of one place together."""
    masked = [mark for mark in marks if mark["masks"]]
    # what stands in a masked place adds nothing to what becomes of it
    flagged = [
        mark
        for mark in marks
        if mark["makes_private"]
        and not any(mark["start"] < one["end"] and one["start"] < mark["end"] for one in masked)
    ]
    return [*_by_place(masked), *_by_place(flagged)]


def _by_place(marks: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Marks in text order, those that overlap in one group."""
    groups: list[list[dict[str, Any]]] = []
    end = 0
    for mark in sorted(marks, key=lambda one: (one["start"], one["end"])):
        if groups and mark["start"] < end:
            groups[-1].append(mark)
        else:
            groups.append([mark])
        end = max(end, mark["end"])
    return groups


def _mark_row(text: str, marks: list[dict[str, Any]]) -> str:
    start, end = marks[0]["start"], max(mark["end"] for mark in marks)
    found, by = (", ".join(dict.fromkeys(mark[key] for mark in marks)) for key in ("label", "detector"))
    first = marks[0]
    effect = "masked" if first["masks"] else "makes private" if first["makes_private"] else ""
    score = f"{max(mark['score'] for mark in marks):.3f}"
    return " ¦ ".join((f"{start}–{end}", repr(text[start:end]).replace("¦", "|"), found, score, by, effect))


# ``redactory fit``: a tagger, or the conservative policy.


@command(app)
def fit(
    labelled: Annotated[
        list[Path], typer.Argument(metavar="LABELLED...", help="JSONL with the true spans (text, spans).")
    ],
    progress: Progress,
    out: Annotated[
        Path | None, typer.Option("--out", help="The tagger's folder; of a policy the file, policy.yaml.")
    ] = None,
    policy: Annotated[
        bool, typer.Option("--policy", help="Fit the conservative policy, so that what is missed is bounded.")
    ] = False,
    base: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face model's folder to train further, instead of our own small tagger."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Language code of the tokenizer of our own tagger; en without one.")
    ] = None,
    seed: o.SeedOption = None,
    config: o.ConfigOption = None,
    miss_rate: Annotated[
        float, typer.Option(help="With --policy: bound of the share of secrets that are missed.")
    ] = 0.001,
    confidence: o.ConfidenceOption = 0.95,
) -> Shown:
    """Train and calibrate a token tagger on labelled rows, or fit the conservative policy to them."""
    if not policy:
        if out is None:
            raise ConfigurationError("--out: name the folder of the tagger")
        settings = o.given_ones(language=language, epochs=epochs, seed=seed)
        return Shown("tagger_fitted", redactory.fit(labelled, out, settings, progress=progress, base=base))
    if len(labelled) > 1:
        raise ConfigurationError("--policy: a policy is fitted to one file of labelled rows")
    result = redactory.fit_policy(
        labelled[0],
        out=out or Path("policy.yaml"),
        config=config,
        miss_rate=miss_rate,
        confidence=confidence,
        progress=progress,
    )
    return Shown("policy_fitted", result, 1 if result["chosen"] is None else 0)


# ``redactory evaluate``.


@command(evaluations, "detection")
def evaluate_detection(
    progress: Progress,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|RUN",
            help="A configuration: what it misses of evaluate.labelled. A run: what its shards give away.",
        ),
    ] = None,
    labelled: LabelledOption = None,
    policy: Annotated[
        Literal["strict", "conservative", "both"], typer.Option(help="With --labelled: whose figures.")
    ] = "both",
    out: o.OutOption = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Of a run: who looks for what is left: patterns, tagger, spacy:NAME, stanza:FOLDER or "
            "transformers:FOLDER; one that did not mask."
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Of a run: points of each side it looks at.")] = 5_000,
    rare: Annotated[
        int, typer.Option(min=1, help="Of a run: a phrase is rare that at most so many public points hold.")
    ] = 2,
) -> Shown:
    """What the policies find and miss in labelled text, or what the shards of a run give away."""
    if labelled is not None:
        config = o.readable_configuration(what)
        return Shown("detection", redactory.evaluate_detect(labelled, config, policy, progress=progress))
    if what is None:
        raise ConfigurationError("give --labelled with a file of labelled rows, a configuration, or a run")
    if os.path.isdir(what):
        found = redactory.evaluate_redaction(what, engine, sample, rare, progress=progress)
        return Shown("redaction", found)
    return Shown("recall", redactory.evaluate_recall(what, output=out, progress=progress))


@command(evaluations, "model")
def evaluate_model(
    run: o.RunArgument,
    progress: Progress,
    model: o.ModelOption = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out corpus instead of the configured one.")
    ] = None,
) -> Shown:
    """Perplexity on held-out text, as it is and masked; of a classifier its test error rate."""
    found = redactory.evaluate_model(run, model, tuple(test or ()), progress)
    return Shown("perplexity" if "as_is" in found else "accuracy", found)


_OPTIONS = {
    "canary": {"canaries", "samples", "seed"},
    "extraction": {"samples", "tokens", "temperature", "top_k", "completions", "seed"},
    "membership": {
        *("secrets", "others", "label", "reference", "count", "group_size", "confidence", "seed"),
    },
}
"""Which options each attack takes."""


@command(evaluations, "attack")
def evaluate_attack(
    kind: Annotated[
        Literal["canary", "extraction", "membership"],
        typer.Argument(
            metavar="KIND",
            help="canary: exposure of planted canaries; extraction: secrets in texts that the model writes; "
            "membership: whether secrets it was trained on can be told from others.",
        ),
    ],
    run: o.RunArgument,
    progress: Progress,
    model: o.ModelOption = None,
    seed: o.SeedOption = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="canary: candidates drawn where there are more than a million (20,000 by "
            "default, at least 2,000); extraction: texts that the model writes (1,000).",
        ),
    ] = None,
    canaries: Annotated[
        Path | None, typer.Option(help="canary: FILE.canaries.json instead of the configured one.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="extraction: most tokens of a text (64).")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="extraction: below 1 likelier tokens are drawn more often; 0: none (1)."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="extraction: draw among so many of the likeliest tokens (all).")
    ] = None,
    completions: Annotated[
        int | None,
        typer.Option(min=0, help="extraction: secrets that are tried with the words before them (500)."),
    ] = None,
    secrets: Annotated[
        Path | None, typer.Option(help="membership: a corpus with true spans, instead of evaluate.labelled.")
    ] = None,
    others: Annotated[
        Path | None,
        typer.Option(help="membership: labelled JSONL whose values were never trained on (drawn)."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="membership: the kind of secret (the commonest).")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="membership: another model of this run, or another run: a stronger attack."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=4, help="membership: sentences of each kind, at most (1,000).")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="membership: sentences in a group (20).")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="membership: of each interval; 1 - 0.05 / k for k comparisons (0.95)."),
    ] = None,
) -> Shown:
    """Attack a model: exposure of canaries, extraction of secrets, or membership inference."""
    given = o.given_ones(
        samples=samples, canaries=canaries, tokens=tokens, temperature=temperature, top_k=top_k,
        completions=completions, secrets=secrets, others=others, label=label, reference=reference,
        count=count, group_size=group_size, confidence=confidence, seed=seed,
    )  # fmt: skip
    for name in given.keys() - _OPTIONS[kind]:
        raise ConfigurationError(f"--{name.replace('_', '-')} is not an option of the attack {kind}")
    if kind == "canary" and given.get("samples", 2_000) < 2_000:
        raise ConfigurationError("--samples: at least 2,000 candidates are needed")
    attack = getattr(redactory, f"evaluate_{kind}")
    return Shown(kind, attack(run, model, progress=progress, **given))


@command(evaluations, "audit")
def evaluate_audit(
    progress: Progress,
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder.")] = None,
    model: o.ModelOption = None,
    coins: Annotated[
        Path | None,
        typer.Option(help="The .coins.json of --plant; that beside the input by default."),
    ] = None,
    confidence: o.ConfidenceOption = 0.95,
    plant: Annotated[
        Path | None,
        typer.Option("--plant", metavar="CORPUS", help="Instead: plant canaries in this JSONL corpus."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --plant: the copy with canaries, to be curated.")
    ] = None,
    canaries: Annotated[
        int, typer.Option(min=1, help="With --plant: how many, each with a fair coin.")
    ] = 1_000,
    form: Annotated[
        Literal["pair", "masked", "absent"],
        typer.Option(help="A coin's worlds: one number or another, a number or its mask, a user or none."),
    ] = "pair",
    template: Annotated[
        str, typer.Option(help="With --plant: the sentence that ends with a number.")
    ] = "The code is: {digits}",
    text: Annotated[str, typer.Option("--text", help="With --plant: column of the text.")] = "text",
    identity: Annotated[str, typer.Option("--id", help="With --plant: column of the document's id.")] = "id",
    user: Annotated[str, typer.Option("--user", help="With --plant: column of the user.")] = "user_id",
    seed: Annotated[
        int | None, typer.Option(help="With --plant: test mode: coins that anybody can draw again.")
    ] = None,
) -> Shown:
    """One-run audit: the least epsilon that a model shows, beside the most that is stated; 1 where larger.

    Canaries are planted by fair coins first (--plant), then curated, trained on and guessed.
    """
    if (plant is None) == (run is None):
        raise ConfigurationError("give a run to audit, or --plant and a corpus")
    if run is not None:
        found = redactory.evaluate_audit(run, model, coins=coins, confidence=confidence, progress=progress)
        return Shown("audit", found, 0 if found["holds"] else 1)
    if plant is None or out is None:
        raise ConfigurationError("--out: name the copy of the corpus with canaries")
    planted = redactory.audit_plant(
        plant,
        out,
        canaries=canaries,
        form=form,
        template=template,
        seed=seed,
        columns={"text": text, "id": identity, "user_id": user},
        progress=progress,
    )
    return Shown("planted", planted)


# ``redactory label``: people label a sample of a run, and misses are measured on it.


@command(labels, "sample")
def label_sample(
    run: o.RunArgument,
    n: Annotated[int, typer.Option("-n", min=1, help="Most texts to label.")] = 400,
    seed: o.SeedOption = None,
    public_share: Annotated[float, typer.Option(help="Share of them that is public.")] = 0.6,
    name: NameOption = "sample",
) -> Shown:
    """Draw points of a finished run for people to label: JSON lines, Label Studio's tasks, a table."""
    drawn = redactory.audit_sample(run, n, seed=seed, name=name, public_share=public_share)
    return Shown("sampled", drawn)


@command(labels, "score")
def label_score(
    run: o.RunArgument,
    labelled: Annotated[
        Path,
        typer.Argument(metavar="LABELLED", help="The labelled JSON lines, or Label Studio's JSON export."),
    ],
    progress: Progress,
    confidence: o.ConfidenceOption = 0.95,
    unchanged: Annotated[
        bool, typer.Option("--unchanged", help="Score labels of which none differs from what was filled in.")
    ] = False,
    name: NameOption = "sample",
) -> Shown:
    """What the policies miss of the labelled secrets; a guarantee takes its figures from here."""
    scored = redactory.audit_score(
        run, labelled, name=name, confidence=confidence, unchanged=unchanged, progress=progress
    )
    return Shown("scored", scored)
