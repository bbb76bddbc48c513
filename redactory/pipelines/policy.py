"""Policy: detection as a library, on texts in memory, with what a curation would do to each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from redactory.detectors import Detection, Detector, TextDetector, differing, policy_hashes, policy_records
from redactory.foundation.canonical import hash_of
from redactory.foundation.errors import InputError
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config, load_for_texts
from redactory.pipelines.segment import Segment, segmenter
from redactory.redaction import PUBLIC, RunFolder, is_finished, read_manifest, route

Side = Literal["public", "private", "quarantined"]
PolicyName = Literal["strict", "conservative"]
_AT_ONCE = 1_000
"""Texts whose points are handed to the engines in one pass; they are held until it has ended."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that was found: code points [start, end) of the text, its label, its score in [0, 1].

    ``detector`` is the engine, list or rule that found it.  ``policy`` is ``strict`` where the hit is masked
    and ``conservative`` where it only makes its point private.
    """

    start: int
    end: int
    label: str
    score: float
    detector: str
    policy: PolicyName


@dataclass(frozen=True, slots=True)
class Point:
    """One data point of a text, at code points [start, end), and what becomes of it.

    ``side`` is where it goes; ``redacted`` is what stands there.  ``reasons`` are those of a private point,
    as ``detector:LABEL``.  A point that an engine could not process is quarantined: ``failure`` is the reason
    code, and ``redacted`` is empty.
    """

    start: int
    end: int
    side: Side
    redacted: str
    reasons: tuple[str, ...] = ()
    failure: str | None = None
    hits: tuple[Hit, ...] = ()


class Policy:
    """Both policies of a configuration, and the segments that they work on; frozen, and named by its hash.

    A text is cut into data points as :func:`redactory.curate` cuts a document (``segment.mode``), and each
    point is judged by itself.  The results are those of a curation with the same configuration.  The engines
    are loaded on first use, which takes seconds: keep the object.
    """

    def __init__(self, config: Config, detector: TextDetector | None = None) -> None:
        """Of a checked configuration; :meth:`load` takes files and mappings."""
        self._config = config
        self._given = detector
        self._cut = segmenter(config.segment)

    @classmethod
    def load(cls, config: Given | None = None, *, detector: TextDetector | None = None) -> Policy:
        """Of a configuration: a YAML file or a mapping, which need no ``input``; the default without one.

        ``detector`` replaces the configured engines.  ``ConfigurationError`` for a mistake in it.
        """
        return cls(load_for_texts(config), detector)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """The hash of each policy by its name: those that ``curate`` returns and a manifest names.

        They cover settings, lists, models and versions.  Nothing is loaded for them but files that are named.
        """
        return policy_hashes(self._config.detect)

    @property
    def hash(self) -> str:
        """One hash of both policies and of how a text is cut: equal hashes give equal results."""
        return hash_of({"policies": self.hashes, "segment": self._config.segment.model_dump(mode="json")})

    def load_engines(self) -> None:
        """Load the engines now, which takes seconds; else the first text does."""
        _ = self._detector

    def scan(self, text: str) -> list[Hit]:
        """What is found in ``text``, in text order; ``InputError`` where a part of it cannot be processed."""
        return next(self.scan_many([text]))

    def redact(self, text: str) -> str:
        """``text`` with every hit of the strict policy replaced by ``<MASK>``.

        ``InputError`` where a part of it cannot be processed: what nobody looked at is not handed on.
        """
        return next(self.redact_many([text]))

    def split(self, text: str) -> list[Point]:
        """The data points of ``text``, each with its side, its redacted text and its hits.

        The only method that answers for a text that cannot be processed: such a point is quarantined.
        """
        return next(self.split_many([text]))

    def side(self, text: str) -> Side:
        """``quarantined`` where a point of ``text`` is, else ``private`` where one is, else ``public``."""
        sides: set[Side] = {point.side for point in self.split(text)}
        if "quarantined" in sides:
            return "quarantined"
        return "private" if "private" in sides else "public"

    def scan_many(self, texts: Iterable[str]) -> Iterator[list[Hit]]:
        """:meth:`scan` of each text, in order, as they are asked for; the engines see many at once."""
        for _, points in self._readable(texts):
            yield sorted(
                (hit for point in points for hit in point.hits), key=lambda h: (h.start, h.end, h.label)
            )

    def redact_many(self, texts: Iterable[str]) -> Iterator[str]:
        """:meth:`redact` of each text, in order, as they are asked for; the engines see many at once."""
        for text, points in self._readable(texts):
            pieces, position = list[str](), 0
            for point in points:
                pieces += (text[position : point.start], point.redacted)
                position = point.end
            yield "".join(pieces) + text[position:]

    def split_many(self, texts: Iterable[str]) -> Iterator[list[Point]]:
        """:meth:`split` of each text, in order, as they are asked for; the engines see many at once."""
        remaining = iter(texts)
        while batch := list(islice(remaining, _AT_ONCE)):
            cut = [self._cut(text) for text in batch]
            detections = self._detector.detect([segment.text for own in cut for segment in own])
            for own in cut:
                yield list(_points(own, detections))

    @cached_property
    def _detector(self) -> TextDetector:
        return Detector(self._config.detect) if self._given is None else self._given

    def _readable(self, texts: Iterable[str]) -> Iterator[tuple[str, list[Point]]]:
        """Each text with its points; ``InputError`` for the first one with a point that was not processed."""
        waiting: deque[str] = deque()

        def noted() -> Iterator[str]:
            for text in texts:
                waiting.append(text)
                yield text

        for number, points in enumerate(self.split_many(noted()), 1):
            failures = sorted({point.failure for point in points if point.failure is not None})
            if failures:
                raise InputError(
                    f"text {number} cannot be processed in whole ({', '.join(failures)}), so it is not known "
                    "what is in it: split() says which data points of it are quarantined"
                )
            yield waiting.popleft(), points


def _points(segments: list[Segment], detections: Iterator[Detection]) -> Iterator[Point]:
    """The points of one text, whose detections are the next ones."""
    position = 0
    for segment in segments:
        start = position + len(segment.prefix)
        position = start + len(segment.text) + len(segment.suffix)
        yield _point(segment.text, start, next(detections))


def _point(text: str, start: int, detection: Detection) -> Point:
    fate = route(text, detection)
    end = start + len(text)
    if fate.failure is not None:
        return Point(start, end, "quarantined", "", failure=fate.failure)
    masked = set(detection.strict)
    hits = tuple(
        Hit(
            span.start + start,
            span.end + start,
            span.label,
            span.score,
            span.detector,
            "strict" if span in masked else "conservative",
        )
        for span in sorted(masked.union(detection.conservative))
    )
    side: Side = "public" if fate.side == PUBLIC else "private"
    return Point(start, end, side, fate.text, fate.reasons, hits=hits)


# What differs between the policies of two configurations, or of a configuration and a finished run.


def policy_diff(old: Given, new: Given) -> dict[str, list[dict[str, Any]]]:
    """For each policy the keys whose values differ: [{key, old, new}]; empty where the hashes are equal.

    ``old`` and ``new`` are configurations or finished run folders.  A key that only one of them has is null
    in the other.
    """
    before, after = _records(old), _records(new)
    return {name: differing(before[name], after[name]) for name in before}


def _records(given: Given) -> dict[str, Any]:
    if isinstance(given, str | Path) and Path(given).is_dir() and is_finished(RunFolder(Path(given))):
        policies: dict[str, Any] = read_manifest(RunFolder(Path(given)))["policies"]
        return policies
    return policy_records(load_config(given).detect)
