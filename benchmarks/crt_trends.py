"""What the CRT paper's figures show, and whether ours show it too (Zhao, Li, Wang 2022; section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

PUBLISHED: dict[int, dict[str, str]] = {
    2: {
        "source": "CRT, Figure 2 and section 5.2",
        "trend": "At an equal epsilon CRT has a lower perplexity than DP-SGD on everything, and comes close "
        "to training without noise. Selective DP-SGD is drawn for a policy that misses nothing.",
    },
    3: {
        "source": "CRT, Figure 3 and section 5.3",
        "trend": "The highest exposure of ten canaries is almost 0 for CRT at every miss rate. Without noise "
        "on masked text, and for selective DP-SGD, it is low where nothing is missed and rises sharply as "
        "soon as something is.",
    },
    4: {
        "source": "CRT, Figure 4, section 5.3 and appendix A.5",
        "trend": "Membership of a secret is told in nearly 50 % of cases for CRT at every miss rate; without "
        "noise, and for selective DP-SGD, the share rises above a half as the miss rate leaves 0.",
    },
    5: {
        "source": "CRT, Figure 5, section 5.3 and appendix A.5",
        "trend": "As Figure 4 with groups of 20 secrets: CRT stays at 50 %, the others lose more than to the "
        "attack on single secrets.",
    },
    6: {
        "source": "CRT, Figure 6 and section 5.4",
        "trend": "Redaction amplifies: the Bayesian epsilon falls with the miss rate. At epsilon' = 1.0 and "
        "a miss rate of 0.1 it is 0.12.",
    },
}
_PROTECTED = ("crt", "crt-drop")
_RISING = ("redact-only", "sdp")
_PUBLISHED_POINT, _PUBLISHED_VALUE, _ROUNDING = (1.0, 0.1), 0.12, 0.01


def compared(figure: int, table: Sequence[Row]) -> list[dict[str, Any]]:
    """Each published claim with what ours shows: {claim, trainer, holds}; ``holds`` None without rows."""
    found = {2: _figure_2, 3: _figure_3, 4: _figure_4, 5: _figure_4, 6: _figure_6}[figure](table)
    return [{"claim": claim, "trainer": trainer, "holds": holds} for claim, trainer, holds in found]


Claims = Iterator[tuple[str, str, bool | None]]


def _figure_2(table: Sequence[Row]) -> Claims:
    rivals = {row["target"]: row["per_word"]["value"] for row in _of(table, "dpsgd")}
    plain = [row["per_word"]["value"] for row in _of(table, "redact-only")]
    for trainer in _PROTECTED:
        own = _of(table, trainer)
        pairs = [(row["per_word"]["value"], rivals[row["target"]]) for row in own if row["target"] in rivals]
        yield "lower perplexity than dpsgd at every epsilon", trainer, _all(a < b for a, b in pairs)
        last = max(own, key=lambda row: float(row["target"]), default=None)
        near = None if last is None or not plain else last["per_word"]["value"] <= 1.1 * plain[0]
        yield "within a tenth of redact-only (no noise) at the largest epsilon", trainer, near


def _figure_3(table: Sequence[Row]) -> Claims:
    for trainer in _PROTECTED:
        own = _of(table, trainer)
        yield (
            "highest exposure under the 95 % quantile of chance at every miss rate",
            trainer,
            _all(row["highest"]["value"] < row["chance"] for row in own),
        )
        yield (
            "mean exposure, inserted minus never inserted: 0 in its 95 % interval at every miss rate",
            trainer,
            _all(row["difference"]["low"] <= 0.0 <= row["difference"]["high"] for row in own),
        )
    for trainer in _RISING:
        own = _of(table, trainer)
        yield "rises from the lowest miss rate to the highest", trainer, _rises(own, "highest")
        above = own[-1]["highest"]["value"] > own[-1]["chance"] if own else None
        yield "above the 95 % quantile of chance at the highest miss rate", trainer, above
    own = _of(table, "sgd")
    yield ("above the 95 % quantile of chance", "sgd", _all(row["highest"]["value"] > row["chance"] for row in own))


def _figure_4(table: Sequence[Row]) -> Claims:
    # where this does not hold, the figure says nothing of anybody
    works = _all(low > 0.5 for row in _of(table, "sgd") for low, _ in row["intervals"])
    yield "above 0.5, for every seed: the attack works", "sgd", works
    for trainer in _PROTECTED:
        own = _of(table, trainer)
        yield (
            "accuracy has 0.5 in its interval (Bonferroni over trainers, miss rates, seeds), for every seed",
            trainer,
            _all(low <= 0.5 <= high for row in own for low, high in row["intervals"]),
        )
    for trainer in _RISING:
        own = _of(table, trainer)
        yield "rises from the lowest miss rate to the highest", trainer, _rises(own, "accuracy")
        above = _all(low > 0.5 for low, _ in own[-1]["intervals"]) if own else None
        yield "above 0.5 at the highest miss rate, for every seed", trainer, above
    leaking = [row for name in (*_RISING, "sgd") for row in _of(table, name)[-1:] if row.get("single")]
    if leaking:
        stronger = all(row["accuracy"]["value"] >= row["single"] for row in leaking)
        yield "the attack on groups is at least as good as that on single secrets", "all that leak", stronger


def _figure_6(table: Sequence[Row]) -> Claims:
    here = [row for row in table if (row["target"], row["gamma"]) == _PUBLISHED_POINT]
    close = _all(abs(row["as_published"] - _PUBLISHED_VALUE) < _ROUNDING for row in here)
    yield "0.12 at epsilon' 1.0 and miss rate 0.1, by the published formula", "crt", close
    known = [row for row in table if row["sound"] is not None]
    yield (
        "the published figure is below the sound one",
        "crt",
        _all(row["as_published"] <= row["sound"] + 1e-9 for row in known),
    )
    yield (
        "the sound figure too is below epsilon' at a miss rate of 0.1",
        "crt",
        _all(row["sound"] < row["target"] for row in known if row["gamma"] == _PUBLISHED_POINT[1]),
    )


def _of(table: Sequence[Row], trainer: str) -> list[Row]:
    return sorted((row for row in table if row["trainer"] == trainer), key=lambda row: row["gamma"] or 0.0)


def _rises(own: Sequence[Row], name: str) -> bool | None:
    if len({row["gamma"] for row in own}) < 2:
        return None
    return bool(own[-1][name]["value"] > own[0][name]["value"])


def _all(values: Iterable[bool]) -> bool | None:
    known = list(values)
    return all(known) if known else None
