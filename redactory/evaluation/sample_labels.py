"""What people labelled in a sample: read, checked against the draw, and one secret taken of each point.

Nothing is guessed: a row that is missing, strange, changed or out of bounds is refused, with its number and
point id and without its text.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from redactory.evaluation.label_studio import UnreadableTask, read_task
from redactory.evaluation.labelled_sample import Marked
from redactory.evaluation.policy_path import secrets_needed
from redactory.evaluation.recall import DetectFate
from redactory.evaluation.sample_bounds import (
    EMPTY,
    PUBLIC,
    STRATA,
    Drawn,
    Stratum,
    Unmeasured,
    Whole,
    estimates,
    public_draws_needed,
    rounded_up,
    upper_bounds,
)
from redactory.foundation.errors import CheckFailed, InputError
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK, mask
from redactory.redaction.sides import PRIVATE

_NAMED = 5


@dataclass(frozen=True)
class DrawnText:
    """What the record of a draw keeps of a text: no word of it.

    ``times`` is how often it was drawn, or occurs where its stratum is labelled whole; ``digest`` is keyed
    (:func:`text_digest`); ``prefilled`` are the spans that the labeller was shown, ``masked`` the places
    that π masks.
    """

    point_id: int
    stratum: str
    times: int
    digest: str
    prefilled: tuple[Marked, ...]
    masked: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LabelledText:
    """A drawn text with its labelled secrets, in order and each once."""

    drawn: DrawnText
    text: str
    secrets: tuple[Marked, ...]

    @property
    def changed(self) -> bool:
        """Whether the labeller left anything else than was filled in."""
        return set(self.secrets) != set(self.drawn.prefilled)


def text_digest(text: str, key: DigestKey) -> str:
    """The keyed digest by which a text is told again."""
    return key.text_digest(key.purpose("audit sample"), text.encode()).hex()


def read_labels(path: Path, drawn: Sequence[DrawnText], key: DigestKey) -> list[LabelledText]:
    """The labelled sample of ``path`` in the order of ``drawn``: JSON lines, or Label Studio's JSON export.

    ``InputError``, with row and point id, unless the rows are those of the draw, each once, with the text
    unchanged and every span {start, end, label} inside it.
    """
    expected = {entry.point_id: entry for entry in drawn}
    found: dict[int, LabelledText] = {}
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
        found[point_id] = LabelledText(entry, text, _secrets(row.get("spans"), len(text), where))
    missing = [entry.point_id for entry in drawn if entry.point_id not in found]
    if missing:
        some = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise InputError(
            f"{path.name}: {len(missing)} of the sample's {len(drawn)} texts are missing (point {some}); a "
            "text without a secret is a row with no spans"
        )
    return [found[entry.point_id] for entry in drawn]


def secrets_drawn(row: LabelledText, stream: RandomStream) -> Iterator[Marked]:
    """One secret, each alike, for every draw of a text that holds one: what makes draws independent units.

    The coins go with the point's id: neither the order of rows nor that of spans changes what is drawn.
    """
    if row.secrets:
        coins = stream.uniform("one secret of a point", 0, row.drawn.times, index=row.drawn.point_id)
        yield from (row.secrets[int(coin * len(row.secrets))] for coin in coins)


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


# F run twice on every labelled secret of a sample: what π misses, and that F is the one that ran.


_CHUNK_SECRETS = 1024


@dataclass(frozen=True)
class MeasuredText:
    """A labelled text, and of each of its secrets, in their order, whether π misses it."""

    row: LabelledText
    missed: tuple[bool, ...]


def measure_sample(
    rows: Sequence[LabelledText], detect_fate: DetectFate, progress: Progress = silent
) -> list[MeasuredText]:
    """Whether F(s) ≠ F(s') for every labelled secret, s' being s with that one secret as ``<MASK>``.

    ``CheckFailed`` unless F gives each text the side and the masks that the run gave it, and each s' the
    private side (a quarantined point counts as private): then both policies miss the secrets of public
    points and no others, on which the bounds of a sample rest.
    """
    whole = [tuple(fate) for fate in detect_fate([row.text for row in rows])]
    for row, fate in zip(rows, whole, strict=True):
        side = PUBLIC if row.drawn.stratum == PUBLIC else PRIVATE
        if fate != (side, mask(row.text, row.drawn.masked)):
            raise CheckFailed(
                f"point {row.drawn.point_id}: its fate is not that of the run any more, though the policies "
                "are the same; nothing is measured"
            )
    without = _without(rows, detect_fate, progress)
    return [
        MeasuredText(row, tuple(fate != other for other in islice(without, len(row.secrets))))
        for row, fate in zip(rows, whole, strict=True)
    ]


def _without(
    rows: Sequence[LabelledText], detect_fate: DetectFate, progress: Progress
) -> Iterator[tuple[str, str]]:
    """The fate of each text without each of its secrets."""
    secrets = [(row, secret) for row in rows for secret in row.secrets]
    for start in range(0, len(secrets), _CHUNK_SECRETS):
        chunk = secrets[start : start + _CHUNK_SECRETS]
        texts = [row.text[: secret.start] + MASK + row.text[secret.end :] for row, secret in chunk]
        for (row, _), (side, text) in zip(chunk, detect_fate(texts), strict=True):
            if side == PUBLIC:
                raise CheckFailed(
                    f"point {row.drawn.point_id}: it would be public with a secret masked, though whatever "
                    "holds a mask is private; nothing is measured"
                )
            yield side, text
        progress("recall", start + len(chunk), len(secrets), "secrets")


# What a labelled sample gives: γ and δ₂ in all and by label, with their bounds, and what is still needed.


_COMMON_GOAL = 1e-3
_COUNTS = ("secrets", "left_public", "left_private", "withheld")

Draw = Mapping[str, Any]
"""The record of a draw, as ``draw.json`` holds it."""


def figures(draw: Draw, texts: Sequence[MeasuredText], confidence: float, delta: float) -> dict[str, Any]:
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

    def shares(own: Mapping[str, Stratum], label: str | None) -> dict[str, Any]:
        upper, rate = upper_bounds(own, confidence, unmeasured), estimates(own)
        counts = _counted(texts, label)
        return {
            "n": counts["secrets"],
            **{
                name: {
                    "misses": counts[name],
                    "rate": rate and getattr(rate, name),
                    "upper": rounded_up(getattr(upper, name)),
                }
                for name in ("gamma", "delta_2")
            },
        }

    strata = _strata(draw, texts, None)
    known = sorted({secret.label for text in texts for secret in text.row.secrets})
    labels = {label: shares(_strata(draw, texts, label), label) for label in known}
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    misses = {
        **shares(strata, None),
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }
    needed = [
        {
            "delta_2": goal,
            "secrets": secrets_needed(goal, confidence),
            "public_draws": public_draws_needed(strata, goal, confidence, unmeasured),
        }
        for goal in sorted({delta, _COMMON_GOAL}, reverse=True)
    ]
    return {"misses": misses, "strata": {n: _shown(draw, n, s) for n, s in strata.items()}, "needed": needed}


def secrets_left(texts: Sequence[MeasuredText]) -> dict[str, Any]:
    """How many labelled secrets stand open, by label and side: unweighted counts of the sample.

    A secret is ``left_public`` in a public point, and ``left_private`` in a private one where π's masks do
    not cover all of it.  The keys are those of ``redactory.evaluation.leaks.secrets_left``.
    """
    labels: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    for drawn, secrets in ((text.row.drawn, text.row.secrets) for text in texts):
        for start, end, label in secrets:
            covered = any(low <= start and end <= high for low, high in drawn.masked)
            labels[label]["secrets"] += 1
            labels[label]["left_public"] += drawn.stratum == PUBLIC
            labels[label]["left_private"] += drawn.stratum != PUBLIC and not covered
    total = {name: sum(counts[name] for counts in labels.values()) for name in _COUNTS}
    return {"documents": len(texts), **total, "labels": {label: labels[label] for label in sorted(labels)}}


def _strata(draw: Draw, texts: Sequence[MeasuredText], label: str | None) -> dict[str, Stratum]:
    """What the sample says of each stratum; of the secrets with ``label`` alone where one is given."""
    stream = RandomStream.from_seed(draw["seed"])
    strata = dict[str, Stratum]()
    for name in STRATA:
        own, points = [t for t in texts if t.row.drawn.stratum == name], draw["strata"][name]["points"]
        if not points:
            strata[name] = EMPTY
        elif draw["strata"][name]["whole"]:
            shares = [_share(text, label) for text in own]
            strata[name] = Whole(points, sum(h for h, _ in shares), sum(m for _, m in shares))
        else:
            units = [missed for text in own for missed in _units(text, stream, label)]
            strata[name] = Drawn(points, draw["strata"][name]["draws"], len(units), sum(units))
    return strata


def _share(text: MeasuredText, label: str | None) -> tuple[float, float]:
    """The text's copies times the share of its secrets that are asked for, and that are missed of these."""
    asked = [missed for secret, missed in _pairs(text) if label in (None, secret.label)]
    each = text.row.drawn.times / max(1, len(text.row.secrets))
    return each * len(asked), each * sum(asked)


def _units(text: MeasuredText, stream: RandomStream, label: str | None) -> Iterator[bool]:
    """Of every draw that gave a secret that is asked for, whether it is missed."""
    missed = dict(_pairs(text))
    return (missed[s] for s in secrets_drawn(text.row, stream) if label in (None, s.label))


def _pairs(text: MeasuredText) -> Iterator[tuple[Any, bool]]:
    return zip(text.row.secrets, text.missed, strict=True)


def _counted(texts: Sequence[MeasuredText], label: str | None) -> dict[str, int]:
    """Labelled secrets and misses, each distinct text once."""
    counts = {"secrets": 0, "gamma": 0, "delta_2": 0}
    for text in texts:
        asked = [missed for secret, missed in _pairs(text) if label in (None, secret.label)]
        counts["secrets"] += len(asked)
        counts["gamma"] += sum(asked)
        counts["delta_2"] += len(asked) if text.row.drawn.stratum == PUBLIC else 0
    return counts


def _shown(draw: Draw, name: str, stratum: Stratum) -> dict[str, Any]:
    """A stratum as the result tells it: counts of draws, or of points where it was labelled whole."""
    whole = isinstance(stratum, Whole)
    secrets = stratum.holding if isinstance(stratum, Whole) else stratum.secrets
    return {
        "points": stratum.points,
        "texts": draw["strata"][name]["texts"],
        "whole": whole,
        "draws": stratum.points if isinstance(stratum, Whole) else stratum.draws,
        "secrets": secrets,
        "missed_by_strict": stratum.missing if isinstance(stratum, Whole) else stratum.missed,
        "missed_by_both": secrets if name == PUBLIC else 0,
    }


# The score of a sample in words, the same on the terminal and in the report.


_SYMBOLS = {"gamma": "γ", "delta_2": "δ₂"}


def resting_on_labellers(result: Mapping[str, Any]) -> list[str]:
    """A sentence for each bound of a score that is 0 since all that could hold a miss was labelled."""
    public = result["strata"]["public"]
    if not public["points"]:
        return []
    texts = {"gamma": "every text that could hold a miss", "delta_2": "every public text"}
    return [
        f"{symbol} is 0, because {texts[name]} was labelled: it rests on the labellers having overlooked "
        "nothing."
        for name, symbol in _SYMBOLS.items()
        if public["whole"] and result["misses"][name]["upper"] == 0
    ]
