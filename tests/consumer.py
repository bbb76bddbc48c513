"""A program of somebody who uses Redactory as a library: checked by mypy --strict, and run by a test.

Every ``type: ignore`` here is a mistake that the types must find: mypy complains where it finds none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import redactory


def use_policy(config: dict[str, object], texts: list[str]) -> tuple[list[str], list[redactory.Example]]:
    """What a program does with texts in memory."""
    policy = redactory.Policy.load(config)
    hits = policy.scan(texts[0])
    assert_type(hits, list[redactory.FoundSpan])
    spans: list[tuple[int, int, str, float]] = [(h.start, h.end, h.label, h.score) for h in hits]
    assert all(start < end for start, end, _, _ in spans)
    assert_type(policy.redact(texts[0], replace="label"), str)
    assert_type(policy.redact(texts[0], lambda label, value: f"[{label} {len(value)}]"), str)
    redacted = policy.redact_many(texts)
    assert_type(redacted, Iterator[str])
    if policy.decide_split(texts[0]) == "pubilc":  # type: ignore[comparison-overlap]
        raise AssertionError
    return list(redacted), policy.route(texts[0])


def use_curation(config: dict[str, object], output: Path) -> dict[str, Any]:
    """What a program does with a run."""
    summary = redactory.curate(config, output=output)
    assert_type(summary, dict[str, Any])
    return summary


def make_type_mistakes(policy: redactory.Policy) -> None:
    """Never called: what the types refuse."""
    policy.scan(5)  # type: ignore[arg-type]
    policy.redact("", replace="blur")  # type: ignore[arg-type]
    policy.redact("", replace=lambda label: label)  # type: ignore[arg-type, misc]
    policy.hash = "x"  # type: ignore[misc]
    redactory.curat({})  # type: ignore[attr-defined]
