"""Engines: find spans in texts and, if they can, the probability that a token is outside every entity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Protocol

TOO_LONG, TIMEOUT, ENGINE_ERROR, MISALIGNED = "too_long", "pattern_timeout", "engine_error", "misaligned"
"""Reason codes of texts that could not be processed."""


class Span(NamedTuple):
    """Code points [start, end) of a text, a label, a score in [0, 1] and the detector that found it."""

    start: int
    end: int
    label: str
    score: float
    detector: str


class NonEntityScore(NamedTuple):
    """Code points [start, end) of one token, and the probability that it is outside every entity."""

    start: int
    end: int
    probability: float
    detector: str


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Raw engine output for one text, before any policy.

    ``allowed_ranges`` are matches of an allow list. ``failure`` is a reason code if the text could not be processed;
    then the other fields are empty.
    """

    spans: tuple[Span, ...] = ()
    non_entity_scores: tuple[NonEntityScore, ...] = ()
    allowed_ranges: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    def remap_offsets(self, map_offset: Callable[[int], int]) -> EngineOutput:
        """The same output for another text; ``map_offset`` maps each offset to its place there."""
        if self.failure is not None:
            return self
        return EngineOutput(
            tuple(s._replace(start=map_offset(s.start), end=map_offset(s.end)) for s in self.spans),
            tuple(p._replace(start=map_offset(p.start), end=map_offset(p.end)) for p in self.non_entity_scores),
            tuple((map_offset(start), map_offset(end)) for start, end in self.allowed_ranges),
        )


class Capability(NamedTuple):
    """What one component (a model, a recognizer, a list) can find, known without loading it.

    ``language`` is the language of running text it was made for, None if unknown. ``requested_labels`` are masked
    because the configuration names the component. ``scope``: "names" in running text, "tokens" if it also scores each
    other token, "forms" for patterns and listed terms only.
    """

    component: str
    labels: frozenset[str]
    language: str | None = None
    requested_labels: frozenset[str] = frozenset()
    scope: Literal["tokens", "names", "forms"] = "tokens"


@dataclass(frozen=True, slots=True)
class MappedText:
    """A folded or rendered text; ``origins[i]`` is the source code point of its i-th one, then the source length."""

    text: str
    origins: Sequence[int]

    def get_source_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the source code points [start, end) of a non-empty range of the text.

        A source letter that the range covers in part ("s" of "ß") is included whole, and so are following marks and
        invisible characters, which fold to nothing.
        """
        last = self.origins[end - 1]
        while self.origins[end] == last:
            end += 1
        return self.origins[start], self.origins[end]


def trim_range(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the offsets of ``text[start:end]`` without white space at its ends."""
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - len(body) + len(body.rstrip())


PUBLIC_THRESHOLD, SURE_THRESHOLD, WEAK_THRESHOLD = 0.5, 0.98, 0.25
"""Minimum P(public) of a public token; or minimum P(non-entity or public) with a weaker minimum P(public)."""


def find_public_spans(tokens: Iterable[tuple[NonEntityScore, float, str]]) -> Iterator[Span]:
    """Yield runs of tokens of one public kind; each token is ``(token, P(public), most probable kind)``.

    ``token.probability`` is P(non-entity or public). A token is public if P(public) reaches ``PUBLIC_THRESHOLD``, or
    ``WEAK_THRESHOLD`` for a token that is surely not sensitive. The score of a run is the mean over its tokens.
    """

    def get_public_kind(entry: tuple[NonEntityScore, float, str]) -> str | None:
        token, public, kind = entry
        sure = public >= PUBLIC_THRESHOLD or (public >= WEAK_THRESHOLD and token.probability >= SURE_THRESHOLD)
        return kind if sure else None

    for kind, run in groupby(tokens, get_public_kind):
        if kind is not None:
            parts = [(token, max(public, PUBLIC_THRESHOLD)) for token, public, _ in run]
            (first, _), (last, _) = parts[0], parts[-1]
            score = sum(public for _, public in parts) / len(parts)
            yield Span(first.start, last.end, kind, round(score, 6), first.detector)


class Engine(Protocol):
    """Protocol of an engine: the output for a text is a function of that text alone, never of its batch.

    ``read`` returns one output per text. If it raises, it gets each text again by itself; a text that raises then has
    failed. Threads share engines, so state during a read is guarded by ``ENGINE_LOCK``. ``collect_fingerprint`` returns
    digests and versions for the policy hash, ``list_capabilities`` what the engine can find; neither loads anything.
    The optional ``treat_as_public`` makes tokens of public kinds count as non-entity tokens. A package registers its
    class as :mod:`redactory.detectors.external` describes, with a class attribute ``settings`` for its options.
    """

    def __init__(self, settings: Any, language: str) -> None: ...

    def read(self, texts: Sequence[str]) -> list[EngineOutput]: ...

    @classmethod
    def collect_fingerprint(cls, settings: Any, language: str) -> dict[str, Any]: ...

    @classmethod
    def list_capabilities(cls, settings: Any, language: str) -> list[Capability]: ...


def merge_outputs(outputs: Iterable[EngineOutput]) -> EngineOutput:
    """Merge the outputs of several engines or windows for one text; if one failed, the result is a failure."""
    outputs = list(outputs)
    for output in outputs:
        if output.failure is not None:
            return EngineOutput(failure=output.failure)
    if len(outputs) == 1:
        return outputs[0]
    return EngineOutput(
        tuple(span for output in outputs for span in output.spans),
        tuple(token for output in outputs for token in output.non_entity_scores),
        tuple(place for output in outputs for place in output.allowed_ranges),
    )
