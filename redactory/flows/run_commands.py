"""Commands from a corpus to shards and a model."""

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.evaluate_commands import describe_measurements
from redactory.flows.model_commands import describe_remarks, describe_training, describe_vocabulary
from redactory.flows.options import command, drop_unset
from redactory.flows.show import (
    DECISIONS,
    Page,
    Result,
    Shown,
    fill,
    indent,
    print_warning,
    report_progress,
    table,
    warning,
)
from redactory.foundation.errors import ConfigurationError, join_words, pluralize
from redactory.foundation.files import make_private_folder, read_json
from redactory.foundation.keys import load_encryption_key
from redactory.pipelines.curation_hints import FIXES, describe_rejection, list_curation_hints


@command("init")
def write_example_config(
    file: Annotated[Path, Argument(metavar="[FILE]", help="The configuration file to write.")] = Path("redactory.yaml"),
) -> Shown:
    """Write a commented example configuration."""
    from redactory.pipelines.modeling.describe import write_example_config

    try:
        write_example_config(file)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists; give another name") from None
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; choose a file in a writable folder"
        ) from None
    return {"file": str(file)}, f"Wrote {file}. Next: redactory curate {file} --dry-run"


@command("curate")
def curate(
    config: opt.Config,
    output: opt.Output = None,
    resume: opt.Resume = False,
    workers: opt.Workers = None,
    prefect: opt.Prefect = False,
    dask: opt.Dask = None,
    encoding: opt.Encoding = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what it would do, without writing.")] = False,
    against: Annotated[str | None, Option(help="With --dry-run: compare policies with this run or config.")] = None,
) -> Shown:
    """Turn a raw corpus into audited shards."""
    if dry_run:
        planned = redactory.describe(config, encoding=encoding, progress=report_progress, output=output)
        if against is not None:
            planned["differs"] = redactory.policy_diff(against, config)
        return planned, describe_plan(planned), 1 if planned["refused"] else 0
    if encoding is not None and (prefect or dask is not None):
        raise ConfigurationError("--encoding: with --prefect or --dask, set input.encoding in the configuration")
    _warn_uncovered(config, output)
    options = {"output": output, "resume": resume, "workers": workers, **drop_unset(encoding=encoding)}
    result = _run_job("curate", config, prefect, dask, **options)
    _warn_unencrypted(result)
    return result, describe_curation(result)


def describe_plan(r: Result) -> Page:
    """Describe what a curation would do."""
    yield warning(r["uncovered"])
    yield r["languages"]
    yield table("Input", {"file": "{path}", "format": "{format}", "columns": "{columns}"}, r["sources"])
    yield table("Stages", (), {stage["stage"]: stage["does"] for stage in r["stages"]})
    yield table("Policies", {"policy": "{name}", "hash": "{hash}"}, r["policies"])
    yield table("Labels", ("label", "masked by", "only suspected by"), map(_format_label, r["labels"]))
    yield describe_vocabulary(r.get("vocabulary"))
    yield from describe_remarks(r)
    yield from _describe_trial(r["trial"])
    for policy, changes in r.get("differs", {}).items():
        rows = ((change["key"], str(change["old"]), str(change["new"])) for change in changes)
        yield table(f"What differs in the {policy} policy", ("key", "there", "here"), rows)
        yield None if changes else f"The {policy} policies are the same."
    bad = "Bad rows among the first {rows_looked_at} of each file: {bad_rows_seen}"
    yield fill(bad if r["bad_rows"] else "No bad row among the first {rows_looked_at} of each file.", r)
    columns = {"file": "{source}", "row": "{row:d}", "reason": "{reason}"}
    yield table("The first of them", columns, r["bad_rows"])
    yield from (f"{reason}: {FIXES[reason]}" for reason in r["bad_rows_by_reason"] if reason in FIXES)
    yield warning(r["refused"] and f"Of the checked rows: {r['refused']}")
    yield from (_describe_missing_column(missing, r["sources"]) for missing in r["columns_missing"])
    yield from (f"Not found: {missing}" for missing in r["evaluation_files_missing"])
    yield fill("Nothing was written. The run would go to {output}.", r)


def _format_label(label: Result) -> tuple[str, str, str]:
    masks = (part + (f" (from {least:g})" if least else "") for part, least in label["masks"].items())
    name = label["label"] + (", public if confident" if label["public"] else "")
    return name, ", ".join(masks), ", ".join(label["suspects"])


def _describe_trial(trial: Result) -> Page:
    from redactory.redaction.mask import describe_reason

    if not trial["documents"]:
        yield "No document could be used, so the policies were not tried."
        return
    splits = [(name, trial[name], f"{trial[name] / (trial['examples'] or 1):.0%}") for name in ("public", "private")]
    if trial["quarantined"]:
        splits.append(("quarantined", trial["quarantined"], ""))
    yield table(fill("Trial on {documents:n document}: {examples:n example}", trial), (), splits)
    reasons = ((reason, count, describe_reason(reason)) for reason, count in trial["reasons"].items())
    header = ("found by", "examples", "what it is")
    yield table("Why examples are private; each can have several reasons", header, reasons)
    yield table("What is masked", ("label", "spans"), trial["masked"])
    yield table("What stays public because of its label", ("label", "spans"), trial["left_public"])


_MISSING_COLUMN = {
    "input.text": "no row can be used",
    "input.user": "every row counts as a separate user, so an erasure of a user finds nothing",
    "input.label": "no row has a class",
}


def _describe_missing_column(missing: Result, sources: list[Result]) -> str:
    columns = next(source["columns"] for source in sources if source["path"] == missing["source"])
    chats = [column for column in columns if column in ("messages", "conversations")]
    example = f", as in input: {{text: {chats[0]}}}" if chats and missing["key"] == "input.text" else ""
    place = fill("{source}: no checked row has the column '{column}' ({key})", missing)
    return f"{place}: {_MISSING_COLUMN[missing['key']]}. Name one of the columns above{example}."


def describe_curation(r: Result) -> Page:
    """Describe a finished run: its rows and examples, and what was left out and why."""
    from redactory.dedup.settings import summarize_dedup

    yield warning(r["uncovered"])
    yield r["languages"]
    yield r["public_labels"]
    rejections = ", ".join(f"{reason} {count:,}" for reason, count in r["rejected_by_reason"].items())
    share = f"{fill('{rejected} of {rows:n row} rejected', r)} ({rejections})."
    yield warning(r["rejected"] and f"{share} To stop such a run, set input.max_rejected_share.")
    rows = {name: r[name] for name in ("rows", "documents", "rejected")}
    yield table("Rows", (), rows | indent(r["rejected_by_reason"]))
    decisions = [(name, r[name], f"{r[name] / (r['examples'] or 1):.1%}") for name in DECISIONS]
    reasons = [(name, count, "") for name, count in indent(r["quarantined_by_reason"]).items()]
    yield table("Examples", (), [("examples", r["examples"], ""), *decisions, *reasons])
    yield table("Duplicates", (), ((sentence,) for sentence in summarize_dedup(r["dedup"])))
    yield fill("{run}: {seconds:.1f} s. Report: {report}", r)
    yield from list_curation_hints(dict(r))
    if r["key_fresh"]:
        yield "No REDACTORY_KEY was set: a temporary key was used, so no other process can resume this run."


@command("redact")
def redact(
    source: Annotated[str, Argument(metavar="IN", help="A file, a folder or a URL; - reads standard input.")],
    out: Annotated[str, Option(help="The copy: a file, a folder or a URL; - writes standard output.")],
    own_config: opt.OwnConfig = None,
    workers: opt.Workers = 1,
    text_columns: Annotated[
        list[str] | None, Option("--text-column", help="A text column, like ticket.body or messages[*].content.")
    ] = None,
    column: Annotated[
        list[str] | None, Option(metavar="NAME=WHAT", help="WHAT: a label, drop or keep. Repeatable.")
    ] = None,
    keep_other_columns: Annotated[bool, Option("--keep-other-columns", help="Keep unnamed columns.")] = False,
    only: opt.Only = None,
    excluded: opt.Except = None,
    allow: opt.Allow = None,
    deny: opt.Deny = None,
    sensitivity: opt.Sensitivity = None,
    language: opt.Language = None,
    language_column: opt.LanguageColumn = None,
    replace: Annotated[str | None, Option(help="mask (default), label, number, pseudonym or surrogate.")] = None,
    vault: Annotated[Path | None, Option(help="With pseudonyms: the encrypted file to restore them from.")] = None,
    format_: Annotated[str, Option("--format", help="The format, if the file name does not show it.")] = "auto",
    encoding: opt.Encoding = None,
) -> Shown:
    """Copy a file or folder in its format, with the sensitive spans of its texts replaced.

    Options given here override the section redact of the configuration.
    """
    from redactory.pipelines.documents.detection_options import load_detection_options

    pairs = [entry.partition("=") for entry in column or ()]
    if not all(name and replacement for name, _, replacement in pairs):
        raise ConfigurationError("--column: expected NAME=LABEL, NAME=drop or NAME=keep, like name=PERSON")
    settings = drop_unset(
        columns={name: replacement for name, _, replacement in pairs} or None,
        keep_other_columns=keep_other_columns or None,
        replace=replace,
        vault=vault and str(vault),
        language_column=language_column,
    )
    config = load_detection_options(own_config, only, excluded, allow, deny, sensitivity, language, language_column)
    result = redactory.redact(
        source,
        out,
        settings,
        text_columns=text_columns or (),
        config=config,
        format_=format_,
        encoding=encoding,
        workers=workers or 1,
        progress=report_progress,
    )
    hints = [describe_rejection(reason, count) for reason, count in result["quarantined"].items()]
    if result["kept_keys"]:
        hints.append(f"Keys that may be personal data are kept as declared: in {join_words(result['kept_keys'])}.")
    if only:
        kinds = ", ".join(part.strip() for entry in only for part in entry.split(","))
        hints.append(f"Only {kinds} and denied terms are looked for; all else stays readable.")
    elif config.detect.public_labels:
        hints.append(f"Left readable, since they are public: {', '.join(config.detect.public_labels)}.")
    if result["masks_nothing"] and not only:
        hints.append("Warning: this policy masks nothing, not even in a sample text: see detect.strict.labels.")
    if source == "-" and format_ == "auto" and "broken_json" in result["quarantined"]:
        hints.append("Standard input was read as JSON lines: or give --format (csv, parquet, mbox, …).")
    code = 1 if result["quarantined"] or result["files_left_out"] else 0
    if out == "-":
        left_out = sum(result["quarantined"].values())
        print_warning(f"{pluralize(result['written'], 'row')} written, {left_out:,} left out.")
        for hint in hints:
            print_warning(hint)
        raise SystemExit(code)
    return result | {"out": out}, _describe_copy(result, out, hints), code


def _describe_copy(r: Result, out: str, hints: list[str]) -> Page:
    left_out = {f"files left out: {reason}": count for reason, count in r["files_left_out"].items()}
    removed = {
        "images, attachments and other parts removed": r["taken_out"],
        "formulas without a value removed": r["formulas_taken_out"],
    }
    names = {"pdf": "PDF files written as text", "msg": "Outlook messages written as mail"}
    removed |= {names[kind]: count for kind, count in r["converted"].items()}
    rows = {"read": r["rows"], "written": r["written"], "left out": sum(r["quarantined"].values())}
    rows |= indent(r["quarantined"]) | left_out | {name: count for name, count in removed.items() if count}
    yield table("Rows", (), rows)
    yield table("Replaced", (), r["replaced"])
    yield r["gives_away"] and f"What {r['replacement']} reveals: {r['gives_away']}"
    yield from hints
    if r["quarantined"] or r["files_left_out"]:
        yield f"Rows left out are listed in {out}.quarantine.jsonl."
    if not r["files"]:
        yield "Nothing was written: every document was left out."
    elif r["rows"] and not r["written"]:
        yield f"The copy {out} has no rows: every one was left out."
    else:
        yield (
            f"Wrote the copy {out}. It has no guarantee; a model has one if 'redactory train' trained it on the "
            "shards of 'redactory curate'."
        )


@command("unmask")
def unmask(
    source: Annotated[Path, Argument(metavar="FILE", help="A copy made with --replace pseudonym: a file or a folder.")],
    out: Annotated[Path, Option(help="The file or folder to write.")],
    vault: Annotated[Path, Option(help="The vault that was written with the copy.")],
) -> Shown:
    """Restore the original values of pseudonyms; each use is logged beside the vault."""
    result = redactory.unmask(source, out, vault)
    code = 1 if result["unknown"] or not result["put_back"] else 0
    return result, _describe_unmasking(result), code


def _describe_unmasking(r: Result) -> Page:
    yield table("Restored", (), {"rows": r["rows"], **r["unmasked"]})
    if unknown := r["unknown"]:
        kept = "is not in this vault, and was" if unknown == 1 else "are not in this vault, and were"
        yield warning(fill("{put_back:n pseudonym} restored; {unknown:,} {kept} kept.", r, kept=kept))
    elif not r["put_back"]:
        yield warning(
            "No pseudonym was found where this vault's copies have text: was this file made with --replace pseudonym?"
        )


@command("train")
def train(
    config: opt.Config,
    output: opt.Output = None,
    trainer: Annotated[str | None, Option(help="A trainer; default: train.trainer.")] = None,
    name: Annotated[str | None, Option("--model", help="The model's folder; default: train.name.")] = None,
    tracker: Annotated[
        list[str] | None, Option(help="Send public metrics to tensorboard, mlflow or wandb. Repeatable.")
    ] = None,
    settings: opt.Settings = None,
) -> Shown:
    """Train a model on the finished run of the configuration (section train)."""
    changes = opt.parse_settings(settings) | drop_unset(trainer=trainer, name=name)
    _print_remarks(config, output, **changes)
    result = redactory.train(config, output=output, trackers=tracker or (), progress=report_progress, **changes)
    return result, describe_training(result)


def _print_remarks(config: str, output: str | None, **changes: Any) -> None:
    """Warn of settings that are likely to make a training worse."""
    from redactory.pipelines.modeling.train import collect_remarks

    for remark in collect_remarks(config, output=output, **changes):
        print_warning(f"Warning: {remark}.")


@command("run")
def run(
    config: opt.Config,
    output: opt.Output = None,
    resume: opt.Resume = False,
    workers: opt.Workers = None,
    prefect: opt.Prefect = False,
    dask: opt.Dask = None,
) -> Shown:
    """Curate, train and evaluate."""
    _warn_uncovered(config, output)
    result = _run_job("run", config, prefect, dask, output=output, resume=resume, workers=workers)
    _warn_unencrypted(result)
    _print_remarks(config, output)
    pages = describe_curation(result), describe_training(result["model"]), describe_measurements(result["evaluation"])
    return result, chain(*pages)


def _run_job(work: str, config: str, prefect: bool, dask: str | None = None, **options: Any) -> dict[str, Any]:
    """Run ``work`` as the library's function, or as its flow, which a Dask cluster needs, and return the result."""
    options["progress"] = report_progress
    if prefect or dask is not None:
        from redactory.flows.schedule import run_flow

        return run_flow(work, config, dask=dask, **options)
    return dict(getattr(redactory, work)(config, **options))


def _warn_uncovered(config: str, output: str | None) -> None:
    # it imports Arrow, which would delay every command
    from redactory.detectors import describe_gaps, find_coverage_gaps
    from redactory.pipelines.curation.loading import load_config

    if (words := describe_gaps(find_coverage_gaps(load_config(config, output=output).detect, {}))) is not None:
        print_warning(words)


def _warn_unencrypted(result: Result) -> None:
    if not result["encrypted"] and load_encryption_key() is not None:
        print_warning("Warning: a key is configured, but this run is not encrypted; re-run curate with --out.")


@command("verify")
def verify(
    run: Annotated[str, Argument(metavar="RUN", help="A run folder, an export, or the URL of one.")],
    public_key: Annotated[Path | None, Option(help="PEM file of the public key that must have signed the run.")] = None,
) -> Shown:
    """Check a finished run from its files."""
    result = redactory.verify(run, progress=report_progress, public_key=public_key)
    return result, _describe_checks(result), 0 if result["ok"] else 1


def _describe_checks(r: Result) -> Page:
    states = ["FAILED" if not check["ok"] else "ok" if check["made"] else "open" for check in r["checks"]]
    for state, check in zip(states, r["checks"], strict=True):
        yield f"{state:<7} {check['name']:<24} {check['detail']}"
    skipped = ", ".join(check["name"] for state, check in zip(states, r["checks"], strict=True) if state == "open")
    passed = f"every check passed; skipped in full or part: {skipped}" if skipped else "every check passed"
    yield f"{r['run']}: {passed if r['ok'] else 'a check FAILED'}"


# The demonstration: four trainings on a corpus with planted numbers, and what each model gives away.


_DEMO_CONFIG = """\
input: {{path: corpus.jsonl}}
output: ../{run}
segment: {{mode: turn}}
partition: {{documents: 250}}
train:
  trainer: crt                   # or sgd, redact-only, dpsgd
  epsilon: 8.0
  delta: 1.0e-5
  sampling_rate: 0.05
  expected_batch_size: 64        # about the rate times the private examples
  epochs: 4
  learning_rate: 0.02
  public_weighting: count
  model: {{embedding_size: 64, hidden_size: 64}}
evaluate: {{test: test.jsonl, canaries: {canaries}, labelled: corpus.jsonl}}
workers: {workers}
"""
_DEMO_TRAINERS = {
    "sgd": "none: trained on the raw text",
    "redact-only": "masked text, no noise",
    "dpsgd": "noise on every text",
    "crt": "masked text, noise on private text",
}
_CANARY_COPIES, _ANSWER_COUNT = 120, 20
"""Copies of each planted number, enough for an unprotected model to memorise it; answers."""


@command("demo")
def run_demo(
    workers: opt.Workers = None,
    out: Annotated[Path, Option(help="The run folder.")] = Path("demo-run"),
    rows: Annotated[int, Option(help="Number of dialogues in the simulated corpus.", min=50)] = 300,
    prefect: Annotated[bool, Option(help="Run as a Prefect flow.")] = False,
) -> Shown:
    """Curate a simulated corpus with planted numbers, and see which of four models gives them away.

    The corpora and the configuration stay in OUT-input, for another look or run.
    """
    from redactory.pipelines.curation.output_folder import check_output_folder
    from redactory.redaction import RunFolder

    check_output_folder(RunFolder(out), resume=False)
    folder = make_private_folder(out.with_name(f"{out.name}-input"))
    corpus = redactory.simulate(folder / "corpus.jsonl", rows, 1, 10, _CANARY_COPIES, report_progress)
    redactory.simulate(folder / "test.jsonl", max(rows // 10, 20), 2, 0, 1, report_progress)
    workers = workers or min(2, os.cpu_count() or 1)
    canaries = Path(corpus["canaries_file"])
    file = folder / "redactory.yaml"
    text = _DEMO_CONFIG.format(run=out.name, canaries=canaries.name, workers=workers)
    file.write_text(text, encoding="utf-8")
    config, planted = str(file), read_json(canaries)
    run = _run_job("curate", config, prefect, output=str(out), resume=False, workers=workers)
    redactory.evaluate_recall(config, output=str(out), progress=report_progress)
    models = {trainer: _train_demo_model(config, out, trainer, planted) for trainer in _DEMO_TRAINERS}
    result = {**run, "models": models, "planted": len(planted["inserted"]), "configuration": config}
    result["prompt"] = planted["template"].partition("{digits}")[0].rstrip()
    result["verify"] = redactory.verify(out, progress=report_progress)
    return result, _describe_demo(result)


def _train_demo_model(config: str, run: Path, trainer: str, planted: Mapping[str, Any]) -> dict[str, Any]:
    """Train and measure a model; say how many planted numbers it repeats when prompted with the words before one."""
    trained = redactory.train(config, trainer=trainer, output=run, progress=report_progress)
    words = planted["template"].partition("{digits}")[0].rstrip()
    folder = run / "models" / trainer
    answers = redactory.predict(folder, (words,), write=_ANSWER_COUNT, tokens=8, temperature=0.5)["texts"][0]
    return {
        "epsilon": trained["guarantee"]["epsilon"],
        "perplexity": redactory.evaluate_model(run, trainer, progress=report_progress),
        "canary": redactory.evaluate_canary(run, trainer, progress=report_progress),
        "repeated": sorted(number for number in planted["inserted"] if any(number in text for text in answers)),
    }


def _describe_demo(r: Result) -> Page:
    counts = {name: r[name] for name in ("public", "private", "duplicate", "quarantined")}
    yield fill("Curated {rows} dialogues: ", r) + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + "."
    header = ("model", "protection", "perplexity", "exposure", "numbers repeated")
    title = fill("Four models of the same text, in which {planted} numbers are planted ('{prompt} 123456')", r)
    yield table(title, header, _list_demo_rows(r))
    canary = r["models"]["sgd"]["canary"]
    yield fill(
        "Perplexity: on masked held-out text; lower is better. Exposure: of the most exposed number, in bits, at most "
        "{largest_possible:.1f}.",
        canary,
    )
    yield fill("Numbers repeated: in {count} texts that begin with '{prompt}'.", r, count=_ANSWER_COUNT)
    if repeated := r["models"]["sgd"]["repeated"]:
        yield fill("sgd, without protection, writes planted numbers: {repeated}", {"repeated": repeated[:5]})
    checks = [check["ok"] for check in r["verify"]["checks"]]
    yield f"verify: {sum(checks)} of {pluralize(len(checks), 'check')} passed."
    yield fill("Configuration, to run it again: {configuration}", r)
    yield fill("Report: {report}", r)


def _list_demo_rows(r: Result) -> Iterator[tuple[str, ...]]:
    for trainer, model in r["models"].items():
        bound = "" if model["epsilon"] is None else fill(", epsilon {epsilon}", model)
        perplexity = f"{model['perplexity']['masked']['perplexity_per_word']:.1f}"
        exposure = f"{model['canary']['highest_exposure']:.1f}"
        protection = _DEMO_TRAINERS[trainer] + bound
        yield trainer, protection, perplexity, exposure, f"{len(model['repeated'])} of {r['planted']}"
    yield "by chance", "", "", f"{r['models']['crt']['canary']['chance']['highest_expected']:.1f}", ""


@command("simulate")
def simulate(
    out: Annotated[Path, Option(help="The JSONL file to write.")],
    rows: Annotated[int, Option(help="Number of dialogues.", min=1)] = 1_000,
    seed: Annotated[int, Option(help="The same seed gives the same corpus.")] = 0,
    canaries: Annotated[int, Option(help="Number of canaries, like 'My ID is: 123456'.", min=0)] = 0,
    copies: Annotated[int, Option(help="How often each canary is planted.", min=1)] = 1,
    undetectable_canary_rate: Annotated[
        float, Option(help="Share of canaries that strict misses.", min=0, max=1)
    ] = 0.0,
    templates: Annotated[
        list[str] | None, Option("--canary-template", help="Like 'My PIN is {4}'; repeatable.")
    ] = None,
) -> Shown:
    """Write support dialogues of invented people, with the position of every secret."""
    options = drop_unset(undetectable_canary_rate=undetectable_canary_rate, templates=templates or None)
    r = redactory.simulate(out, rows, seed, canaries, copies, report_progress, **options)
    written = "Wrote {rows:n dialogue} with {count:n labelled secret} to {out}"
    page = [fill(written, r, count=sum(r["secrets"].values())), r["canaries"] and f"Canaries: {r['canaries_file']}"]
    return r, page
