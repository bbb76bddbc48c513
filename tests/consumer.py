"""A program of somebody who uses Redactory as a library: checked by mypy --strict, and run by a test.

Every ``type: ignore`` here is a mistake that the types must find: mypy complains where it finds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_type

import redactory


def policies(config: dict[str, object], texts: list[str]) -> tuple[list[str], list[redactory.Point]]:
    """What a program does with texts in memory."""
    policy = redactory.Policy.load(config)
    hits = policy.scan(texts[0])
    assert_type(hits, list[redactory.Hit])
    found: list[tuple[int, int, str, float]] = [(h.start, h.end, h.label, h.score) for h in hits]
    assert all(start < end for start, end, _, _ in found)
    redacted = policy.redact_many(texts)
    assert_type(redacted, Iterator[str])
    if policy.side(texts[0]) == "pubilc":  # type: ignore[comparison-overlap]
        raise AssertionError
    return list(redacted), policy.split(texts[0])


def curation(config: dict[str, object], output: Path) -> redactory.CurationSummary:
    """What a program does with a run."""
    summary = redactory.curate(config, output=output)
    assert_type(summary["public"], int)
    assert_type(summary["policies"], dict[str, str])
    return summary


def mistakes(policy: redactory.Policy, summary: redactory.CurationSummary) -> None:
    """Never called: what the types refuse."""
    policy.scan(5)  # type: ignore[arg-type]
    policy.hash = "x"  # type: ignore[misc]
    summary["publik"]  # type: ignore[typeddict-item]
    redactory.curat({})  # type: ignore[attr-defined]
    redactory.guarantee("run")["epsilon"] + 1  # type: ignore[operator]
    redactory.guarantee("run", delta=1e-5)  # type: ignore[call-overload]
    redactory.guarantee("run", ["crt", "second"])["models"] + 1  # type: ignore[operator]


def promises(run: Path) -> float | None:
    """What a program reads of a guarantee card, whichever kind it is of."""
    trained = redactory.train({"input": "-"}, output=run)
    assert_type(trained["parameters"], int)
    card = redactory.guarantee(run)
    assert_type(card["epsilon"], float | None)
    if card["format"] == "redactory-guarantee/2":
        assert_type(card["epsilon_bayesian"], float | None)
        return card["epsilon_bayesian"]
    return card["epsilon_sound"]
