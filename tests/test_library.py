"""Redactory as a library: its public names, what happens to old ones, and the types of what it returns."""

from __future__ import annotations

import importlib
import json
import typing
import warnings
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.deprecation import Deprecated
from redactory.foundation.public_names import names_in
from redactory.pipelines import results
from redactory.pipelines.curate import curate
from tests import consumer
from tests.pipelines.support import DigitDetector, write_rows
from tests.typed import problems

STUB = Path(redactory.__file__).with_suffix(".pyi")
ROOT = Path(__file__).parents[1]
SCHEMAS = Path(redactory.__file__).with_name("schemas")
OFF: dict[str, Any] = {"spacy": None, "tagger": None, "patterns": None}


def test_every_public_name_is_there_and_comes_from_where_the_stub_says() -> None:
    public = names_in(STUB)
    assert redactory.__all__ == sorted(public)
    assert {"Policy", "curate", "train", "guarantee", "scan", "simulate", "ConfigurationError"} <= set(public)
    for name, place in public.items():
        if place.module.startswith(("redactory.training", "redactory.flows")):
            continue
        assert getattr(redactory, name) is getattr(importlib.import_module(place.module), place.attribute)
    assert set(public) <= set(dir(redactory))
    with pytest.raises(AttributeError, match="module 'redactory' has no attribute 'curat'"):
        redactory.curat  # noqa: B018


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    shown = {line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")}
    for name, place in names_in(STUB).items():
        assert shown & {place.module, f"{place.module}.{place.attribute}"}, name
        if name != place.attribute:
            assert f"`redactory.{name}` is this function." in page


def test_only_what_a_type_checker_takes_for_public_is_public(tmp_path: Path) -> None:
    stub = tmp_path / "x.pyi"
    stub.write_text("from a.b import c as c\nfrom a.b import d\nfrom a import e as f\ng = d\nh: str\n")
    assert names_in(stub) == {"c": ("a.b", "c"), "g": ("a.b", "d")}


def test_an_old_name_works_and_says_what_to_write_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Deprecated("describe", "1.2", "2.0", "write redactory.describe")
    monkeypatch.setitem(redactory._DEPRECATED, "tell", old)
    with pytest.warns(
        DeprecationWarning, match=r"redactory.tell is deprecated since 1.2 and goes with 2.0: w"
    ) as told:
        assert redactory.tell is redactory.describe  # type: ignore[attr-defined]
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert redactory.describe


def test_a_deprecated_name_leads_to_a_public_one_and_has_a_later_end() -> None:
    for name, old in redactory._DEPRECATED.items():
        assert name not in redactory.__all__
        assert old.now in redactory.__all__
        assert [int(n) for n in old.since.split(".")] < [int(n) for n in old.gone.split(".")]


def test_the_program_of_a_user_runs(tmp_path: Path) -> None:
    lists = {"deny": [{"words": ["Zaphod"]}]}
    config: dict[str, object] = {"detect": {**OFF, "lists": lists, "conservative": {"rules": []}}}
    redacted, points = consumer.policies(config, ["we saw Zaphod", "fine"])
    assert redacted == ["we saw <MASK>", "fine"]
    assert [point.side for point in points] == ["private"]
    source = write_rows(tmp_path / "rows.jsonl", [{"text": "we saw Zaphod"}, {"text": "fine"}])
    summary = consumer.curation({**config, "input": str(source)}, tmp_path / "run")
    assert (summary["public"], summary["private"]) == (1, 1)
    assert problems(summary, results.CurationSummary) == []


def test_summaries_are_what_their_types_say(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [{"text": "call 55"}, {"text": ["x"]}, {"text": "broken"}])
    config: dict[str, Any] = {"detect": OFF, "dedup": {"mode": "minhash", "across": True}}
    made = curate({**config, "input": str(source)}, output=tmp_path / "run", detector=DigitDetector())
    assert problems(made, results.CurationSummary) == []
    found = redactory.scan([source], config=config, detector=DigitDetector())
    assert found["found"] == 1
    assert problems(found, results.ScanSummary) == []
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("name", "kind", "beside"),
    [
        ("guarantee", results.PointGuarantee, {"audit"}),
        ("unit-guarantee", results.UnitGuarantee, {"audit"}),
    ],
)
def test_the_types_of_cards_are_their_schemas(name: str, kind: Any, beside: set[str]) -> None:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert kind.__required_keys__ == set(schema["required"])
    assert kind.__optional_keys__ - beside == set(schema["properties"]) - set(schema["required"])
    (form,) = typing.get_args(typing.get_type_hints(kind)["format"])
    assert form == schema["properties"]["format"]["const"]


def test_a_wrong_key_would_be_found() -> None:
    good = {"head": "a", "steps": 1, "parent": "b"}
    assert problems(good, results.Ledger) == []
    assert problems({**good, "steps": "1"}, results.Ledger) == [".steps: str"]
    assert problems({**good, "steps": True}, results.Ledger) == [".steps: bool"]
    assert problems({"head": "a", "steps": 1, "more": 2}, results.Ledger) == [
        ".parent: missing",
        ".more: strange",
    ]
