"""Redactory as a library: its public names, and the types of what it returns."""

from __future__ import annotations

import ast
import json
import typing
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.pipelines import results
from redactory.pipelines.curate import curate
from tests import consumer
from tests.pipelines.support import DigitDetector, write_rows
from tests.typed import problems

STUB = Path(redactory.__file__).with_suffix(".pyi")
ROOT = Path(__file__).parents[1]
SCHEMAS = Path(redactory.__file__).with_name("schemas")
OFF: dict[str, Any] = {"spacy": None, "tagger": None, "patterns": None}


def _stub() -> dict[str, str]:
    """Its public names, in the two forms that type checkers take: ``import x as x`` and ``y = x``."""
    imported: dict[str, str] = {}
    public: dict[str, str] = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imported[alias.name] = f"{node.module}.{alias.name}"
                if alias.asname == alias.name:
                    public[alias.name] = imported[alias.name]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            public.update(
                {one.id: imported[node.value.id] for one in node.targets if isinstance(one, ast.Name)}
            )
    return public


def test_the_stub_has_the_names_of_the_package_and_each_is_there() -> None:
    assert {name: f"redactory.{place}" for name, place in redactory._PUBLIC.items()} == _stub()
    assert redactory.__all__ == sorted(redactory._PUBLIC)
    assert {"Policy", "curate", "train", "guarantee", "scan", "simulate", "ConfigurationError"} <= set(
        redactory.__all__
    )
    for name in redactory.__all__:
        assert callable(getattr(redactory, name)), name
    assert set(redactory.__all__) <= set(dir(redactory))
    with pytest.raises(AttributeError, match="module 'redactory' has no attribute 'curat'"):
        redactory.curat  # type: ignore[attr-defined]  # noqa: B018


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
