"""Write the reference pages that follow from the code: configuration, command line, tables.

python docs/generate.py          writes them
A test regenerates them and compares, so that they cannot drift from the code.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from redactory.detectors import patterns, spacy_ner
from redactory.detectors.classifier import engine as classifier
from redactory.detectors.engine import MODELS
from redactory.detectors import lists as listing
from redactory.detectors import stanza_ner as stanza
from redactory.detectors.tagger import engine as tagger
from redactory.flows.cli import app
from redactory.foundation.errors import listed
from redactory.pipelines.config import Config
from redactory.redaction import shards

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py; change the code's descriptions instead. -->\n"
LONGEST_DEFAULT = 60


def pages() -> dict[Path, str]:
    """Every generated page, by its path."""
    reference = HERE / "reference"
    return {
        reference / "configuration.md": configuration(),
        reference / "command-line.md": command_line(),
        reference / "tables.md": tables(),
        reference / "errors.md": errors(),
    }


# ---------------------------------------------------------------------------------- configuration


def configuration() -> str:
    """One section a settings class, one row a key."""
    lines = [
        NOTE,
        "# Configuration",
        "",
        "A configuration is one YAML file. Only `input` is needed; every other key has a default. Unknown "
        "keys are refused, with the nearest known key named. Paths in the file are relative to the file.",
        "",
        "`redactory init` writes a commented example, `redactory describe CONFIG` says what a run of it "
        "would do.",
        "",
    ]
    for path, model in _sections(Config, ""):
        lines += [f"## `{path}`" if path else "## Top level", "", _first_line(model), ""]
        lines += ["| key | values | default | meaning |", "|---|---|---|---|"]
        lines += [_row(name, field) for name, field in model.model_fields.items()]
        lines += ["", *_long_defaults(model)]
    return "\n".join(lines).rstrip() + "\n"


def _sections(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        found = _models_in(field.annotation)
        for below in found:
            kind = f" ({_kind_of(below)})" if len(found) > 1 else ""
            yield from _sections(below, f"{path}.{name}".lstrip(".") + kind)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    return next(iter(_models_in(annotation)), None)


def _kind_of(model: type[BaseModel]) -> str:
    """What the key ``kind`` says where a section is one of several."""
    return str(typing.get_args(model.model_fields["kind"].annotation)[0])


def _row(name: str, field: FieldInfo) -> str:
    below = _model_in(field.annotation)
    meaning = field.description or (_first_line(below) if below else "")
    cells = (f"`{name}`", _values(field), _default(field), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(field: FieldInfo) -> str:
    rules = [*field.metadata, *(rule for part in typing.get_args(field.annotation) for rule in _rules(part))]
    bounds = [f"{sign} {value:g}" for rule in rules for sign, value in _bounds(rule)]
    return ", ".join([_kind(field.annotation), *bounds])


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
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
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
        yield f"Default of `{name}`:"
        yield ""
        entries = field.default.items() if isinstance(field.default, dict) else enumerate(field.default)
        named = isinstance(field.default, dict)
        yield "\n".join(f"- `{key}: {value}`" if named else f"- `{value}`" for key, value in entries)
        yield ""


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


# ----------------------------------------------------------------------------------- command line


def command_line() -> str:
    """One section a command, one row a parameter."""
    lines = [
        NOTE,
        "# Command line",
        "",
        "Every command has `--help` and `--json`. With `--json`, standard output holds exactly one JSON "
        "object; progress goes to standard error. `redactory --version` prints the version.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | a check failed, or an unexpected error |",
        "| 2 | bad input or configuration |",
        "| 130 | interrupted |",
        "",
    ]
    for name, callback in commands(app):
        lines += [f"## `redactory {name}`", "", _first_line(callback), ""]
        lines += ["| parameter | values | default | meaning |", "|---|---|---|---|"]
        lines += [_parameter(*entry) for entry in _parameters(callback)]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def commands(typer_app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """The full name and the function of every command."""
    for command in typer_app.registered_commands:
        assert command.callback is not None
        yield prefix + (command.name or command.callback.__name__.replace("_", "-")), command.callback
    for group in typer_app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{prefix}{group.name} ")


def _parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, Any]]:
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = typing.get_args(hints[name])[:2]
        yield name, kind, info, parameter.default


def _parameter(name: str, kind: Any, info: Any, default: Any) -> str:
    argument = type(info).__name__ == "ArgumentInfo"
    shown = (info.metavar or name.upper()) if argument else _flags(name, info)
    value = "needed" if default is inspect.Parameter.empty else f"`{default}`"
    if default is None or isinstance(default, bool):
        value = "on" if default else ""
    values = "" if kind is bool else _kind(kind).replace(" or none", "")
    if info.min is not None:
        values += f", ≥ {info.min}"
    return f"| `{shown}` | {values} | {value} | {info.help} |"


def _flags(name: str, info: Any) -> str:
    # Typer keeps the first name that is given where a default would stand
    first = (info.default,) if isinstance(info.default, str) else ()
    return " ".join((*first, *info.param_decls)) or f"--{name.replace('_', '-')}"


# ----------------------------------------------------------------------------------------- tables

FOLDERS = {
    "public/": ("PUBLIC", "Points in which neither policy found anything, as they were written."),
    "private/": ("PRIVATE", "All other points that are kept, masked by the strict policy."),
    "vault/": (
        "LABELLED_VAULT",
        "The original text of every point that is not quarantined, duplicates included. `class` is there "
        "only where `input.label` is set.",
    ),
    "audit/points/": ("POINTS", "Every point and what became of it."),
    "audit/spans/": ("SPANS", "Every hit of every policy, without its text."),
    "audit/across/": (
        "ACROSS",
        "Released public points that nearly duplicate a private one; nothing else of either. Only where "
        "`dedup.across` is on.",
    ),
    "quarantine/": ("QUARANTINE", "Rows that were rejected and points that could not be processed."),
}

HITS = (
    *(tagger.NAME, spacy_ner.NAME, patterns.DETECTOR, stanza.NAME, classifier.NAME, listing.DETECTOR),
    "rule",
)
COLUMNS = {
    ("PUBLIC", "point_id"): "Released id: HMAC of the point's number under the run's key, 32 hex digits.",
    ("PUBLIC", "text"): "The point's text.",
    ("PRIVATE", "point_id"): "Released id, as in `public/`.",
    ("PRIVATE", "user"): "Keyed pseudonym of the user; a row without a user is its own.",
    ("PRIVATE", "text"): "The text, each hit of the strict policy replaced by `<MASK>`.",
    ("PRIVATE", "reasons"): "Why the point is private: [reason codes](reason-codes.md#reasons).",
    ("LABELLED_VAULT", "point_id"): "The point's number: partition · 2³² + row.",
    ("LABELLED_VAULT", "doc_id"): "The document's id as it was given.",
    ("LABELLED_VAULT", "user_id"): "The user as given, or null.",
    ("LABELLED_VAULT", "speaker"): "Who speaks, with `segment.mode: turn`.",
    ("LABELLED_VAULT", "prefix"): "What stands before the text: white space, the speaker's label.",
    (
        "LABELLED_VAULT",
        "text",
    ): "The original text. Prefix, text and suffix of all points give the document back.",
    ("LABELLED_VAULT", "suffix"): "What stands after the text.",
    ("LABELLED_VAULT", "class"): "The class of the point's row as given, or null.",
    ("POINTS", "point_id"): "The point's number, as in `vault/`.",
    ("POINTS", "released_id"): "The id under which it stands in a shard.",
    ("POINTS", "document"): "Keyed pseudonym of the document.",
    ("POINTS", "user"): "Keyed pseudonym of the user.",
    ("POINTS", "side"): "`public` or `private`.",
    ("POINTS", "fate"): "`public`, `private`, `duplicate` or `quarantined`.",
    ("POINTS", "dup_of"): "Number of the point that stands for it; null for others, and in mode `bloom`.",
    ("POINTS", "earlier_run"): "Entry of the index whose run has its text already, or null.",
    ("POINTS", "reasons"): "Why it is private.",
    ("SPANS", "point_id"): "The point's number.",
    ("SPANS", "start"): "First code point of the hit.",
    ("SPANS", "end"): "Code point after the last one.",
    ("SPANS", "label"): "What the detector takes it for.",
    ("SPANS", "score"): "How sure it is, 0 to 1.",
    ("SPANS", "detector"): (
        f"{listed((f'`{name}`' for name in HITS), 'or')}; where a model is not sure that a token is plain, "
        f"{listed((f'`{name}-plain`' for name in MODELS), 'or')}."
    ),
    ("SPANS", "policy"): "`strict` or `conservative`.",
    ("SPANS", "value_digest"): "Keyed digest of a masked value; null for the conservative policy.",
    ("SPANS", "tokens"): "Tokens of a masked value; null for the conservative policy.",
    ("ACROSS", "point_id"): "The public point's number, as in `vault/`.",
    ("ACROSS", "released_id"): "The id under which it stands in `public/`.",
    ("ACROSS", "private_point"): "The number of a private point, the nearest of those that were compared.",
    ("ACROSS", "similarity"): "Jaccard similarity of the two masked texts' word shingles.",
    ("QUARANTINE", "kind"): "`row` or `point`.",
    ("QUARANTINE", "reason"): "[Reason code](reason-codes.md).",
    ("QUARANTINE", "source"): "The row's file, or the point's document.",
    ("QUARANTINE", "row"): "Row number in the file, from 1; null for a point.",
    ("QUARANTINE", "point_id"): "The point's number; null for a row.",
    ("QUARANTINE", "content"): "Up to 64 KiB of a bad row, the whole text of a point. Never release this.",
}


def tables() -> str:
    """The schema of every data folder."""
    lines = [
        NOTE,
        "# Tables",
        "",
        "Every data folder holds Parquet files `part-00000.parquet`, `part-00001.parquet` and so on, one for "
        "each partition, compressed with zstd. Offsets count Unicode code points.",
        "",
    ]
    for folder, (name, says) in FOLDERS.items():
        schema: pa.Schema = getattr(shards, name)
        lines += [f"## `{folder}`", "", says, "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{field.name}` | {field.type} | {COLUMNS[name, field.name]} |" for field in schema]
        lines += [""]
    return "\n".join(lines).replace("list<item: string>", "list of string").rstrip() + "\n"


# ----------------------------------------------------------------------------------------- errors

MISTAKES = HERE.parent / "tests" / "mistakes" / "mistakes.yaml"


def errors() -> str:
    """One table a section of the mistakes that tests/mistakes makes: what was done and said, what to do."""
    lines = [
        NOTE.replace("the code's descriptions", "tests/mistakes/mistakes.yaml"),
        "# Errors",
        "",
        "What goes wrong most often, what Redactory says then, and what to do. A test makes each of these "
        "mistakes and compares what is printed.",
        "",
        "A message stands on standard error, in one line after `redactory:`. With `--json` it is also the "
        "key `error` of the one object on standard output, beside `ok` and `exit_code`. No message quotes "
        "the corpus, a document's id or a user. `…` stands for what differs from time to time; paths are "
        "shown from the folder in which the command was given. [Exit codes](command-line.md) are those of "
        "every command.",
        "",
        "Where the exit code is 0, nothing failed: the message is a line of what the command prints.",
        "",
    ]
    for section in yaml.safe_load(MISTAKES.read_text(encoding="utf-8")):
        lines += [
            f"## {section['section']}",
            "",
            "| mistake | message | exit code | what to do |",
            "|---|---|---|---|",
        ]
        lines += [_mistake(row) for row in section["mistakes"]]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _mistake(row: dict[str, Any]) -> str:
    cells = (row["mistake"], f"`{row['message']}`", str(row["exit"]), row["mend"])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content, encoding="utf-8")
