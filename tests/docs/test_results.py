"""The page of results says what its data say, and no more."""

from __future__ import annotations

import copy
import importlib.util
import re
from types import ModuleType
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT, name_of


@pytest.fixture
def results() -> ModuleType:
    """``benchmarks/results.py``, which has read nothing yet."""
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_those_of_their_data(results: ModuleType) -> None:
    for path, text in results.pages().items():
        told = f"{name_of(path)} is out of date: run python benchmarks/results.py"
        assert path.read_text(encoding="utf-8") == text, told


def test_every_file_of_data_is_on_the_page_and_every_figure_is_drawn_from_one() -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\(results/([\w.-]+)\)", page))
    assert named == {path.name for path in (DOCS / "results").iterdir()}


@pytest.mark.parametrize(
    ("file", "change", "refused"),
    [
        (
            "attacks_figure4",
            lambda d: d["table"][0]["intervals"][0].__setitem__(0, 0.6),
            r"0\.5 lies in every",
        ),
        ("attacks_figure3", lambda d: d["ours"][-1].update(holds=True), "steep rise"),
        ("cluster", lambda d: d.update(same_bytes=False), "the same bytes"),
        ("crt_multiwoz", lambda d: d["table"][3]["perplexity"].update(value=9.0), "below `dpsgd`"),
    ],
)
def test_a_sentence_that_its_data_do_not_bear_out_is_refused(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch, file: str, change: Any, refused: str
) -> None:
    plain = results.read

    def changed(name: str) -> Any:
        found = copy.deepcopy(plain(name))
        if name == file:
            change(found)
        return found

    monkeypatch.setattr(results, "read", changed)
    with pytest.raises(SystemExit, match=refused):
        results.page()
