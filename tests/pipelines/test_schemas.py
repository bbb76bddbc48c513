"""The published JSON Schemas, against what Redactory really writes: runs, exports, models, logs."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import create_key_file
from redactory.foundation.records import read_records
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.operations.erase import purge_run
from redactory.pipelines.operations.nightly import nightly
from redactory.redaction import ModelFolder, RunFolder
from redactory.redaction.folder import JobFolder
from redactory.training import train_model
from tests.pipelines.leaving import Numbers, configuration, rows, small_run
from tests.pipelines.support import write_rows
from tests.training.conftest import make_small_settings, write_run
from tests.training.ldp.test_ldp_card import card as ldp_card
from tests.training.uedp import test_federated_training as federated
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

CARDS = {"redactory-guarantee/2": "guarantee", "redactory-unit-guarantee/1": "unit-guarantee"}
Written = list[tuple[str, Any]]
"""The name of the schema, and a value that it must hold for."""


@functools.cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(redactory.schema(name), format_checker=Draft202012Validator.FORMAT_CHECKER)


def lines(schema: str, path: Path) -> Iterator[tuple[str, Any]]:
    read_records(path)  # the chain is the format's, not the schema's
    yield from ((schema, json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())


def of_run(run: RunFolder) -> Iterator[tuple[str, Any]]:
    yield "run-manifest", json.loads(run.manifest.read_text(encoding="utf-8"))
    yield from lines("journal-record", run.journal)


def of_model(model: ModelFolder) -> Iterator[tuple[str, Any]]:
    card = json.loads(model.guarantee.read_text(encoding="utf-8"))
    yield CARDS[card["format"]], card
    yield "model-manifest", json.loads(model.manifest.read_text(encoding="utf-8"))
    yield from lines("ledger-record", model.ledger)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A signed, encrypted run that was exported, held, purged, wrapped anew and shredded."""
    folder = tmp_path_factory.mktemp("written")
    job = JobFolder(folder / "job")
    source = write_rows(folder / "letters.jsonl", rows())
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("signing", "encryption"):
            create_key_file(kind, folder / kind)  # type: ignore[arg-type]
            patch.setenv(f"REDACTORY_{kind.upper()}_KEY_FILE", str(folder / kind))
        dedup = {"report_cross_split": True, "private_mode": "bloom", "index": {"path": str(folder / "index")}}
        indexed = RunFolder(small_run(folder / "indexed", dedup=dedup))
        config = configuration(source, output=str(job.root), nightly={"approve": "never"})
        made = nightly(config, curate_run=functools.partial(curate, detector=Numbers()))
        run = job.get_run_folder(Path(made["nights"][0]["run"]).name)
        redactory.export(run.root, folder / "exported")
        found = [*of_run(run), *of_run(indexed)]
        export = json.loads((folder / "exported" / "manifest.json").read_text(encoding="utf-8"))
        assert redactory.erase([run.root], doc_ids=["document-3"])["runs"][0]["release"] == 2
        purge_run(run, ["vault"], by="ann")
        create_key_file("encryption", folder / "other")
        redactory.rotate_key(run.root, to_key_file=folder / "other")
        patch.setenv("REDACTORY_ENCRYPTION_KEY_FILE", str(folder / "other"))
        redactory.shred_key(run.root, by="ann")
    assert "signed_by" in export
    return [*found, ("export-manifest", export), *of_run(run), *lines("release-record", job.log)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A model of each kind of card and mechanism."""
    folder = tmp_path_factory.mktemp("models")
    run = write_run(folder / "examples")
    quick: dict[str, Any] = {"epochs": 1, "noise_multiplier": 8.0}
    recall = {"labels": 100, "missed_by_strict": 2, "missed_by_both": 1}
    train_model(run, make_small_settings(trainer="crt", detector_recall_file=recall, group_sizes=(2,), **quick))
    train_model(run, make_small_settings(trainer="redact-only", epochs=1))
    units, public = write_unit_run(folder / "units"), write_public(folder / "public.jsonl")
    train_model(units, training(public, bounding={"k_user": 1, "k_entity": 1}, **quick))
    train_model(units, training(public, trainer="noiseless", bounding={}))
    (folder / "users").mkdir()
    users = federated.write_run(folder / "users" / "RUN")
    train_model(users, federated.small(users.root, "user-level", {}, **quick))
    made = [of.get_model_folder(name) for of in (run, units, users) for name in of.list_model_names()]
    assert len(made) == 5
    return [("ldp-guarantee", ldp_card()), *(entry for model in made for entry in of_model(model))]


def test_every_schema_is_one_and_says_what_it_is_of() -> None:
    known = redactory.schemas()
    assert set(CARDS.values()) | {"run-manifest", "export-manifest", "ledger-record"} <= set(known)
    for name, title in known.items():
        found = redactory.schema(name)
        Draft202012Validator.check_schema(found)
        assert found["title"] == title
        assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert name == "configuration" or found["description"]
    with pytest.raises(ConfigurationError, match="valid names: configuration"):
        redactory.schema("nothing")


def test_the_configuration_has_one_too() -> None:
    given = {"input": {"path": ["corpus.jsonl"]}, "segment": {"mode": "turn"}}
    validator("configuration").validate(given)
    assert not validator("configuration").is_valid({**given, "segments": {}})


def test_runs_exports_and_logs_are_what_their_schemas_say(runs: Written) -> None:
    assert {name for name, _ in runs} == {"run-manifest", "journal-record", "export-manifest", "release-record"}
    types = {value["type"] for name, value in runs if name == "release-record"}
    assert {"begun", "released", "exported", "reissued", "rotated", "shredded"} <= types
    assert {"index", "reissue"} <= {value["type"] for name, value in runs if name == "journal-record"}
    for name, value in runs:
        validator(name).validate(value)


def test_models_are_what_their_schemas_say(models: Written) -> None:
    for name, value in models:
        validator(name).validate(value)


def test_an_unknown_a_missing_and_a_strange_field_go_red(runs: Written, models: Written) -> None:
    for name, value in _one_of_each([*runs, *models]):
        good = validator(name).is_valid
        assert not good({**value, "unheard_of": 1})
        assert [k for k in redactory.schema(name)["required"] if good(_without(value, k))] == []
        assert [k for k in value if good({**value, k: object()})] == []
        if "body" in value and (name, value["type"]) != ("journal-record", "files"):
            assert not good({**value, "body": {**value["body"], "unheard_of": 1}})
            assert not good({**value, "body": {}})


def _without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def _one_of_each(written: Written) -> Written:
    """One value for each schema, and of records for each type."""
    return list({(name, value.get("type")): (name, value) for name, value in written}.values())


CARD = re.compile(r"\bc\.(\w+)")
"""What a template of the guarantee card reads; Jinja prints nothing for a key that no card has."""


@pytest.mark.parametrize("name", ["card.md.j2", "answers.j2"])
def test_every_key_that_a_card_template_reads_is_in_a_schema(name: str) -> None:
    keys = {key for schema in ("guarantee", "unit-guarantee") for key in redactory.schema(schema)["properties"]}
    template = files("redactory.training.guarantee") / name
    read = set(CARD.findall(template.read_text(encoding="utf-8"))) - {"get"}
    assert read
    assert read - keys == set()
