"""Segment a document into examples, losslessly.

An example contains whole natural sentences (CRT, appendix A.6, items 2 and 3). White space and a speaker's label, which
are not in its text, are kept in its prefix or suffix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.curation.config import SegmentSettings
from redactory.redaction.mask import ROLE_MARK, TURN_MARK

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_ENDLESS_WORD = re.compile(r"\S{400,}")
_SIGN = re.compile(r"[^\w\s]")
_SPACED_STOP = re.compile(r"(?<=(?<!\w)\w )[.](?= \w(?!\w))")
"""A full stop inside a word that is spaced out, like "j . d o e @ m a i l . o r g"."""
ROLES = frozenset(
    (
        *("system", "developer", "user", "human", "person", "customer", "client", "caller", "visitor"),
        *("patient", "student", "assistant", "ai", "bot", "gpt", "chatgpt", "model", "agent", "operator"),
        *("support", "advisor", "expert", "doctor", "teacher", "tool", "function", "observation"),
        "function_call",
    )
)
"""Names of roles that do not identify a person."""


class Segment(NamedTuple):
    """One example of a document; prefix + text + suffix of all of them, in order, equal the document."""

    prefix: str
    text: str
    suffix: str
    speaker: str | None = None


SegmentFunction = Callable[[str], list[Segment]]


def make_segmenter(settings: SegmentSettings, has_multiple_texts: bool = False) -> SegmentFunction:
    """Return the function that cuts a document, of several texts if so; its result depends on the document alone."""
    splitters: dict[str, Callable[[str], Iterable[str]]] = {
        "sentence": _split_sentences,
        "line": _LINE.findall,
        "document": lambda text: [text],
    }

    def segment_text(text: str) -> list[Segment]:
        return _merge_empty_segments(_trim_segment(part) for part in splitters[settings.mode](text))

    cut = _make_turn_segmenter(settings.speaker) if settings.mode == "turn" else segment_text
    return make_multi_text_segmenter(cut) if has_multiple_texts else cut


def make_multi_text_segmenter(segment_text: SegmentFunction) -> SegmentFunction:
    """Apply ``segment_text`` to each text of a document: no example spans two texts, and a role is the speaker."""

    def segment_joined_texts(text: str) -> list[Segment]:
        segments: list[Segment] = []
        for number, part in enumerate(text.split(TURN_MARK)):
            role, mark, text_part = part.rpartition(ROLE_MARK)
            prefix = TURN_MARK * (number > 0) + role + mark
            first, *others = segment_text(text_part) or [Segment(text_part, "", "")]
            part_segments = [first._replace(prefix=prefix + first.prefix), *others]
            segments += [segment._replace(speaker=role) if role else segment for segment in part_segments]
        return _merge_empty_segments(segments)

    return segment_joined_texts


def is_known_role(name: str | None) -> bool:
    """Return whether ``name`` is a common name of a role, not of a person."""
    return name is not None and name.strip().lower() in ROLES


def iterate_turns(segments: Iterable[Segment]) -> Iterator[tuple[int, str | None]]:
    """Yield for each example from :func:`make_multi_text_segmenter` its text's number in the document, and its role."""
    turn, role = 0, None
    for segment in segments:
        *before, last_part = segment.prefix.split(TURN_MARK)
        part_role, mark, _ = last_part.rpartition(ROLE_MARK)
        turn, role = turn + len(before), part_role if mark else None if before else role
        yield turn, role
        turn += segment.suffix.count(TURN_MARK)


def _split_sentences(text: str) -> Iterator[str]:
    from nupunkt import sent_spans

    # it scans the whole word again for each sign in it; no sentence ends within hundreds of letters
    simplified = _SPACED_STOP.sub("x", text)
    simplified = _ENDLESS_WORD.sub(lambda word: _SIGN.sub("x", word[0][:-100]) + word[0][-100:], simplified)
    end = 0
    for start, stop, *_ in sent_spans(simplified):
        # white space between two sentences belongs to the second
        yield text[min(end, start) : stop]
        end = stop
    yield text[end:]


def _make_turn_segmenter(speaker: str) -> SegmentFunction:
    try:
        label = re.compile(rf"\s*({speaker})")
    except re.error as error:
        # without the prefix that is added here
        position = max(1, (error.pos or 0) + 1 - len(r"\s*("))
        raise ConfigurationError(
            f"segment.speaker: invalid regular expression at character {position}: {error.msg}"
        ) from None

    def segment_turn(line: str) -> Segment:
        match = label.match(line)
        if match is None:
            return _trim_segment(line)
        segment = _trim_segment(line[match.end() :])
        return segment._replace(prefix=match[0] + segment.prefix, speaker=match[1].strip().rstrip(":"))

    return lambda text: _merge_empty_segments(segment_turn(line) for line in _LINE.findall(text))


def _trim_segment(text_part: str) -> Segment:
    text = text_part.strip()
    start = len(text_part) - len(text_part.lstrip())
    return Segment(text_part[:start], text, text_part[start + len(text) :])


def _merge_empty_segments(segments: Iterable[Segment]) -> list[Segment]:
    """Join each empty segment to a neighbour, so that no text is lost and no segment is empty."""
    merged, leading = list[Segment](), ""
    for has_text, group in groupby(segments, lambda segment: bool(segment.text)):
        if has_text:
            merged += group
            continue
        # joined only once: a document can have a million empty lines in a row
        gap = "".join(segment.prefix + segment.suffix for segment in group)
        if merged:
            merged[-1] = merged[-1]._replace(suffix=merged[-1].suffix + gap)
        else:
            leading = gap
    if not merged:
        # a document without any text in its turns (only labels) is still one example
        return [_trim_segment(leading)] if leading else []
    merged[0] = merged[0]._replace(prefix=leading + merged[0].prefix)
    return merged
