"""Choose the documents that a tagger learns most from, for people to label next.

Prefers documents with words that the engines are unsure of and that no chosen document has; every fourth is drawn at
random, because an engine can be sure and wrong. The choice can train a tagger, but it is not a sample: each row says
so, and every measurement refuses it (``evaluation/labelled.py``).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from redactory.evaluation.labelled import CHOSEN_KEY, read_labelled_rows, write_labelling_files
from redactory.evaluation.sample import LabelledSpan, select_prefilled_spans
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import make_private_folder
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.policy import Example, Policy
from redactory.pipelines.readers import Document, find_sources
from redactory.pipelines.readers.documents import RowCounts

CANDIDATES_PER_DOCUMENT = 20
"""Number of documents searched per chosen document."""
RANDOM_INTERVAL = 4
"""One in this many documents is drawn at random."""
_DOUBT_RANGE = 0.1, 0.9
"""Range of probabilities of a secret for which a word counts as uncertain."""
_DIGIT = re.compile(r"\d")
Doubts = Mapping[str, float]


def label_active(
    config: ConfigLike,
    out: str | Path,
    n: int = 50,
    *,
    labelled: Sequence[str | Path] = (),
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Choose ``n`` documents of the configured input to label; write them to the new folder ``out`` (0700).

    Draws ``CANDIDATES_PER_DOCUMENT`` times ``n`` distinct documents that no file of ``labelled`` holds, by a digest
    under ``seed``, and searches them; if no engine gives a confidence per word, the first ``n`` are chosen. ``spans``
    are prefilled from the strict policy. Returns counts and file paths; no text. ``InputError`` if nothing is left to
    label.
    """
    settings, folder = load_config(config), Path(out)
    if folder.exists():
        raise ConfigurationError(f"{folder} already exists: give another folder, or remove it")
    labelled_rows = [row for path in labelled for row in read_labelled_rows(Path(path), to_fit=True)]
    with report_start_and_end(progress, "read"):
        texts = _draw_candidates(
            settings, {row["text"].strip() for row in labelled_rows}, CANDIDATES_PER_DOCUMENT * n, seed
        )
    if not texts:
        raise InputError("the input has no document with text that is not already labelled")
    span_policy = Policy(settings)
    with report_start_and_end(progress, "load engines"):
        span_policy.load_engines()
    documents = list[tuple[str, list[Example]]]()
    for number, (text, examples) in enumerate(zip(texts, span_policy.route_many(texts), strict=True), 1):
        if all(example.failure is None for example in examples):
            documents.append((text, examples))
        progress("choose", number, len(texts), "documents")
    doubts = [_find_uncertain_words(text, examples) for text, examples in documents]
    chosen = select_most_uncertain(doubts, [len(text) for text, _ in documents], n)
    rows: list[dict[str, Any]] = []
    for number, (index, method) in enumerate(chosen, 1):
        text, examples = documents[index]
        rows.append({"id": f"{number:04}", CHOSEN_KEY: method, "text": text, "spans": _prefill_spans(examples)})
    if not rows:
        raise InputError("no document could be read completely by every engine: see redactory scan")
    strict = settings.detect.strict
    # offer the labels that were used before
    labels = {span["label"] for row in labelled_rows for span in row["spans"]} or {*strict.labels, *strict.extra_labels}
    labels |= {span["label"] for row in rows for span in row["spans"]}
    files = {name: folder / name for name in ("chosen.jsonl", "label-studio.json", "label-studio.xml")}
    make_private_folder(folder)
    write_labelling_files(rows, labels, f"policies {span_policy.hash[:12]}", *files.values())
    return {
        "folder": str(folder),
        "looked_at": len(texts),
        "labelled_before": len(labelled_rows),
        "chosen": dict(Counter(method for _, method in chosen)),
        "words": sum(len(row["text"].split()) for row in rows),
        "files": {name: str(path) for name, path in files.items()},
    }


def select_most_uncertain(doubts: Sequence[Doubts], sizes: Sequence[int], n: int) -> list[tuple[int, str]]:
    """Return the indices of at most ``n`` documents in order, each with its method (``doubt`` or ``random``).

    Greedy: each chosen document halves the doubt of its words. The doubt of a document is divided by the square root of
    its size, because long documents are more work.
    """
    word_counts, remaining, selection = Counter[str](), dict.fromkeys(range(len(doubts))), list[tuple[int, str]]()

    def compute_gain(index: int) -> float:
        doubt = sum(amount * 2.0 ** -word_counts[word] for word, amount in doubts[index].items())
        return doubt / math.sqrt(sizes[index])

    while remaining and len(selection) < n:
        best = max(remaining, key=compute_gain)
        by_doubt = len(selection) % RANDOM_INTERVAL < RANDOM_INTERVAL - 1 and compute_gain(best) > 0
        # the order of candidates is random
        index, method = (best, "doubt") if by_doubt else (next(iter(remaining)), "random")
        word_counts.update(doubts[index].keys())
        del remaining[index]
        selection.append((index, method))
    return selection


def _draw_candidates(settings: Config, excluded_texts: set[str], limit: int, seed: int) -> list[str]:
    """Return the ``limit`` distinct texts with the smallest digests: a random draw that ignores copies."""
    candidates, counts = dict[bytes, str](), RowCounts(settings.input)
    for source in find_sources(settings.input.path, settings.input.format):
        for row in counts.read_and_count(source):
            if isinstance(row, Document) and row.text.strip() not in excluded_texts:
                text = row.text.strip().encode()
                candidates[hashlib.blake2b(text, digest_size=16, key=str(seed).encode()).digest()] = row.text
                if len(candidates) >= 2 * limit:
                    candidates = dict(sorted(candidates.items())[:limit])
    counts.check_totals()
    return [text for _, text in sorted(candidates.items())[:limit]]


def _find_uncertain_words(text: str, examples: Sequence[Example]) -> Doubts:
    """Return the words that an engine is unsure about, without case and digits; doubt 1 is probability 1/2."""
    low, high = _DOUBT_RANGE
    word_doubts: dict[str, float] = {}
    for example in examples:
        for span in example.spans:
            if span.label == "UNSURE" and low <= span.score <= high:
                word = _DIGIT.sub("0", text[span.start : span.end].casefold())
                word_doubts[word] = max(word_doubts.get(word, 0.0), 1.0 - abs(2.0 * span.score - 1.0))
    return word_doubts


def _prefill_spans(examples: Sequence[Example]) -> list[dict[str, Any]]:
    strict = [span for example in examples for span in example.spans if span.policy == "strict"]
    ranked = sorted(strict, key=lambda span: -span.score)
    prefilled = select_prefilled_spans(LabelledSpan(span.start, span.end, span.label) for span in ranked)
    return [span._asdict() for span in prefilled]
