"""Detect spans in texts: run the engines over batches and windows, then apply both policies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from redactory.detectors.code import filter_code_output
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, TOO_LONG, Engine, EngineOutput, Span, merge_outputs
from redactory.detectors.engine_registry import load_engines
from redactory.detectors.policy import LIST_DETECTOR, PATTERN_DETECTOR, build_policies
from redactory.detectors.settings import KNOWN_LABELS, DetectSettings, get_kind, get_kinds
from redactory.detectors.visible_text import render_visible

WINDOW_CHARS, OVERLAP_CHARS = 4_000, 256
"""Maximum code points of a window, and the overlap of neighbouring windows."""
MAX_BATCH_CHARS = 2 * WINDOW_CHARS
"""Maximum code points that an engine sees at once: a model needs 12 KB for each."""
_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’)\]]*|\n)\s+")
_SPACE = re.compile(r"\s+")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_PLACEHOLDER = re.compile(
    f"<(?:MASK|(?:{'|'.join(sorted(KNOWN_LABELS | get_kinds(KNOWN_LABELS)))})(?:_(?:\\d{{1,4}}|[a-z2-7]{{16}}))?)>"
)
"""What ``redact`` writes in place of a value, and nothing else: <MASK>, <PERSON>, <PERSON_1>, <PERSON_k3v…>."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Spans of both policies in one text, public spans that neither selects, or a failure's reason code."""

    strict: tuple[Span, ...] = ()
    conservative: tuple[Span, ...] = ()
    failure: str | None = None
    public: tuple[Span, ...] = ()


PROBE_TEXTS = (
    "My name is Mary Smith, and my address is mary.smith@example.com.",
    "Please call John Miller in Boston on (212) 555-0187.",
    "Pay with the card 4111 1111 1111 1111 of Anna Schmidt.",
)
"""Texts in which every usual policy masks something."""


class TextDetector(Protocol):
    """Protocol of anything that detects: the engines, or recorded spans."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]: ...


class Detector:
    """The engines and both policies of one configuration; loading takes seconds, so reuse it.

    The detection of a text is a function of the text and the configuration, in any batch and order.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._window_engines, self._whole_text_engines = load_engines(settings)
        self.strict, self.conservative = build_policies(settings)
        self._public_kinds = get_kinds(settings.public_labels)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """Yield one detection per text, in order, a batch at a time."""
        for batch in _batch_texts(texts, self._settings.batch_size):
            for text, output in zip(batch, self.run_engines(batch), strict=True):
                yield self.apply_policies(text, output)

    def run_engines(self, batch: Sequence[str]) -> list[EngineOutput]:
        """Run the engines on each text of one batch, as written and as visible, before any policy."""
        outputs = self._run_on_windows(batch)
        views = {row: visible for row, text in enumerate(batch) if (visible := render_visible(text)) is not None}
        for (row, visible), output in zip(
            views.items(), self._run_on_windows([v.text for v in views.values()]), strict=True
        ):
            outputs[row] = merge_outputs([outputs[row], output.remap_offsets(visible.origins.__getitem__)])
        return outputs

    def _run_on_windows(self, batch: Sequence[str]) -> list[EngineOutput]:
        short_texts = [text for text in batch if len(text) <= self._settings.max_chars]
        places = [list(cut_windows(text, WINDOW_CHARS, OVERLAP_CHARS)) for text in short_texts]
        pieces = [text[start:end] for text, ranges in zip(short_texts, places, strict=True) for start, end in ranges]
        # a long text has many windows: pass at most a batch of them at once
        parts = _batch_texts(pieces, self._settings.batch_size)
        outputs = (output for part in parts for output in _run_all_engines(self._window_engines, part))
        wholes = _run_all_engines(self._whole_text_engines, short_texts)
        merged = (
            merge_outputs([*(next(outputs).remap_offsets(start.__add__) for start, _ in ranges), whole])
            for ranges, whole in zip(places, wholes, strict=True)
        )
        return [
            next(merged) if len(text) <= self._settings.max_chars else EngineOutput(failure=TOO_LONG) for text in batch
        ]

    def apply_policies(self, text: str, output: EngineOutput) -> Detection:
        """Apply both policies to the engines' output for ``text``."""
        output = self.prepare_output(text, output)
        if output.failure:
            return Detection(failure=output.failure)
        span_sets = [set(policy.select_spans(text, output)) for policy in (self.strict, self.conservative)]
        public = {span for span in output.spans if get_kind(span.label) in self._public_kinds}.difference(*span_sets)
        strict, conservative, open_ = (tuple(sorted(spans)) for spans in (*span_sets, public))
        return Detection(strict, conservative, public=open_)

    def prepare_output(self, text: str, output: EngineOutput) -> EngineOutput:
        """Prepare an engine output for the policies: allow placeholders and public spans, apply the profile."""
        if output.failure:
            return output
        if placeholders := tuple(match.span() for match in _PLACEHOLDER.finditer(text)):
            output = replace(output, allowed_ranges=output.allowed_ranges + placeholders)
        if self._settings.profile == "code":
            patterns = self._settings.patterns
            custom = {recognizer.label for recognizer in patterns.custom} if patterns else ()
            output = filter_code_output(text, output, custom)
        return self.strict.allow_public(output, self._public_kinds) if self._public_kinds else output


def _batch_texts(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Batch ``texts`` in order: at most ``size`` texts and ``MAX_BATCH_CHARS`` code points, or one longer text."""
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == size or chars + len(text) > MAX_BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


def detector_masks_nothing(settings: DetectSettings, load: Callable[[], TextDetector]) -> bool:
    """Return whether the strict policy masks nothing in ``PROBE_TEXTS``; load the detector only if settings differ."""
    defaults = DetectSettings()
    if all(
        getattr(settings, key) == getattr(defaults, key)
        for key in ("strict", "sensitivity", "patterns", "lists", "public_labels")
    ):
        return False
    return not any(detection.strict or detection.failure for detection in load().detect(PROBE_TEXTS))


def cut_windows(text: str, chars: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield ranges [start, end) of at most ``chars`` code points that cover ``text``, to bound memory.

    Neighbours share at least ``overlap`` code points, so anything of at most that length lies whole in one window. Cuts
    prefer sentence ends, then white space. A function of the text alone. Needs 2 * ``overlap`` < ``chars``.
    """
    start = 0
    while len(text) - start > chars:
        end = _find_window_end(text, start + chars // 2 + overlap, start + chars)
        yield start, end
        start = _find_window_end(text, max(start + 1, end - 2 * overlap), end - overlap)
    yield start, len(text)


def _find_window_end(text: str, earliest: int, latest: int) -> int:
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text, earliest, latest)]
        if ends:
            return ends[-1]
    return latest


def _run_all_engines(engines: Sequence[Engine], texts: Sequence[str]) -> Iterator[EngineOutput]:
    columns = [read_each(engine.read, texts) for engine in engines]
    return map(merge_outputs, zip(*columns, strict=True)) if columns else (EngineOutput() for _ in texts)


def read_each(read: Callable[[Sequence[str]], list[EngineOutput]], texts: Sequence[str]) -> list[EngineOutput]:
    """Return one output per text; if a batch fails, read each text by itself, so that only bad texts fail."""
    if not texts:
        return []
    try:
        outputs = read(texts)
        if len(outputs) == len(texts):
            return [_validate_output(output, text) for output, text in zip(outputs, texts, strict=True)]
    except Exception:
        # one bad text must not fail its batch
        pass
    if len(texts) == 1:
        return [EngineOutput(failure=ENGINE_ERROR)]
    return [output for text in texts for output in read_each(read, [text])]


def _validate_output(output: EngineOutput, text: str) -> EngineOutput:
    spans = [(span.start, span.end, span.score) for span in output.spans]
    tokens = [(token.start, token.end, token.probability) for token in output.non_entity_scores]
    if not all(0 <= start < end <= len(text) for start, end, _ in spans + tokens):
        return EngineOutput(failure=MISALIGNED)
    # a comparison with NaN is always false and would let the token pass
    if not all(math.isfinite(x) for _, _, x in spans + tokens):
        return EngineOutput(failure=ENGINE_ERROR)
    if _BLANK_LINE.search(text) is None:
        return output
    return replace(output, spans=tuple(part for span in output.spans for part in _cut_at_blank_lines(text, span)))


def _cut_at_blank_lines(text: str, span: Span) -> Iterator[Span]:
    """Cut the span of a model at blank lines: nobody's name goes on in the next paragraph."""
    # listed terms and forms may go on after a blank line
    is_form = span.detector in (LIST_DETECTOR, PATTERN_DETECTOR)
    start = span.start
    for gap in () if is_form else _BLANK_LINE.finditer(text, span.start, span.end):
        # a comma before the blank line ends a greeting
        if visible := text[start : gap.start()].rstrip(" \t\r,"):
            yield span._replace(start=start, end=start + len(visible))
        start = gap.end()
    if start < span.end:
        yield span._replace(start=start)
