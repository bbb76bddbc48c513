"""Each record of the release log in the words of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redactory.foundation.records import Record
from redactory.pipelines.releases.log import Event

Body = Mapping[str, Any]


def in_words(record: Record) -> str:
    """What happened, in one line; a type that this version does not know says its name."""
    words = _WORDS.get(record.type)
    return record.type if words is None else words(record.body)


def _begun(body: Body) -> str:
    slices, waiting = body["plan"]["slices"], body["plan"].get("waiting", [])
    if not slices:
        return "begun: another try of a quarantine"
    size = sum(piece["to_byte"] - piece["from_byte"] for piece in slices)
    files = {piece["url"] for piece in slices}
    again = sum(bool(piece["again"]) for piece in slices)
    parts = [f"begun: {size:,} new bytes in {_some(len(files), 'file')}"]
    parts += [f"{_some(again, 'file')} read again"] if again else []
    parts += [f"{_some(len(waiting), 'unfinished row')} left for later"] if waiting else []
    return ", ".join(parts)


def _counts(body: Body) -> str:
    counts = body.get("counts")
    if not counts:
        return ""
    known = [fate for fate in ("public", "private", "duplicate", "quarantined") if fate in counts]
    fates = ", ".join(f"{counts[fate]:,} {fate}" for fate in known)
    rows = f"{counts['rows']:,} rows: " if "rows" in counts else ""
    return f" ({rows}{fates})"


def _held(body: Body) -> str:
    findings = body.get("findings", [])
    named = [str(finding["metric"]) for finding in findings if "metric" in finding]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"held{_counts(body)}: {', '.join(named[:3]) or 'outside of its limits'}{more}"


def _reissued(body: Body) -> str:
    removed = body.get("removed") or {}
    what = [*map(str, body.get("what") or ()), *([_some(removed["points"], "point")] if removed else ())]
    return f"written anew ({body.get('why', 'reissue')}{': ' + ', '.join(what) if what else ''})"


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_WORDS: dict[str, Callable[[Body], str]] = {
    Event.BEGUN: _begun,
    Event.FAILED: lambda body: f"failed: {body['error']}",
    Event.RELEASED: lambda body: f"released{_counts(body)}",
    Event.HELD: _held,
    Event.APPROVED: lambda body: f"approved by {body['by']}: {body['reason']}",
    Event.REJECTED: lambda body: f"rejected by {body['by']}: {body['reason']}",
    Event.REISSUED: _reissued,
    Event.RETRIED: lambda body: f"quarantine curated again, in {body.get('into', 'another run')}",
    Event.ROTATED: lambda body: f"data key wrapped anew, by {body.get('service', 'another service')}",
    Event.SHREDDED: lambda body: "data key destroyed: the private part can be read no more",
    Event.EXPORTED: lambda body: "what may leave was copied",
}
