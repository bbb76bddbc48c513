"""Segmenters: a document into data points, and back again character for character.

A data point holds whole natural sentences (CRT, appendix A.6, items 2 and 3).  Whatever is no part of
a point's text, white space and a speaker's label, is kept in its prefix or suffix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.fields import PART, ROLE

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_ENDLESS_WORD = re.compile(r"\S{400,}")
_SIGN = re.compile(r"[^\w\s]")
ROLES = frozenset(
    (
        *("system", "developer", "user", "human", "person", "customer", "client", "caller", "visitor"),
        *("patient", "student", "assistant", "ai", "bot", "gpt", "chatgpt", "model", "agent", "operator"),
        *("support", "advisor", "expert", "doctor", "teacher", "tool", "function", "observation"),
        "function_call",
    )
)
"""What a role can be called without saying who somebody is."""


class Segment(NamedTuple):
    """One data point of a document; prefix + text + suffix of all of them give the document back."""

    prefix: str
    text: str
    suffix: str
    speaker: str | None = None


Cutter = Callable[[str], list[Segment]]


def segmenter(settings: SegmentSettings) -> Cutter:
    """The function that cuts a document; a function of the document's text alone."""
    if settings.mode == "turn":
        return _turns(settings.speaker)
    cutters: dict[str, Callable[[str], Iterable[str]]] = {
        "sentence": _sentences,
        "line": _lines,
        "document": lambda text: [text],
    }
    cut = cutters[settings.mode]
    return lambda text: _whole(_trim(piece) for piece in cut(text))


def of_parts(cut: Cutter) -> Cutter:
    """``cut`` for documents of several texts: no point lies in two of them, and a role is the speaker."""

    def cut_each(text: str) -> list[Segment]:
        found: list[Segment] = []
        for number, part in enumerate(text.split(PART)):
            role, mark, said = part.rpartition(ROLE)
            before = PART * (number > 0) + role + mark
            first, *more = cut(said) or [Segment(said, "", "")]
            own = [first._replace(prefix=before + first.prefix), *more]
            found += [one._replace(speaker=role) if role else one for one in own]
        return _whole(found)

    return cut_each


def is_role(name: str | None) -> bool:
    """Whether it is what a role is called, and nobody's name."""
    return name is not None and name.strip().lower() in ROLES


def turns_of(points: Iterable[Segment]) -> Iterator[tuple[int, str | None]]:
    """Which text of its document each point lies in, from 0, and the role of whoever said it.

    ``points`` are those of one document that :func:`of_parts` cut.
    """
    turn, role = 0, None
    for point in points:
        *before, own = point.prefix.split(PART)
        told, mark, _ = own.rpartition(ROLE)
        turn, role = turn + len(before), told if mark else None if before else role
        yield turn, role
        turn += point.suffix.count(PART)


def _sentences(text: str) -> Iterator[str]:
    from nupunkt import sent_spans

    # it looks at the whole word anew for each sign in it, and no sentence ends amid hundreds of letters
    calm = _ENDLESS_WORD.sub(lambda word: _SIGN.sub("x", word[0][:-100]) + word[0][-100:], text)
    end = 0
    for start, stop, *_ in sent_spans(calm):
        # whatever lies between two sentences stays with the second
        yield text[min(end, start) : stop]
        end = stop
    yield text[end:]


def _lines(text: str) -> Iterator[str]:
    return (match.group() for match in _LINE.finditer(text))


def _turns(speaker: str) -> Cutter:
    try:
        label = re.compile(rf"\s*({speaker})")
    except re.error as error:
        # what stands in front of it here does not count
        place = max(1, (error.pos or 0) + 1 - len(r"\s*("))
        raise ConfigurationError(
            f"segment.speaker: invalid regular expression at character {place}: {error.msg}"
        ) from None

    def turn(line: str) -> Segment:
        match = label.match(line)
        if match is None:
            return _trim(line)
        said = _trim(line[match.end() :])
        return said._replace(prefix=match[0] + said.prefix, speaker=match[1].strip().rstrip(":"))

    return lambda text: _whole(turn(line) for line in _lines(text))


def _trim(piece: str) -> Segment:
    text = piece.strip()
    start = len(piece) - len(piece.lstrip())
    return Segment(piece[:start], text, piece[start + len(text) :])


def _whole(segments: Iterable[Segment]) -> list[Segment]:
    """``segments`` with each empty one joined to a neighbour, so that nothing is lost and none is empty."""
    kept: list[Segment] = []
    # a document can have a million empty lines in a row: what they hold is joined once
    empty: list[str] = []
    for segment in segments:
        if not segment.text:
            empty += (segment.prefix, segment.suffix)
            continue
        if kept:
            kept[-1] = kept[-1]._replace(suffix=kept[-1].suffix + "".join(empty))
        else:
            segment = segment._replace(prefix="".join(empty) + segment.prefix)
        kept.append(segment)
        empty = []
    pending = "".join(empty)
    if kept:
        kept[-1] = kept[-1]._replace(suffix=kept[-1].suffix + pending)
        return kept
    # a document without any turn's text (labels alone, say) is still a point of its own
    return [_trim(pending)] if pending else []
