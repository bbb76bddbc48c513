"""Detect and mask personal data in texts in memory, with the results of a curation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, product, tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from redactory.detectors import (
    Detection,
    Detector,
    DetectSettings,
    Span,
    TextDetector,
    build_policy_records,
    compute_policy_hashes,
    describe_policy_changes,
    detector_masks_nothing,
    diff_records,
)
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, InputError, join_words
from redactory.foundation.processes import ENGINE_LOCK
from redactory.pipelines.curation.config import Config, ReleaseSettings, ReplacementName
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.loading import ConfigLike, load_config, load_text_config
from redactory.pipelines.curation.release_log import check_released
from redactory.pipelines.curation.segment import Segment, SegmentFunction, make_segmenter
from redactory.redaction import (
    PUBLIC,
    RoutingDecision,
    RunFolder,
    is_finished,
    merge_document_decisions,
    read_batches,
    read_manifest,
    route_example,
)
from redactory.redaction.known_values import add_known_values
from redactory.redaction.mask import Edit, apply_edits
from redactory.redaction.replacements import (
    ReplacedSpan,
    Replacer,
    collect_values,
    load_replacement,
    plan_edits,
    unify_labels,
)
from redactory.redaction.shards import build_shard_schema

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Split = Literal["public", "private", "quarantined"]
PolicyName = Literal["strict", "conservative"]
Replace = ReplacementName | Replacer
"""What replaces a span: a replacement's name, or a function of the label and the value."""
_BATCH_SIZE = 1_000
"""Number of texts whose examples go to the engines in one pass; all are in memory until it ends."""


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """One span that was found: code points [start, end) of the text, its label, its score in [0, 1].

    ``detector`` is the engine, list or rule that found it. ``policy`` is ``strict`` if the span is masked,
    ``conservative`` if it only makes its example private, and ``public`` if its label may be public: no effect.
    """

    start: int
    end: int
    label: str
    score: float
    detector: str
    policy: PolicyName | Literal["public"]


@dataclass(frozen=True, slots=True)
class Example:
    """One example of a text, at code points [start, end), with its split and its masked text.

    ``split`` is public, private or quarantined, ``redacted`` the text with its masks. A private example has
    ``reasons``, as ``detector:LABEL``. ``spans`` are those that the policies selected; ``public`` are spans whose label
    may be public, which change nothing. An example that an engine could not process is quarantined: ``failure`` is the
    reason code, and ``redacted`` is empty.
    """

    start: int
    end: int
    split: Split
    redacted: str
    reasons: tuple[str, ...] = ()
    failure: str | None = None
    spans: tuple[FoundSpan, ...] = ()
    public: tuple[FoundSpan, ...] = ()


class Policy:
    """Apply both policies of a configuration to texts; immutable, identified by its hash.

    A text is cut into examples as :func:`redactory.curate` cuts a document (``segment.mode``), and the split is decided
    for each example, or for its document (``release.unit``). The results of ``route`` equal those of a curation with
    this configuration; ``scan`` and ``redact`` also read speakers' labels, which a curation keeps in the vault.

    The engines are loaded on first use, which takes seconds: keep the object.

    Threads may share one policy, and several policies: engines read for one thread at a time. A policy can be copied
    and pickled for spawned processes, joblib, Spark or Ray: the copy contains the configuration, and each process loads
    the engines once, from its own files. Compare ``hash`` if those files may differ.
    """

    def __init__(self, config: ConfigLike | None = None, detector: TextDetector | None = None) -> None:
        """Create a policy from a YAML file, a mapping or the default; ``detector`` replaces the configured engines.

        ``ConfigurationError`` for a mistake in the configuration, which needs no ``input``.
        """
        self._config = config if isinstance(config, Config) else load_text_config(config)
        self._custom_detector = self._detector = detector
        self._name = secrets.token_hex(16)
        segment, is_multiple = self._config.segment, self._config.input.has_multiple_texts
        # a curation keeps a speaker's label in the vault, but in a copy it is text like any other
        whole = segment.model_copy(update={"mode": "line"}) if segment.mode == "turn" else segment
        self._segmenters = {
            (is_copy, joined): make_segmenter(whole if is_copy else segment, joined and is_multiple)
            for is_copy, joined in product((False, True), repeat=2)
        }

    @classmethod
    def load(cls, config: ConfigLike | None = None, *, detector: TextDetector | None = None) -> Policy:
        """Create a policy, as the constructor does."""
        return cls(config, detector)

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Return the hash of each policy by name, as in the result of ``curate`` and in the manifest.

        They cover settings, lists, models and versions. Only files that the configuration names are read.
        """
        return compute_policy_hashes(self._config.detect)

    def masks_nothing(self) -> bool:
        """Return whether the policies mask nothing, not even obvious personal data in a few built-in texts."""
        return detector_masks_nothing(self._config.detect, self._load_detector)

    @property
    def hash(self) -> str:
        """One hash of both policies and of the segmentation: equal hashes give equal results."""
        segment = self._config.segment.model_dump(mode="json")
        return json_sha256({"policies": self.hashes, "segment": segment, **self._config.select_routing_settings()})

    def load_engines(self) -> None:
        """Load the engines now, which takes seconds; otherwise the first text loads them."""
        self._load_detector()

    def scan(self, text: str) -> list[FoundSpan]:
        """Return the spans in ``text``, in text order; ``InputError`` if a part of it cannot be processed."""
        return next(self.scan_many([text]))

    def redact(self, text: str, replace: Replace = "mask") -> str:
        """Return ``text`` with every strict span replaced; ``InputError`` if a part cannot be processed.

        ``replace`` is as in ``redactory redact``, each text being one document, or a function ``(label, value) -> str``
        of a span's label and text. ``ConfigurationError`` if it is unknown, or needs a permanent ``REDACTORY_KEY`` and
        none is set. Training reads only ``mask``.
        """
        return next(self.redact_many([text], replace))

    def route(self, text: str) -> list[Example]:
        """Return the examples of ``text``, with split, masked text and spans; those not processed are quarantined."""
        return next(self.route_many([text]))

    def decide_split(self, text: str) -> Split:
        """Return ``quarantined`` if any example of ``text`` is, else ``private`` if any is, else ``public``."""
        splits = {point.split for point in self.route(text)}
        order: tuple[Split, ...] = ("quarantined", "private")
        return next((split for split in order if split in splits), "public")

    def scan_many(self, texts: Iterable[str]) -> Iterator[list[FoundSpan]]:
        """Yield :meth:`scan` of each text, in order and on demand; the engines process many at once."""
        for _, examples in self._iterate_processed_texts(texts):
            yield sorted(
                (span for example in examples for span in example.spans), key=lambda h: (h.start, h.end, h.label)
            )

    def redact_many(self, texts: Iterable[str], replace: Replace = "mask") -> Iterator[str]:
        """Yield :meth:`redact` of each text, in order and on demand; the engines process many at once."""
        replace_spans = self.make_span_replacer(replace)
        return (replace_spans(text, examples) for text, examples in self._iterate_processed_texts(texts))

    def make_span_replacer(self, replace: Replace = "mask") -> Callable[[str, Sequence[Example]], str]:
        """Return a function of a text and its processed examples that replaces their strict spans."""
        if replace == "mask":
            return _mask_examples
        if callable(replace):
            return partial(_replace_examples, lambda *_: replace, has_titles=False)
        return partial(_replace_examples, load_replacement(replace, self._config.detect.language).create_replacer)

    def route_many(self, texts: Iterable[str], *, joined: bool = False) -> Iterator[list[Example]]:
        """Yield :meth:`route` of each text, in order and on demand; the engines process many at once.

        ``joined``: each is a document as a curation joins its texts (``readers.documents.join_texts``).
        """
        return self._process_many(texts, self._segmenters[False, joined])

    def read_many(self, texts: Iterable[str], *, joined: bool = False) -> Iterator[list[Example]]:
        """Yield the examples of each text for a copy: as :meth:`route_many`, but speakers' labels are read too."""
        return self._process_many(texts, self._segmenters[True, joined])

    def _process_many(self, texts: Iterable[str], segment_text: SegmentFunction) -> Iterator[list[Example]]:
        remaining, release = _iterate_checked_texts(texts), self._config.release
        while batch := list(islice(remaining, _BATCH_SIZE)):
            cut = [segment_text(text) for text in batch]
            detections = self._load_detector().detect([segment.text for pieces in cut for segment in pieces])
            for pieces in cut:
                segments = [segment.text for segment in pieces]
                detected = list(islice(detections, len(pieces)))
                if release.known_values:
                    detected = add_known_values(segments, detected, language=self._config.detect.language)
                decisions = [route_example(text, one) for text, one in zip(segments, detected, strict=True)]
                if release.unit == "document":
                    decisions = merge_document_decisions(decisions)
                yield list(_build_examples(pieces, detected, decisions))

    def _load_detector(self) -> TextDetector:
        with ENGINE_LOCK:
            if self._detector is None:
                self._detector = Detector(self._config.detect)
            return self._detector

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_policy, (self._name, type(self), self._config, self._custom_detector)

    def _iterate_processed_texts(self, texts: Iterable[str]) -> Iterator[tuple[str, list[Example]]]:
        """Yield each text with its examples; ``InputError`` at the first text with a quarantined example."""
        originals, inputs = tee(_iterate_checked_texts(texts))
        for number, (text, examples) in enumerate(zip(originals, self.read_many(inputs), strict=False), 1):
            failures = sorted({example.failure for example in examples if example.failure is not None})
            if failures:
                raise InputError(
                    f"text {number} cannot be processed completely ({', '.join(failures)}), so its content "
                    "is unknown; route() shows which of its examples are quarantined"
                )
            yield text, examples


def _mask_examples(text: str, examples: Sequence[Example]) -> str:
    return apply_edits(text, [Edit(example.start, example.end, example.redacted) for example in examples])


def _replace_examples(
    create_replacer: Callable[..., Replacer | None], text: str, examples: Sequence[Example], *, has_titles: bool = True
) -> str:
    """Replace the strict spans of one document; ``create_replacer`` is of a :class:`Replacement`."""
    strict = [span for example in examples for span in example.spans if span.policy == "strict"]
    spans = unify_labels([text], [[ReplacedSpan(span.start, span.end, span.label, span.score) for span in strict]])
    # named by its text: equal documents get equal results
    replacer = create_replacer(text, [text], collect_values([text], spans))
    return apply_edits(text, plan_edits(text, spans[0], replacer, has_titles))


_COPIES: dict[str, Policy] = {}
_MAX_COPIES = 4
"""Maximum number of unpickled policies kept in a process: a pool sends a copy with each task."""


def _restore_policy(name: str, policy_class: type[Policy], config: Config, detector: TextDetector | None) -> Policy:
    """Return this process's copy of the policy ``name``; the first call creates it."""
    with ENGINE_LOCK:
        policy = _COPIES.pop(name, None) or policy_class(config, detector)
        policy._name = name
        _COPIES[name] = policy  # drop the least recently used first
        for oldest in list(_COPIES)[:-_MAX_COPIES]:
            del _COPIES[oldest]
        return policy


def _iterate_checked_texts(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise InputError("expected a list of texts; for one text use the method without _many")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number}: expected a string, got {type(text).__name__}")
        yield text


def _build_examples(
    segments: list[Segment], detections: list[Detection], decisions: list[RoutingDecision]
) -> Iterator[Example]:
    position = 0
    for segment, detection, decision in zip(segments, detections, decisions, strict=True):
        start = position + len(segment.prefix)
        end = start + len(segment.text)
        position = end + len(segment.suffix)
        if decision.failure is not None:
            yield Example(start, end, "quarantined", "", failure=decision.failure)
            continue
        names: dict[Span, PolicyName] = dict.fromkeys(detection.conservative, "conservative")
        names |= dict.fromkeys(detection.strict, "strict")
        spans = tuple(_move_span(span, start, names[span]) for span in sorted(names))
        public = tuple(_move_span(span, start, "public") for span in detection.public)
        split: Split = "public" if decision.split == PUBLIC else "private"
        yield Example(start, end, split, decision.text, decision.reasons, spans=spans, public=public)


def _move_span(span: Span, offset: int, policy: PolicyName | Literal["public"]) -> FoundSpan:
    return FoundSpan(span.start + offset, span.end + offset, *span[2:], policy)


# Apply the policies of a finished run, if they are unchanged.


def make_run_router(manifest: dict[str, Any]) -> Callable[[Sequence[str]], list[tuple[str, str]]]:
    """Return a function that maps texts of examples to (split, masked text) as a finished run does.

    Known values are masked only in the text in which they were found, as if each example were a document.
    ``ConfigurationError`` if the policies have changed since: their misses would say nothing about the run.
    """
    settings = DetectSettings.from_manifest(manifest["configuration"]["detect"])
    if change := describe_policy_changes(settings, manifest["policies"]):
        raise ConfigurationError(f"{change}; restore it, or curate again")
    detector = Detector(settings)
    release_settings = ReleaseSettings.from_manifest(manifest["configuration"].get("release", {}))

    def route_texts(texts: Sequence[str]) -> list[tuple[str, str]]:
        decisions = []
        for text, detection in zip(texts, detector.detect(texts), strict=True):
            if release_settings.known_values:
                [detection] = add_known_values([text], [detection], language=settings.language)
            decisions.append(route_example(text, detection))
        return [("quarantined" if f.failure else f.split, f.text) for f in decisions]

    return route_texts


# Differences between the policies of two configurations or finished runs.


def policy_diff(old: ConfigLike, new: ConfigLike) -> dict[str, list[dict[str, Any]]]:
    """List the differing settings of each policy: [{key, old, new}], null for a missing key; empty for equal hashes.

    ``old`` and ``new`` are configurations or folders of finished runs.
    """
    before, after = _load_policy_records(old), _load_policy_records(new)
    return {name: diff_records(before[name], after[name]) for name in before}


def _load_policy_records(config: ConfigLike) -> dict[str, Any]:
    if isinstance(config, str | Path) and Path(config).is_dir() and is_finished(RunFolder(Path(config))):
        policies: dict[str, Any] = read_manifest(RunFolder(Path(config)))["policies"]
        return policies
    return build_policy_records(load_config(config).detect)


# Pandas frames: read a split of a finished run, and mask the texts of a frame.


SPLITS = ("public", "private")


def read(run: str | Path, split: Literal["public", "private"] = "public") -> DataFrame:
    """Return one split of a finished run as a frame, a row per example: ``example_id``, ``text`` and its other columns.

    The private split of an encrypted run needs the key. ``RunStateError`` if the run is unfinished, held or rejected.
    """
    if split not in SPLITS:
        raise ConfigurationError(f"split: expected one of {join_words(SPLITS)}")
    folder = RunFolder(Path(run))
    schema = build_shard_schema(read_manifest(folder), split)
    check_released(folder)

    def read_frame() -> DataFrame:
        batches = read_batches(getattr(folder, split), schema.names)
        frame: DataFrame = pa.Table.from_batches(batches, schema).to_pandas()
        return frame

    return run_with_sealed_traceback(folder.state, read_frame)


def redact_frame(
    frame: DataFrame,
    columns: Hashable | Iterable[Hashable] = "text",
    config: ConfigLike | Policy | None = None,
    replace: Replace = "mask",
) -> DataFrame:
    """Return a copy of ``frame`` in which every span of the strict policy in ``columns`` is replaced.

    ``columns`` is one name, of any type, or several. Index, other columns and column types stay; a categorical column
    keeps only the categories that occur. ``config`` is a configuration (default: the default one) or a
    :class:`redactory.Policy`, which loads its engines once. Each distinct text is processed once; a missing value stays
    missing. ``replace`` is as in :meth:`Policy.redact`. ``ConfigurationError`` for a column that is missing or occurs
    twice; ``InputError`` for a value that is not text, and for a text that cannot be processed, because it may contain
    personal data.
    """
    if not hasattr(frame, "isetitem"):
        fix = "; pass series.to_frame('text')" if hasattr(frame, "to_frame") else ""
        raise InputError(f"expected a pandas DataFrame, got {type(frame).__name__}{fix}")
    column_names: list[Any] = frame.columns.tolist()
    names: list[Any] = [columns]
    # a tuple is one name if a column has this name
    if isinstance(columns, Iterable) and not isinstance(columns, str | bytes) and columns not in column_names:
        names = list(columns)
    if not names:
        raise ConfigurationError("columns: name at least one column")
    for name in names:
        if column_names.count(name) != 1:
            hint = f"valid columns: {join_words(map(repr, column_names))}" if column_names else "the frame has none"
            raise ConfigurationError(f"columns: {name!r} must occur exactly once in the frame; {hint}")
    policy = config if isinstance(config, Policy) else Policy.load(config)
    return run_with_hidden_error_text(
        "a frame was redacted", _redact_columns, frame, [column_names.index(name) for name in names], policy, replace
    )


def _redact_columns(frame: DataFrame, indices: Sequence[int], policy: Policy, replace: Replace) -> DataFrame:
    texts: dict[str, str] = {}
    for index in indices:
        column = frame.iloc[:, index]
        for row, (value, missing) in enumerate(zip(column, column.isna(), strict=True)):
            if not missing and not isinstance(value, str):
                raise InputError(f"column {frame.columns.tolist()[index]!r}, row {row}: expected text")
            if not missing:
                texts[value] = value
    texts = dict(zip(texts, policy.redact_many(texts, replace), strict=True))
    result = frame.copy()
    for index in indices:
        values: Any = _replace_column_texts(frame.iloc[:, index], texts)
        result.isetitem(index, values)
    return result


def _replace_column_texts(column: Series, texts: Mapping[str, str]) -> Series:
    """Map the texts of ``column`` through ``texts``; the result has the same type."""
    from pandas import CategoricalDtype, Series

    values = [texts[value] if isinstance(value, str) else value for value in column]
    if not any(isinstance(value, str) for value in values):
        return column
    kind = column.dtype
    if isinstance(kind, CategoricalDtype):
        # an unused category would stay unmasked
        occurring = {*values}
        categories = [masked for category in kind.categories if (masked := texts.get(category)) in occurring]
        kind = CategoricalDtype(list(dict.fromkeys(categories)), kind.ordered)
    return Series(values, column.index, kind)
