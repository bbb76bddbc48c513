"""Redactory as a library: its public names, and the types of what it returns."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import redactory
from tests import consumer
from tests.pipelines.support import write_rows

STUB = Path(redactory.__file__).with_suffix(".pyi")
OFF: dict[str, Any] = {"spacy": None, "tagger": None, "patterns": None}


def _stub() -> dict[str, str]:
    """Its public names, in the form that type checkers take: ``import x as x``."""
    return {
        alias.name: f"redactory.{node.module}"
        for node in ast.parse(STUB.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def test_the_stub_has_the_names_of_the_package_and_each_is_there() -> None:
    assert redactory.__all__ == sorted(_stub())
    assert {"Policy", "curate", "train", "guarantee", "scan", "simulate", "ConfigurationError"} <= set(
        redactory.__all__
    )
    for name in redactory.__all__:
        assert getattr(redactory, name).__module__ == _stub()[name], name
    assert set(redactory.__all__) <= set(dir(redactory))
    with pytest.raises(AttributeError, match="No redactory attribute curat"):
        redactory.curat  # type: ignore[attr-defined]  # noqa: B018


def test_the_program_of_a_user_runs(tmp_path: Path) -> None:
    lists = {"deny": [{"words": ["Zaphod"]}]}
    config: dict[str, object] = {"detect": {**OFF, "lists": lists, "conservative": {"rules": []}}}
    redacted, points = consumer.use_policy(config, ["we saw Zaphod", "fine"])
    assert redacted == ["we saw <MASK>", "fine"]
    assert [point.split for point in points] == ["private"]
    source = write_rows(tmp_path / "rows.jsonl", [{"text": "we saw Zaphod"}, {"text": "fine"}])
    summary = consumer.use_curation({**config, "input": str(source)}, tmp_path / "run")
    assert (summary["public"], summary["private"]) == (1, 1)
