"""Each record of the release log in the words of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redactory.foundation.records import Record
from redactory.foundation.wording import some
from redactory.pipelines.releases.log import Event

Body = Mapping[str, Any]
SHOWN = 12
"""Hexadecimal digits of a digest that are shown."""


def in_words(record: Record) -> str:
    """What happened, in one line; a type that this version does not know says its name."""
    words = _WORDS.get(record.type)
    return record.type if words is None else words(record.body)


def holds_nothing(counts: Mapping[str, Any]) -> bool:
    """Whether a run with these ``counts`` has no point that anybody could read."""
    return not counts.get("public", 0) and not counts.get("private", 0)


def _released(body: Body) -> str:
    nothing = body.get("counts") and holds_nothing(body["counts"])
    return f"released{_counts(body)}{', with no point in it' if nothing else ''}"


def _approved(body: Body) -> str:
    nothing = " with no point in it" if body.get("empty") else ""
    return f"approved{nothing} by {body['by']}: {body['reason']}"


def _begun(body: Body) -> str:
    slices, waiting = body["plan"]["slices"], body["plan"].get("waiting", [])
    if not slices:
        return "begun: another try of a quarantine"
    size = sum(piece["to_byte"] - piece["from_byte"] for piece in slices)
    files = {piece["url"] for piece in slices}
    again = sum(bool(piece["again"]) for piece in slices)
    parts = [f"begun: {size:,} new bytes in {some(len(files), 'file')}"]
    parts += [f"{some(again, 'file')} read again"] if again else []
    parts += [f"{some(len(waiting), 'unfinished row')} left for later"] if waiting else []
    return ", ".join(parts)


def _counts(body: Body) -> str:
    counts = body.get("counts")
    if not counts:
        return ""
    known = [fate for fate in ("public", "private", "duplicate", "quarantined") if fate in counts]
    fates = ", ".join(f"{counts[fate]:,} {fate}" for fate in known)
    rows = f"{some(counts['rows'], 'row')}: " if "rows" in counts else ""
    return f" ({rows}{fates})"


def _held(body: Body) -> str:
    findings = body.get("findings", [])
    named = [str(finding["metric"]) for finding in findings if "metric" in finding]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"held{_counts(body)}: {', '.join(named[:3]) or 'outside of its limits'}{more}"


def _reissued(body: Body) -> str:
    removed = body.get("removed") or {}
    what = [*map(str, body.get("what") or ()), *([some(removed["points"], "point")] if removed else ())]
    return f"written anew ({body.get('why', 'reissue')}{': ' + ', '.join(what) if what else ''}){_by(body)}"


def _exported(body: Body) -> str:
    to = f" to {body['to']}" if body.get("to") else ""
    with_models = f", with {', '.join(body['models'])}" if body.get("models") else ""
    digest = f" (manifest {str(body['manifest'])[:SHOWN]})" if body.get("manifest") else ""
    what = f"published at {body['published']}" if body.get("published") else "what may leave was copied"
    return f"{what}{to}{with_models}{digest}{_by(body)}"


def _done(body: Body) -> str:
    failed = f"; failed: {', '.join(body['failed'])}" if body.get("failed") else ""
    return f"what follows from record {body['of']} was done{failed}"


def _by(body: Body) -> str:
    """Who did it, where they said so."""
    return f", by {body['by']}" if body.get("by") else ""


_WORDS: dict[str, Callable[[Body], str]] = {
    Event.BEGUN: _begun,
    Event.FAILED: lambda body: f"failed: {body['error']}",
    Event.RELEASED: _released,
    Event.HELD: _held,
    Event.APPROVED: _approved,
    Event.REJECTED: lambda body: f"rejected by {body['by']}: {body['reason']}",
    Event.REISSUED: _reissued,
    Event.RETRIED: lambda body: f"quarantine curated again, in {body.get('into', 'another run')}",
    Event.ROTATED: lambda body: f"data key wrapped anew, by {body.get('service', 'another service')}",
    Event.SHREDDED: lambda body: f"data key destroyed: the private part can be read no more{_by(body)}",
    Event.EXPORTED: _exported,
    Event.DONE: _done,
}
