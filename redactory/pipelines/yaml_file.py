"""Reading a configuration's YAML: one mapping, no key twice, and every mistake told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from redactory.foundation.errors import ConfigurationError


class _OnceEach(yaml.SafeLoader):
    """A loader that refuses a key that is given twice: YAML's own would take the last in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    problem="a list or a mapping stands where a key is needed; look for brackets and '?'",
                    problem_mark=key.start_mark,
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key '{key.value}' is given twice; keep one of them",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ``ConfigurationError`` names the file, the line and the mend."""
    try:
        # a byte order mark, as some editors write it, is no part of the text
        value = yaml.load(path.read_text(encoding="utf-8-sig"), _OnceEach)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; 'redactory init {path}' writes an example"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}, line {line}: this is not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError):
        # a date that is none, a number with too many digits, brackets without end
        raise ConfigurationError(
            f"{path}: this cannot be read as YAML: put values that look like a date or a number in quotation "
            "marks, and look for too many brackets"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}{_place(error)}: {_problem(error)}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            f"{path}: a configuration is a mapping, with at least the key 'input', like 'input: corpus.jsonl'"
        )
    return value


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    problem = str(getattr(error, "problem", None) or "")
    if isinstance(error, yaml.constructor.ConstructorError):
        return problem
    if "'\\t'" in problem:
        return "this is not YAML: a tab stands here; indent with spaces"
    return (
        f"this is not YAML ({problem}); look for a bracket or a quotation mark that is not closed, and at "
        "the indentation, here and in the line before"
    )
