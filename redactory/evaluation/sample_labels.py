"""What people labelled in a sample: read, checked against the draw, measured, and its γ and δ₂ bounded.

Nothing is guessed: a row that is missing, strange, changed or out of bounds is refused, with its number and
point id and without its text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redactory.evaluation.label_studio import UnreadableTask, read_task
from redactory.evaluation.labelled_sample import Marked, SampledText, text_digest
from redactory.evaluation.recall import DetectFate, by_label, fates_of_secrets
from redactory.evaluation.sample_bounds import (
    EMPTY,
    PUBLIC,
    STRATA,
    Stratum,
    Unmeasured,
    estimates,
    public_draws_needed,
    rounded_up,
    upper_bounds,
)
from redactory.evaluation.statistics import secrets_needed
from redactory.foundation.errors import CheckFailed, InputError
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import mask
from redactory.redaction.sides import PRIVATE

_NAMED = 5
_COMMON_GOAL = 1e-3
_COUNTS = ("secrets", "left_public", "left_private", "withheld")

Draw = Mapping[str, Any]
"""The record of a draw, as ``draw.json`` holds it."""


def read_labels(path: Path, drawn: Sequence[SampledText], key: DigestKey) -> list[SampledText]:
    """The labelled sample of ``path`` in the order of ``drawn``: JSON lines, or Label Studio's JSON export.

    ``InputError``, with row and point id, unless the rows are those of the draw, each once, with the text
    unchanged and every span {start, end, label} inside it.
    """
    expected = {entry.point_id: entry for entry in drawn}
    found: dict[int, SampledText] = {}
    for number, row in _rows(path):
        where = f"{path.name}, row {number}"
        point_id = _point_id(row, where)
        where += f" (point {point_id})"
        if point_id not in expected:
            raise InputError(f"{where}: this point is not in the sample")
        if point_id in found:
            raise InputError(f"{where}: this point stands in an earlier row too")
        text, entry = row.get("text"), expected[point_id]
        if not isinstance(text, str) or text_digest(text, key) != entry.digest:
            raise InputError(f"{where}: its text is not the text of the sample; only 'spans' may change")
        found[point_id] = replace(entry, text=text, secrets=_secrets(row.get("spans"), len(text), where))
    missing = [entry.point_id for entry in drawn if entry.point_id not in found]
    if missing:
        some = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise InputError(
            f"{path.name}: {len(missing)} of the sample's {len(drawn)} texts are missing (point {some}); a "
            "text without a secret is a row with no spans"
        )
    return [found[entry.point_id] for entry in drawn]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(row number from 1, row) of either format."""
    number = 0
    try:
        text = path.read_text(encoding="utf-8")
        exported = text.lstrip().startswith("[")
        entries = json.loads(text) if exported else (line for line in text.split("\n") if line.strip())
        for number, entry in enumerate(entries, 1):
            row = read_task(entry) if exported else json.loads(entry)
            if not isinstance(row, dict):
                raise InputError(f"{path.name}, row {number}: a JSON object is needed")
            yield number, row
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read: {error.strerror}; give the sample's labelled JSON lines, or Label "
            "Studio's JSON export"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name}, after row {number}: no JSON ({type(error).__name__})") from None
    except InputError:
        raise
    except UnreadableTask as error:
        raise InputError(f"{path.name}, row {number}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(
            f"{path.name}, row {number}: neither a row of the sample nor a task of Label Studio's JSON "
            f"export ({type(error).__name__})"
        ) from None


def _point_id(row: Mapping[str, Any], where: str) -> int:
    given = row.get("point_id", row.get("id"))
    if isinstance(given, int) or (isinstance(given, str) and given.isascii() and given.isdigit()):
        return int(given)
    raise InputError(
        f"{where}: it has no 'point_id'; label the rows of the sample, and change their spans alone"
    )


def _secrets(spans: Any, length: int, where: str) -> tuple[Marked, ...]:
    if not isinstance(spans, list):
        raise InputError(f"{where}: 'spans' must be a list, empty where the text holds no secret")
    secrets = set()
    for number, span in enumerate(spans, 1):
        if not isinstance(span, dict) or not all(type(span.get(key)) is int for key in ("start", "end")):
            raise InputError(f"{where}: span {number} needs whole numbers 'start' and 'end'")
        if not 0 <= span["start"] < span["end"] <= length:
            raise InputError(f"{where}: span {number} does not lie in the text of {length} code points")
        if not isinstance(span.get("label"), str):
            raise InputError(f"{where}: span {number} needs a 'label'")
        secrets.add(Marked(span["start"], span["end"], span["label"]))
    return tuple(sorted(secrets))


# F run twice on every labelled secret: what π misses, and that F is the one that ran.


def measure_sample(
    rows: Sequence[SampledText], detect_fate: DetectFate, progress: Progress = silent
) -> list[SampledText]:
    """``rows`` with ``missed``: whether F(s) ≠ F(s') for each secret, s' being s with it as ``<MASK>``.

    ``CheckFailed`` unless F gives each text the side and the masks that the run gave it, and each s' the
    private side (a quarantined point counts as private): then both policies miss the secrets of public
    points and no others, on which the bounds of a sample rest.
    """
    places = [(row.text, [(secret.start, secret.end) for secret in row.secrets]) for row in rows]
    measured = []
    for row, (fate, without) in zip(rows, fates_of_secrets(detect_fate, places, progress), strict=True):
        side = PUBLIC if row.stratum == PUBLIC else PRIVATE
        if fate != (side, mask(row.text, row.masked)):
            raise CheckFailed(
                f"point {row.point_id}: its fate is not that of the run any more, though the policies are "
                "the same; nothing is measured"
            )
        if any(side == PUBLIC for side, _ in without):
            raise CheckFailed(
                f"point {row.point_id}: it would be public with a secret masked, though whatever holds a "
                "mask is private; nothing is measured"
            )
        measured.append(replace(row, missed=tuple(fate != tuple(other) for other in without)))
    return measured


def secrets_left(texts: Sequence[SampledText]) -> dict[str, Any]:
    """How many labelled secrets stand open, by label and side: unweighted counts of the sample.

    A secret is ``left_public`` in a public point, and ``left_private`` in a private one where π's masks do
    not cover all of it.  The keys are those of ``redactory.evaluation.recall.secrets_left``.
    """
    labels: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for text in texts:
        for start, end, label in text.secrets:
            covered = any(low <= start and end <= high for low, high in text.masked)
            labels[label]["secrets"] += 1
            labels[label]["left_public"] += text.stratum == PUBLIC
            labels[label]["left_private"] += text.stratum != PUBLIC and not covered
    total = {name: sum(counts[name] for counts in labels.values()) for name in _COUNTS}
    return {"documents": len(texts), **total, "labels": {label: labels[label] for label in sorted(labels)}}


# γ and δ₂ in all and by label, with their bounds, and what is still needed.


def figures(draw: Draw, texts: Sequence[SampledText], confidence: float, delta: float) -> dict[str, Any]:
    """``misses``, ``strata`` and ``needed`` of a score.

    ``misses`` has the keys of ``measure_misses``: the labelled secrets and π's and both policies' misses of
    them as plain counts, the weighted ``rate``, and as ``upper`` the bounds of :func:`upper_bounds`, to
    three digits, rounded up.  A label's figures are of the secrets that carry it, each at ``confidence``.
    ``needed`` says of ``delta`` and of 10⁻³ how many secrets drawn independently (``docs/guarantees.md``,
    "Coverage failure"), or how many public draws of a sample like this one, would have to show no miss
    for δ₂ to be bounded by it.
    """
    fitted, quarantined = draw["fitted_on"], draw["quarantined"]
    unmeasured = Unmeasured(fitted["public"], fitted["private"] + quarantined)

    def shares(strata: Mapping[str, Stratum], label: str | None) -> dict[str, Any]:
        upper, rate = upper_bounds(strata, confidence, unmeasured), estimates(strata)
        asked = [(text.stratum, missed) for text in texts for missed in _missed(text, label)]
        misses = {
            "gamma": sum(missed for _, missed in asked),
            "delta_2": sum(name == PUBLIC for name, _ in asked),
        }
        return {
            "n": len(asked),
            **{
                name: {
                    "misses": count,
                    "rate": rate and getattr(rate, name),
                    "upper": rounded_up(getattr(upper, name)),
                }
                for name, count in misses.items()
            },
        }

    strata = _strata(draw, texts, None)
    known = sorted({secret.label for text in texts for secret in text.secrets})
    labels = {label: shares(_strata(draw, texts, label), label) for label in known}
    needed = [
        {
            "delta_2": goal,
            "secrets": secrets_needed(goal, confidence),
            "public_draws": public_draws_needed(strata, goal, confidence, unmeasured),
        }
        for goal in sorted({delta, _COMMON_GOAL}, reverse=True)
    ]
    return {
        "misses": {**shares(strata, None), **by_label(labels, confidence)},
        "strata": {name: _shown(draw, name, stratum) for name, stratum in strata.items()},
        "needed": needed,
    }


def secrets_drawn(row: SampledText, stream: RandomStream) -> Iterator[int]:
    """One secret, each alike, for every draw of a text that holds one: what makes draws independent units.

    Its place in ``row.secrets``.  The coins go with the point's id: neither the order of rows nor that of
    spans changes what is drawn.
    """
    if row.secrets:
        coins = stream.uniform("one secret of a point", 0, row.times, index=row.point_id)
        yield from (int(coin * len(row.secrets)) for coin in coins)


def _missed(text: SampledText, label: str | None) -> list[bool]:
    """Of each secret with ``label`` (of every one, where none is given) whether it is missed."""
    every = zip(text.secrets, text.missed, strict=True)
    return [missed for secret, missed in every if label in (None, secret.label)]


def _strata(draw: Draw, texts: Sequence[SampledText], label: str | None) -> dict[str, Stratum]:
    """What the sample says of each stratum; of the secrets with ``label`` alone where one is given."""
    stream = RandomStream.from_seed(draw["seed"])
    strata = dict[str, Stratum]()
    for name in STRATA:
        own, points = [text for text in texts if text.stratum == name], draw["strata"][name]["points"]
        if not points:
            strata[name] = EMPTY
        elif draw["strata"][name]["whole"]:
            # a text's copies times the share of its secrets that are asked for, and that are missed of these
            asked = [(text.times / max(1, len(text.secrets)), _missed(text, label)) for text in own]
            holding, missing = (sum(each * count(m) for each, m in asked) for count in (len, sum))
            strata[name] = Stratum(points, None, holding, missing)
        else:
            units = [
                text.missed[place]
                for text in own
                for place in secrets_drawn(text, stream)
                if label in (None, text.secrets[place].label)
            ]
            strata[name] = Stratum(points, draw["strata"][name]["draws"], len(units), sum(units))
    return strata


def _shown(draw: Draw, name: str, stratum: Stratum) -> dict[str, Any]:
    """A stratum as the result tells it: counts of draws, or of points where it was labelled whole."""
    return {
        "points": stratum.points,
        "texts": draw["strata"][name]["texts"],
        "whole": stratum.draws is None,
        "draws": stratum.points if stratum.draws is None else stratum.draws,
        "secrets": stratum.secrets,
        "missed_by_strict": stratum.missed,
        "missed_by_both": stratum.secrets if name == PUBLIC else 0,
    }


def resting_on_labellers(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each bound of a score that is 0 since all that could hold a miss was labelled."""
    public = result["strata"]["public"]
    if not public["points"] or not public["whole"]:
        return []
    return [
        f"{symbol} is 0, because {texts} was labelled: it rests on the labellers having overlooked nothing."
        for name, symbol, texts in (
            ("gamma", "γ", "every text that could hold a miss"),
            ("delta_2", "δ₂", "every public text"),
        )
        if result["misses"][name]["upper"] == 0
    ]
