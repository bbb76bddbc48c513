"""Load a configuration: read YAML without repeated keys, and report every mistake with its line."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from redactory.detectors.external import list_installed_engines
from redactory.detectors.tagger import DEFAULT
from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.foundation.settings import Settings, format_validation_error, iter_nested_settings
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.share import WORK_VARIABLE
from redactory.pipelines.readers.files import format_known_endings
from redactory.pipelines.store import is_url
from redactory.redaction import RunFolder, is_finished
from redactory.training.models.settings import KINDS
from redactory.training.unit_settings import HIGH_DEGREE_LISTS


class _UniqueKeyLoader(yaml.SafeLoader):
    """A loader that rejects a repeated key; YAML's own silently uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            problem = None
            if not isinstance(key, yaml.ScalarNode):
                problem = "expected a key, got a list or a mapping; check brackets and '?'"
            elif key.value in seen:
                problem = f"the key '{shorten_name(key.value)}' is given twice; keep one of them"
            if problem:
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file; ``ConfigurationError`` names the file, the line and the fix."""
    try:
        # ignore a byte order mark, which some editors write
        value = yaml.load(path.read_text(encoding="utf-8-sig"), _UniqueKeyLoader)
    except OSError as error:
        problem = f" cannot be read: {error.strerror}; 'redactory init {path}' writes an example"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problem = f", line {line}: this is not UTF-8; save the file as UTF-8"
    except (ValueError, RecursionError):
        # an invalid date, a number with too many digits, endless brackets
        problem = (
            ": cannot be read as YAML: put values that look like a date or a number in quotation marks, and "
            "check for surplus brackets"
        )
    except yaml.YAMLError as error:
        mark, words = getattr(error, "problem_mark", None), str(getattr(error, "problem", None) or "")
        if "'\\t'" in words:
            words = "invalid YAML: tab character; indent with spaces"
        elif not isinstance(error, yaml.constructor.ConstructorError):
            words = (
                f"invalid YAML ({words}); check for an unclosed bracket or quotation mark, and the "
                "indentation, here and in the line before"
            )
        problem = (f", line {mark.line + 1}, column {mark.column + 1}" if mark else "") + f": {words}"
    else:
        if isinstance(value, dict):
            return value
        problem = ": expected a mapping, with at least the key 'input', like 'input: corpus.jsonl'"
    raise ConfigurationError(f"{path}{problem}")


# A run whose output is a URL is created in a local folder and published from there.


def resolve_output_url(value: Mapping[str, Any], changes: Mapping[str, Any], parent: Path) -> dict[str, Any]:
    """Apply ``changes`` to the configuration ``value``; split an ``output`` at a URL into a folder and ``store``.

    The folder has the run's name, below ``$REDACTORY_WORK`` or ``parent``, the folder of the configuration. A local
    ``output`` in ``changes`` that replaces a URL is not published.
    """
    changed = _split_output_and_store(value, parent)
    is_local = "output" in changes and not is_url(changes["output"])
    if is_local and changed.get("store") and Path(changes["output"]) != Path(changed["output"]):
        changed["store"] = None
    return _split_output_and_store({**changed, **changes}, parent)


def _split_output_and_store(value: Mapping[str, Any], parent: Path) -> dict[str, Any]:
    output = value.get("output")
    if output is None or not is_url(output):
        return dict(value)
    url = str(output).rstrip("/")
    name = url.rpartition("/")[2]
    if not name or name in (".", "..") or is_url(f"{name}//"):
        raise ConfigurationError(f"output: {url} has no folder: give one below the bucket")
    work = os.environ.get(WORK_VARIABLE) or parent
    return {**value, "output": str(Path(work) / name), "store": url}


# From a YAML file, an input path or a mapping to a checked configuration.


ConfigLike = Config | Mapping[str, Any] | str | Path
"""A configuration as the public functions accept it."""


def load_config(config: ConfigLike, encoding: str | None = None, **changes: Any) -> Config:
    """Load and check a configuration, with ``changes`` to its top-level keys, and ``input.encoding``.

    ``config`` is a ``Config``, a mapping, a YAML file, or an input file or folder (other keys then have defaults).
    Paths in a YAML file are relative to it. ``ConfigurationError`` names every wrong key and its fix; no input is read.
    """
    changes = {key: value for key, value in changes.items() if value is not None}
    value, file = _read_config_mapping(config)
    if value is None:
        path = Path(str(config))
        if is_finished(RunFolder(path)):
            # its vault would be read as a corpus
            raise ConfigurationError(f"'{config}' is a run: give the configuration (.yaml) it was created with")
        if not (path.exists() or "://" in str(config) or any(sign in str(config) for sign in "*?[")):
            raise ConfigurationError(
                f"'{config}' not found: expected a configuration (.yaml), an input file ({format_known_endings()}) or "
                "a folder"
            )
        value = {"input": {"path": str(config)}}
    if encoding is not None:
        section = value.get("input")
        columns = section if isinstance(section, Mapping) else {"path": section}
        value = {**value, "input": {**columns, "encoding": encoding}}
    return validate_config(resolve_output_url(value, changes, file.parent.resolve() if file else Path()), file)


def load_text_config(config: ConfigLike | None, paths: Sequence[str] = ("-",), **input_changes: Any) -> Config:
    """Load a configuration, or the default one, for texts from elsewhere, or from ``paths``.

    As :func:`load_config`, with ``input_changes`` that are not None, but input and output are optional; ``input.path``
    and ``output`` in ``config`` are ignored.
    """
    value, file = _read_config_mapping({} if config is None else config)
    if value is None:
        raise ConfigurationError(f"'{config}' is not a configuration: give a file that ends in .yaml")
    section = value.get("input")
    columns = section if isinstance(section, Mapping) else {}
    sections = {key: part for key, part in value.items() if key not in ("output", "store")}
    input_changes = {key: part for key, part in input_changes.items() if part is not None}
    return validate_config({**sections, "input": {**columns, "path": tuple(paths), **input_changes}}, file)


def _read_config_mapping(config: ConfigLike) -> tuple[Mapping[str, Any] | None, Path | None]:
    """Return the mapping in a configuration, mapping or YAML file, and the file; None for anything else."""
    if isinstance(config, Config):
        return config.model_dump(exclude_unset=True), None
    if isinstance(config, Mapping):
        return config, None
    file = Path(config)
    if file.suffix not in (".yaml", ".yml"):
        return None, None
    return _resolve_relative_paths(read_yaml(file), file.parent.resolve()), file


def validate_config(value: Mapping[str, Any], file: Path | None = None) -> Config:
    """Validate ``value``, read from ``file``; ``ConfigurationError`` lists all mistakes."""
    try:
        return Config.model_validate(dict(value))
    except ValidationError as error:
        prefix = "" if file is None else f"{file}: "
        raise ConfigurationError(prefix + "; ".join(_explain_errors(error.errors(include_url=False)))) from None


_PATH_KEYS = (
    *("input.path", "output", "work", "evaluate.test", "evaluate.canaries", "evaluate.labelled"),
    *("dedup.index.path", "detect.tagger.models", "detect.spacy.model"),
    *("detect.patterns.files", "detect.presidio.configuration"),
    *("detect.stanza.folder", "detect.transformers.folder"),
    *("detect.lists.deny.file", "detect.lists.allow.file", "detect.conservative.fitted"),
    *("train.detector_recall_file", "train.public_text", "train.tokenizer", "train.model.folder", "train.budget.path"),
    "train.held_out",
    *("train.units.entities", "train.units.aliases", "train.units.high_degree_entities", "redact.vault"),
)
"""Keys whose values are files and folders, relative to the folder of the configuration."""
_NON_PATH_VALUES: dict[str, Callable[[str], bool]] = {
    "train.units.high_degree_entities": lambda name: name in HIGH_DEGREE_LISTS,
    "train.tokenizer": lambda name: name in ("auto", "public", "public_text", "shipped"),
    "detect.tagger.models": lambda name: name == DEFAULT,
    # a bare name is an installed pipeline
    "detect.spacy.model": lambda name: "/" not in name,
}
"""Other values that these keys may have, which stay unchanged."""


def _resolve_relative_paths(value: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve the relative paths in ``value`` against ``folder``, the folder of the file."""

    def resolve_item(item: Any, key: str) -> Any:
        if isinstance(item, list):
            return [resolve_item(child, key) for child in item]
        if isinstance(item, dict):
            return {name: resolve_item(child, f"{key}.{name}" if key else str(name)) for name, child in item.items()}
        if key == "input":
            # a bare input is its path
            return {"path": resolve_item(item, "input.path")} if item is not None else None
        # only a package's engine knows which of its options are files
        is_path = key in _PATH_KEYS or (key.startswith("detect.engines.") and str(item).startswith(("./", "../")))
        if not is_path or not isinstance(item, str) or "://" in item:
            return item
        return item if key in _NON_PATH_VALUES and _NON_PATH_VALUES[key](item) else str(folder / item)

    resolved: dict[str, Any] = resolve_item(dict(value), "")
    return resolved


def _explain_errors(errors: Iterable[Any]) -> Iterator[str]:
    """Explain each error; the valid keys of a section are listed once, after all its unknown ones."""
    for _, group in groupby(errors, lambda error: (error["type"], error["loc"][:-1])):
        explained = [_explain_error(error).partition("; valid keys: ") for error in group]
        yield "; ".join(text for text, _, _ in explained) + max(mark + keys for _, mark, keys in explained)


def _explain_error(error: Any) -> str:
    # drop parts that are no keys: kinds of sections, [key] (a table's key is wrong),
    # and pydantic's names for the members of a union
    unions = ("function-", "literal[", "lax-or-strict[", "float")
    loc = [str(part) for part in error["loc"] if part != "[key]" and not str(part).startswith(unions)]
    parts = [part for n, part in enumerate(loc) if not (part in KINDS and n and loc[n - 1] == "model")]
    all_keys = {name for path in _list_all_keys() for name in path}
    shown_parts = (part if part.isdigit() or part in all_keys else shorten_name(part) for part in parts)
    key = ".".join(shown_parts) or "configuration"
    sections = tuple(part for part in parts if not part.isdigit())
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key; {_suggest_key(sections)}"
    if error["type"] == "missing":
        return f"{key}: this key is required"
    message = f"{key}: {format_validation_error(error)}"
    if error["type"] == "model_type" and error["input"] is not None:
        return f"{message}; its keys are {', '.join(_list_section_keys(sections))}"
    return message


def _suggest_key(unknown_path: tuple[str, ...]) -> str:
    """Suggest a similar key, the same key in another section, or the valid keys of this section."""
    valid_keys = _list_section_keys(unknown_path[:-1])
    if unknown_path[-1] in valid_keys:
        return "it belongs to another kind of model: remove it"
    if unknown_path[0] == "detect" and unknown_path[-1] in list_installed_engines():
        return f"did you mean detect.engines.{unknown_path[-1]}?"
    if similar_keys := difflib.get_close_matches(unknown_path[-1], valid_keys, n=1, cutoff=0.7):
        return f"did you mean '{similar_keys[0]}'?"
    elsewhere = [path for path in _list_all_keys() if path[-1] == unknown_path[-1]]
    matches = [path for path in elsewhere if path[0] == unknown_path[0]] or elsewhere
    if len(matches) == 1:
        return f"did you mean {'.'.join(matches[0])}?"
    return f"valid keys: {', '.join(valid_keys)}"


def _list_section_keys(section: tuple[str, ...]) -> list[str]:
    return sorted({path[-1] for path in _list_all_keys() if path[:-1] == section})


@functools.cache
def _list_all_keys(model: Any = Config) -> tuple[tuple[str, ...], ...]:
    """Return every key of the settings ``model``, with the sections that contain it."""
    keys = []
    for name, field in model.model_fields.items():
        keys.append((name,))
        for section in iter_nested_settings(field.annotation):
            keys += [(name, *path) for path in _list_all_keys(section)]
    return tuple(dict.fromkeys(keys))


SettingsT = TypeVar("SettingsT", bound=Settings)


def parse_settings(kind: type[SettingsT], settings: Mapping[str, Any] | SettingsT | None) -> SettingsT:
    """Validate ``settings``, also with dotted keys, as ``kind``; ``ConfigurationError`` quotes only keys."""
    if isinstance(settings, kind):
        return settings
    try:
        return kind.model_validate(expand_dotted_keys(dict(settings or {})))
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(shorten_name, problem['loc'])) or 'settings'}: {format_validation_error(problem)}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise ConfigurationError("; ".join(problems)) from None


def expand_dotted_keys(dotted: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return ``base`` updated with ``dotted``, whose dotted keys are nested into sections."""
    result = dict(base or {})
    for key, value in dotted.items():
        name, _, rest = key.partition(".")
        section = result.get(name) if isinstance(result.get(name), Mapping) else {}
        result[name] = expand_dotted_keys({rest: value}, section) if rest else value
    return result
