"""A hook of mkdocs: the reference and the results are made from the code and the data when the site is built.

python docs/generate.py FOLDER     writes the same pages into a folder

A line ``<!-- generated: NAME -->`` on a page that people write is where a part that follows from the code is
put.
"""

from __future__ import annotations

import enum
import importlib
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import typer.main
import yaml
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import redactory
from redactory.flows.cli import app
from redactory.foundation.settings import iter_nested_settings
from redactory.pipelines.curation.config import Config
from redactory.redaction import shards

HERE = Path(__file__).parent
ROOT = HERE.parent
LONGEST_DEFAULT = 60
_PLACE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([^<]*)</code>")


# ------------------------------------------------------------------------------------ the site's side


def on_files(files: Any, config: Any) -> Any:
    """The files of the site, with the pages that are in no folder."""
    from mkdocs.structure.files import File

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with its generated parts."""
    return filled(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A page with references in docstrings shown as the names that they lead to."""
    return _ROLE.sub(r"<code>\1</code>", html)


@cache
def pages() -> dict[str, str]:
    """Every page that is generated whole, by its place on the site."""
    return {
        "reference/configuration.md": configuration(),
        "reference/command-line.md": command_line(),
        "reference/errors.md": errors(),
        "reference/reason-codes.md": reason_codes(),
        "reference/licences.md": (ROOT / "LICENCES.md").read_text(encoding="utf-8"),
        "results.md": _results().page(),
    }


def filled(page: str) -> str:
    """``page`` with each generated part in its place."""
    parts: dict[str, Callable[[], str]] = {
        "tables": tables,
        "manifest": manifest,
        "python": python,
        "summary": lambda: _results().summary(),
    }
    return _PLACE.sub(lambda place: parts[place[1]]().rstrip(), page)


@cache
def _results() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("results")
    finally:
        sys.path.pop(0)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown, empty where there are no rows."""
    lines = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    head = list(heads)
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]) if lines else ""


def first_line(thing: Any) -> str:
    """What a docstring, or a help text, says first."""
    text = thing if isinstance(thing, str) else (thing.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


# ---------------------------------------------------------------------------------- configuration


def configuration() -> str:
    """One section a settings class, one row a key."""
    lines = [
        "# Configuration",
        "",
        "A configuration is one YAML file. Only `input` is needed; every other key has a default. Unknown "
        "keys are refused, with the nearest known key named. Paths in the file are relative to the file.",
        "",
        "`redactory init` writes a commented example, `redactory curate CONFIG --dry-run` says what a run of "
        'it would do. `redactory.schema("configuration")` is the JSON Schema, for editors.',
        "",
    ]
    for path, model in sections(Config, ""):
        rows = ((f"`{name}`", *_cells(field)) for name, field in model.model_fields.items())
        lines += [f"## `{path}`" if path else "## Top level", "", first_line(model), ""]
        lines += [table(("key", "values", "default", "meaning"), rows), "", *_long_defaults(model)]
    return "\n".join(lines).rstrip() + "\n"


def sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every settings class with the dotted path at which it stands."""
    yield path, model
    for name, field in model.model_fields.items():
        found = list(iter_nested_settings(field.annotation))
        for below in found:
            kind = f" ({_kind_of(below)})" if len(found) > 1 else ""
            yield from sections(below, f"{path}.{name}".lstrip(".") + kind)


def _kind_of(model: type[BaseModel]) -> str:
    # what the key ``kind`` says where a section is one of several
    return str(typing.get_args(model.model_fields["kind"].annotation)[0])


def _cells(field: FieldInfo) -> tuple[str, str, str]:
    below = list(iter_nested_settings(field.annotation))
    rules = [*field.metadata, *(rule for part in typing.get_args(field.annotation) for rule in _rules(part))]
    bounds = [f"{sign} {value:g}" for rule in rules for sign, value in _bounds(rule)]
    values = ", ".join([_kind(field.annotation), *bounds])
    return values, _default(field), field.description or (first_line(below[0]) if below else "")


def _rules(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is typing.Annotated else ()


def _bounds(rule: Any) -> Iterator[tuple[str, float]]:
    for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
        value = getattr(rule, name, None)
        if value is not None:
            yield sign, value
    for inner in getattr(rule, "metadata", ()):
        yield from _bounds(inner)


def _kind(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is typing.Annotated:
        return _kind(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys("none" if part is type(None) else _kind(part) for part in parts))
    if origin in (tuple, list):
        return f"list of {_kind(parts[0])}"
    if origin is dict:
        return f"mapping of {_kind(parts[0])} to {_kind(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(f"`{choice.value}`" for choice in annotation)
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", JsonValue: "any value"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed"
    if isinstance(field.default, BaseModel):
        return ""
    value = _yaml(field.default)
    return f"`{value}`" if len(value) <= LONGEST_DEFAULT else "below"


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_yaml(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(part)}" for key, part in value.items()) + "}"
    return str(value)


def _long_defaults(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if _default(field) != "below":
            continue
        named = isinstance(field.default, dict)
        entries = field.default.items() if isinstance(field.default, dict) else enumerate(field.default)
        yield f"Default of `{name}`:\n"
        yield "\n".join(f"- `{key}: {value}`" if named else f"- `{value}`" for key, value in entries) + "\n"


# ----------------------------------------------------------------------------------- command line


def command_line() -> str:
    """One section a command, one row a parameter."""
    lines = [
        "# Command line",
        "",
        "Every command has `--help` and `--json`. With `--json`, standard output holds exactly one JSON "
        "object, also when the command fails; progress goes to standard error. `redactory --version` prints "
        "the version.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | a check failed, or an unexpected error |",
        "| 2 | bad input or configuration |",
        "| 130 | interrupted (143 by `SIGTERM`) |",
        "",
        "**Completion.** `redactory --install-completion` makes Tab offer commands, options and their "
        "values, finished runs, jobs, and the models of a run, in bash, zsh, fish and PowerShell. "
        "`_REDACTORY_COMPLETE=source_bash redactory` prints the script, for a place of your own.",
        "",
    ]
    for name, command in commands():
        rows = (_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False))
        heads = ("parameter", "values", "default", "meaning")
        lines += [f"## `redactory {name}`", "", first_line(command.help or ""), "", table(heads, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The full name of every command, and the command."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _parameter(parameter: Any) -> tuple[str, str, str, str]:
    argument = parameter.param_type_name == "argument"
    shown = (parameter.metavar or parameter.name.upper()) if argument else " ".join(parameter.opts)
    kind = parameter.type_descriptor.annotation
    values = "" if kind is bool else _kind(kind).replace(" or none", "")
    default = parameter.default
    hidden = default is None or isinstance(default, bool) or callable(default)
    return (
        f"`{shown.strip('[]')}`",
        values if parameter.min is None else f"{values}, ≥ {parameter.min}",
        "needed" if parameter.required else "on" if default is True else "" if hidden else f"`{_yaml(default)}`",
        parameter.help or "",
    )


# ----------------------------------------------------------------------------------------- tables

FOLDERS = {
    "public/": (
        "PUBLIC",
        "Examples in which neither policy found anything, as they were written. "
        "Both splits, and `audit/examples`, also have `role`, `document_id`, `position`, `turn` and columns of "
        "the input where [they were asked for](../how-to/input.md#what-goes-with-each-example).",
    ),
    "private/": ("PRIVATE", "All other examples that are kept, masked by the strict policy."),
    "vault/": (
        "LABELLED_VAULT",
        "The original text of every example that is not quarantined, duplicates included. `class` is there "
        "only where `input.label` is set.",
    ),
    "audit/examples/": ("EXAMPLES", "Every example and its decision."),
    "audit/spans/": ("SPANS", "Every span of every policy, without its text."),
    "audit/across/": (
        "ACROSS",
        "Released public examples that nearly duplicate a private one; nothing else of either. Only where "
        "`dedup.report_cross_split` is on.",
    ),
    "quarantine/": ("QUARANTINE", "Rows that were rejected and examples that could not be processed."),
}

NUMBER = "The example's number: partition · 2³² + row."
COLUMNS = {
    "PUBLIC": {
        "example_id": "Released id: HMAC of the example's number under the run's key, 32 hex digits.",
        "text": "The example's text.",
    },
    "PRIVATE": {
        "example_id": "Released id, as in `public/`.",
        "user": "Keyed pseudonym of the user; a row without a user is its own.",
        "text": "The text, each span of the strict policy replaced by `<MASK>`.",
        "reasons": "Why the example is private: [reason codes](reason-codes.md#reasons).",
    },
    "LABELLED_VAULT": {
        "example_id": NUMBER,
        "doc_id": "The document's id as it was given.",
        "user_id": "The user as given, or null.",
        "speaker": "Who speaks, with `segment.mode: turn`.",
        "prefix": "What precedes the text: white space, the speaker's label.",
        "text": "The original text. Prefix, text and suffix of all examples give the document back.",
        "suffix": "What follows the text.",
        "class": "The class of the example's row as given, or null.",
    },
    "EXAMPLES": {
        "example_id": NUMBER,
        "released_id": "Its id in a shard.",
        "document": "Keyed pseudonym of the document.",
        "user": "Keyed pseudonym of the user.",
        "split": "`public` or `private`.",
        "decision": "`public`, `private`, `duplicate` or `quarantined`.",
        "dup_of": "Number of the example that is kept instead; null for others, and in mode `bloom`.",
        "earlier_run": "Entry of the index whose run has its text already, or null.",
        "reasons": "Why it is private.",
    },
    "SPANS": {
        "example_id": NUMBER,
        "start": "First code point of the span.",
        "end": "Code point after the last one.",
        "label": "What the detector takes it for.",
        "score": "How sure it is, 0 to 1.",
        "detector": "`tagger`, `spacy`, `presidio`, `stanza`, `transformers`, `list`, `rule` or the name of "
        "a package's engine; where a model is not sure that a token is plain, its name with `-plain`.",
        "policy": "`strict`, `conservative`, or `public` where the label may be public.",
        "value_digest": "Keyed digest of a masked value; null for what is not masked.",
        "tokens": "Tokens of a masked value; null for what is not masked.",
    },
    "ACROSS": {
        "example_id": "The public example's number.",
        "released_id": "Its id in `public/`.",
        "private_example": "The number of a private example, the nearest of those that were compared.",
        "similarity": "Jaccard similarity of the two masked texts' word shingles.",
    },
    "QUARANTINE": {
        "kind": "`row` or `example`.",
        "reason": "[Reason code](reason-codes.md).",
        "source": "The row's file, or the example's document.",
        "row": "Row number in the file, from 1; null for an example.",
        "example_id": "The example's number; null for a row.",
        "user_id": "The example's user as given, or null.",
        "class": "The class of the example's row as given, or null.",
        "content": "Up to 64 KiB of a bad row, the whole text of an example. Never release this.",
    },
}


def tables() -> str:
    """The schema of every data folder."""
    parts = []
    for folder, (name, says) in FOLDERS.items():
        schema: pa.Schema = getattr(shards, name)
        rows = ((f"`{field.name}`", field.type, COLUMNS[name][field.name]) for field in schema)
        parts.append(f"### `{folder}`\n\n{says}\n\n{table(('column', 'type', 'meaning'), rows)}\n")
    return "\n".join(parts).replace("list<item: string>", "list of string")


def manifest() -> str:
    """The keys of a run's manifest, as its schema describes them."""
    schema = json.loads((ROOT / "redactory" / "schemas" / "run-manifest.schema.json").read_text(encoding="utf-8"))
    rows = ((f"`{key}`", _described(value, schema["$defs"])) for key, value in schema["properties"].items())
    return table(("key", "content"), rows)


def _described(schema: dict[str, Any], shared: dict[str, Any]) -> str:
    schema = {**shared.get(str(schema.get("$ref", "")).rpartition("/")[2], {}), **schema}
    if "const" in schema:
        return f"`{schema['const']}`"
    below = schema.get("properties") or schema.get("items")
    if "description" in schema or not below:
        return str(schema.get("description", ""))
    if "properties" not in schema:
        return "Of each: " + _described(below, shared)
    told = {name: value.get("description", "") for name, value in below.items()}
    return "; ".join(f"`{name}`" + (f": {says.rstrip('.')}" if says else "") for name, says in told.items()) + "."


# ----------------------------------------------------------------------------------- reason codes

REASONS = {
    "Reasons": (
        "Why an example is private, in `private/` and `audit/examples/`: detector and label.",
        {
            "tagger:LABEL": "The tagger marked it: `PERSON`, `LOCATION`, `STREET_ADDRESS`, … at any score.",
            "spacy:LABEL": "A spaCy pipeline tagged an entity, also with a label that is not masked.",
            "stanza:LABEL": "The same of a Stanza model.",
            "transformers:LABEL": "The same of a Hugging Face classifier.",
            "list:LABEL": "A term of a deny list.",
            "presidio:LABEL": "A pattern matched: `PHONE_NUMBER`, `EMAIL_ADDRESS`, … or a label of your own.",
            "tagger-plain:UNSURE": "The tagger is unsure whether a word is an entity; `spacy-plain`, "
            "`stanza-plain`, `transformers-plain` likewise.",
            "rule:DIGIT": "A word holds a digit.",
            "rule:SYMBOL": "A word holds a sign of addresses, links, handles or paths.",
            "rule:CAPITAL": "A capital letter that grammar does not ask for.",
            "rule:NAME": "A word of the public list of given names.",
            "rule:WORD": "A word that the public list of ordinary words does not have.",
            "rule:EVERYTHING": "The configuration makes every example private.",
            "mask:IN_TEXT": "The original text itself contains `<MASK>`.",
        },
    ),
    "Rejected rows": (
        "Why a row of the input was not used, in `quarantine/` with `kind` = `row`.",
        {
            "undecodable": "Not UTF-8, or a text file with a NUL character (as UTF-16 has).",
            "broken_json": "A line is not JSON.",
            "not_an_object": "A line is JSON, but not an object.",
            "repeated_key": "A JSON object has a key twice, at any depth.",
            "row_too_long": "More bytes than `input.max_row_bytes`.",
            "broken_row": "A CSV or TSV row with another number of fields than the header, or with a "
            "quotation that does not end or is followed by text, or a line that may stand inside of one; a "
            "Parquet or Arrow row with a value that cannot be read, such as a date after the year 9999.",
            "expanding_file": "A compressed, Parquet or Arrow file holds more than `input.max_expansion` "
            "times its size, or any more than a million blank lines: the rows from here on are not read. "
            "Counted once.",
            "link_outside": "A link in the input's folder leads out of it, and is not followed. A file that "
            "is named itself may be a link.",
            "linked_folder": "A link to a folder in the input's folder, which is not followed.",
            "not_a_file": "A pipe, a device or a broken link in the input's folder.",
            "unreadable_file": "The file is cut off, damaged, or lacks a column that is named: the rows from "
            "here on are missing. Counted once.",
            "missing_text": "No text column, or null.",
            "text_not_string": "The text is a number, an object, …",
            "text_is_bytes": "The text is bytes that are not UTF-8 (Parquet, Arrow): cast it to strings.",
            "text_is_list": "The text is a list: cast it to a string, or name what is in it (`notes[*]`).",
            "empty_text": "Empty, or white space alone.",
            "too_long": "More code points than `input.max_chars`.",
            "nul": "The text holds a NUL character.",
            "lone_surrogate": "The text holds half of a surrogate pair.",
            "missing_id": "`input.id` is set and the row has none.",
            "id_not_string": "The id is neither text nor a whole number.",
            "user_not_string": "The user is neither text nor a whole number.",
            "id_too_long": "An id of more than 1,024 code points.",
            "user_too_long": "A user of more than 1,024 code points.",
            "label_not_string": "With `input.label`: the class is neither text nor a whole number.",
            "label_too_long": "A class of more than 1,024 code points.",
            "kept_not_plain": "With `input.metadata_columns`: a value is no string, number, true or false.",
            "kept_too_long": "A kept value of more than 1,024 code points.",
            "duplicate_id": "An earlier row has the same id.",
            "undeclared_field": "Of `redact`: after the first 1,000 rows, a field that is neither masked nor declared.",
            "embedded_data": "A text is a `data:` address, or a turn of a conversation holds bytes or base64 "
            "(images, sound).",
            "separator_in_text": "With several fields: a text holds U+001E or U+001F, which stand between them.",
            "too_many_elements": "A document has more elements, attributes, header fields, parts or texts "
            "than can be read in a bounded time.",
            "broken_document": "A mail, Word or PDF file that cannot be read, or that readers could take otherwise.",
            "encrypted_document": "A Word or PDF file with a password.",
            "document_without_text": "A PDF file whose pages are images.",
        },
    ),
    "Quarantined examples": (
        "An example that a detector could not process is never let through. In `quarantine/` with `kind` = `example`.",
        {
            "too_long": "More code points than `detect.max_chars`.",
            "pattern_timeout": "A regular expression did not come to an end.",
            "engine_error": "An engine failed on this text.",
            "misaligned": "An engine's places do not fit the text, so it is not known what it marked.",
        },
    ),
}


def reason_codes() -> str:
    """One table for each kind of reason."""
    parts = ["# Reason codes\n"]
    for heading, (says, codes) in REASONS.items():
        rows = ((f"`{code}`", meaning) for code, meaning in codes.items())
        parts.append(f"## {heading}\n\n{says}\n\n{table(('code', 'meaning'), rows)}\n")
    return "\n".join(parts)


# ----------------------------------------------------------------------------------------- Python

BESIDE = (
    *("training.model.load_model", "training.model.LanguageModel", "training.model.load_classifier"),
    *("training.model.TextClassifier", "training.tokenizer.Tokenizer", "training.clipping.clipped_backward"),
    *("training.private_loop.PrivateLoop", "training.private_loop.PrivateLoopStep"),
    *("training.integrations.transformers_trainer.PrivateTrainer", "training.integrations.trackers.open_trackers"),
    "training.integrations.transformers_trainer.PrivateTrainerMixin",
    *("training.shard_dataset.ShardDataset", "redaction.folder.RunFolder", "redaction.folder.ModelFolder"),
)
"""What is public and not a name of the package itself."""


def python() -> str:
    """Every public name, by kind, as mkdocstrings shows it."""
    public = {name: f"{getattr(redactory, name).__module__}.{name}" for name in redactory.__all__}
    errors = [name for name in sorted(public) if ".errors." in public[name]]
    classes = [name for name in sorted(public) if name[0].isupper() and name not in errors]
    functions = [name for name in sorted(public) if name[0].islower()]
    lines = []
    for heading, names in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        lines.append(f"## {heading}\n")
        for name in names:
            lines.append(f"::: {public[name]}\n")
    lines += ["## Models, shards and run folders\n", *(f"::: redactory.{path}\n" for path in BESIDE)]
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------- errors

MISTAKES = ROOT / "tests" / "mistakes" / "mistakes.yaml"


def errors() -> str:
    """One table a section of the mistakes that tests/mistakes makes: what was done and said, what to do."""
    lines = [
        "# Errors",
        "",
        "What goes wrong most often, what Redactory says then, and what to do. A test makes each of these "
        "mistakes and compares what is printed.",
        "",
        "A message goes to standard error, in one line after `redactory:`. With `--json` it is also the "
        "key `error` of the one object on standard output, beside `ok` and `exit_code`. No message quotes "
        "the corpus, a document's id or a user. `…` stands for what differs from time to time; paths are "
        "shown from the folder in which the command was given. Where the exit code is 0, nothing failed: the "
        "message is a line of what the command prints.",
        "",
    ]
    for section in yaml.safe_load(MISTAKES.read_text(encoding="utf-8")):
        rows = ((m["mistake"], f"`{m['message']}`", str(m["exit"]), m["fix"]) for m in section["mistakes"])
        heads = ("mistake", "message", "exit code", "what to do")
        lines += [f"## {section['section']}", "", table(heads, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for page, text in pages().items():
        path = Path(sys.argv[1]) / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
