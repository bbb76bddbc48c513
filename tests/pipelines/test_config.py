"""Configurations: every mistake is named by its key, with the mend, before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.examples import EXAMPLE
from redactory.pipelines.loading import check, load_config


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "input: this key is needed"),
        ({"input": {"path": "x", "txt": "body"}}, r"input\.txt: no such key; did you mean 'text'"),
        ({"input": "x", "detect": {"conservative": {"rule": []}}}, r"detect\.conservative\.rule.*'rules'"),
        ({"input": "x", "workers": 0}, "workers: .*greater than or equal to 1"),
        ({"input": "x", "segment": {"mode": "sentense"}}, r"segment\.mode: .*'sentence'"),
        ({"input": "x", "train": {"epsilon": -1}}, r"train\.epsilon"),
        ({"input": []}, r"input\.path: at least one path is needed"),
    ],
)
def test_a_wrong_key_or_value_is_named(value: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check(value)


def test_an_error_does_not_quote_the_value() -> None:
    with pytest.raises(ConfigurationError) as error:
        check({"input": {"path": "x", "max_chars": "Jane Roe 078-05-1120"}})
    assert "Jane" not in str(error.value)


def test_yaml_mistakes_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("input: a.jsonl\nsegment: {mode: [}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 2"):
        load_config(path)
    path.write_text("- a list\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="mapping"):
        load_config(path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "input: {path: [a.jsonl, 's3://bucket/b.jsonl']}\noutput: out\nevaluate: {test: t.jsonl}\n"
    )
    config = load_config(path)
    assert config.input.path == (str(tmp_path / "a.jsonl"), "s3://bucket/b.jsonl")
    assert config.output == tmp_path / "out"
    assert config.evaluate.test == (str(tmp_path / "t.jsonl"),)


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    assert check(yaml.safe_load(EXAMPLE)).segment.mode == "sentence"


def test_speed_and_places_do_not_change_the_hash() -> None:
    plain = check({"input": "a"})
    same = check(
        {
            "input": "b",
            "workers": 7,
            "output": "elsewhere",
            "detect": {"batch_size": 3},
            "train": {"epochs": 9},
        }
    )
    other = check({"input": "a", "partition": {"documents": 3}})
    assert plain.curation_hash() == same.curation_hash() != other.curation_hash()


def test_something_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither a configuration"):
        load_config(tmp_path / "absent.jsonl")
