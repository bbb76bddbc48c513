"""The page of results says what its data say, and no more."""

from __future__ import annotations

import copy
import importlib
import re
from typing import Any

import pytest

from tests.docs.pages import DOCS, generator


@pytest.fixture
def results() -> Any:
    """``benchmarks/results.py``."""
    return generator()._results()


def test_every_file_of_data_is_on_the_page(results: Any) -> None:
    named = set(re.findall(r"\(results/([\w.-]+)\)", results.page()))
    assert named == {path.name for path in (DOCS / "results").iterdir()}


@pytest.mark.parametrize(
    ("file", "change", "refused"),
    [
        ("attacks_figure4", lambda d: d["table"][-1]["intervals"][0].__setitem__(0, 0.6), "is not above chance"),
        ("attacks_figure3", lambda d: d["ours"][-1].update(holds=True), "steep rise"),
        ("cluster", lambda d: d.update(same_bytes=False), "the same bytes"),
        ("crt_multiwoz", lambda d: d["table"][3]["perplexity"].update(value=9.0), "below `dpsgd`"),
    ],
)
def test_a_sentence_that_its_data_do_not_bear_out_is_refused(
    results: Any, monkeypatch: pytest.MonkeyPatch, file: str, change: Any, refused: str
) -> None:
    results_data = importlib.import_module("results_data")
    plain = results_data.read

    def changed(name: str) -> Any:
        found = copy.deepcopy(plain(name))
        if name == file:
            change(found)
        return found

    monkeypatch.setattr(results_data, "read", changed)
    with pytest.raises(SystemExit, match=refused):
        results.page()
