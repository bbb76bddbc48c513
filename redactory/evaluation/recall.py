"""Measure how often detection misses a secret, with exact bounds, and which labelled secrets a run left.

"γ belongs to the slot": a recall of 0.9 over all secrets can hide a kind that is always missed, so misses are also
counted by stratum (``docs/guarantees.md``, "Amplification by redaction").
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from redactory.evaluation.labelled import TEMPLATE_KEY
from redactory.foundation.errors import CheckFailed
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.progress import Progress, ignore_progress
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import PRIVATE, mask_intervals, merge_intervals
from redactory.redaction.shards import read_column, read_values

RoutedText = tuple[str, str]
TextRouter = Callable[[Sequence[str]], Sequence[RoutedText]]
"""F: maps texts of examples to (split or "quarantined", redacted text) of each."""

_CHUNK_TEXTS = 1024
_LETTERS = re.compile(r"[^\W\d_]+")


def route_masked_variants(
    route_texts: TextRouter, rows: Sequence[tuple[str, Sequence[tuple[int, int]]]], progress: Progress = ignore_progress
) -> Iterator[tuple[RoutedText, list[RoutedText]]]:
    """Yield F of each text, and F of it with each single secret (start, end) masked."""
    done, total = 0, sum(len(places) for _, places in rows)
    for start in range(0, len(rows), _CHUNK_TEXTS):
        chunk = rows[start : start + _CHUNK_TEXTS]
        masked = [mask_intervals(text, [place]) for text, places in chunk for place in places]
        whole, without = route_texts([text for text, _ in chunk]), iter(route_texts(masked))
        done += len(masked)
        progress("recall", done, total, "secrets")
        for (side, text), (_, places) in zip(whole, chunk, strict=True):
            yield (side, text), list(islice(without, len(places)))


def measure_misses(
    route_texts: TextRouter,
    texts: Sequence[str],
    spans: Sequence[Sequence[Mapping[str, Any]]],
    confidence: float = 0.95,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Count γ and δ₂ misses over every labelled secret of the examples ``texts``, in total, by label and stratum.

    ``spans[i]`` are the secrets of ``texts[i]``, {start, end, label, template_id?}. With s the text and s' the text in
    which that one secret is ``<MASK>``: a **γ miss** is F(s) ≠ F(s'), a **δ₂ miss** a different split of the two, a
    quarantined example counting as private (CRT, Theorem 8.3, as corrected in ``docs/guarantees.md``). Each bound holds
    at ``confidence``, both at 2·confidence - 1, for secrets drawn like these and not used to tune a policy. Returns {n,
    confidence, joint_confidence, gamma, delta_2, labels, highest_gamma: {label, upper}, strata: {casing, label,
    template: {stratum: {n, gamma, delta_2}}}, highest_gamma_of_strata}, where gamma and delta_2 are {misses, rate,
    upper}. Guarantees take δ₂ from here or from a sample of the run: ``MissRates.from_measurement`` in
    ``training/guarantee/spec.py``.
    """
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter, {("", ""): Counter()})
    labelled = [row for row in zip(texts, spans, strict=True) if row[1]]
    places = [(text, [(int(s["start"]), int(s["end"])) for s in secret_spans]) for text, secret_spans in labelled]
    routed = route_masked_variants(route_texts, places, progress)
    for (text, secret_spans), (whole, variants) in zip(labelled, routed, strict=True):
        for span, masked in zip(secret_spans, variants, strict=True):
            secret = text[int(span["start"]) : int(span["end"])]
            splits = {PRIVATE if split == "quarantined" else split for split, _ in (whole, masked)}
            strata = [("", ""), ("casing", classify_casing(secret)), ("label", str(span["label"]))]
            if span.get(TEMPLATE_KEY) is not None:
                strata.append(("template", str(span[TEMPLATE_KEY])))
            for stratum in strata:
                counts[stratum]["n"] += 1
                counts[stratum]["gamma"] += whole != tuple(masked)
                counts[stratum]["delta_2"] += len(splits) > 1
    strata_metrics: dict[str, dict[str, Any]] = {}
    for (stratification, name), count in sorted(counts.items()):
        strata_metrics.setdefault(stratification, {})[name] = {"n": count["n"]} | {
            rate: {
                "misses": count[rate],
                "rate": count[rate] / count["n"] if count["n"] else None,
                "upper": clopper_pearson_upper(count[rate], count["n"], confidence),
            }
            for rate in ("gamma", "delta_2")
        }
    overall = strata_metrics.pop("")[""]
    highest = [
        {"stratification": stratification, "stratum": name, "n": shares["n"], **shares["gamma"]}
        for stratification, secret_spans in strata_metrics.items()
        for name, shares in secret_spans.items()
    ]
    return {
        **overall,
        **summarize_misses_by_label(strata_metrics.get("label", {}), confidence),
        "strata": strata_metrics,
        "highest_gamma_of_strata": max(highest, key=itemgetter("upper", "rate", "n"), default=None),
    }


def summarize_misses_by_label(labels: Mapping[str, Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """The metrics of each label, and of all labels together."""
    worst = max(labels, key=lambda label: labels[label]["gamma"]["upper"], default=None)
    return {
        "confidence": confidence,
        "joint_confidence": max(0.0, 2 * confidence - 1),
        "labels": labels,
        "highest_gamma": worst and {"label": worst, "upper": labels[worst]["gamma"]["upper"]},
    }


def classify_casing(secret: str) -> str:
    """Classify a secret: digits (it contains one), lower, upper, title, mixed, or uncased without cased letters.

    In title case every word begins with a capital, and none of several letters is all capitals.
    """
    if any(letter.isdigit() for letter in secret):
        return "digits"
    if secret.islower():
        return "lower"
    if secret.isupper():
        return "upper"
    words = ["".join(_LETTERS.findall(word)) for word in secret.split()]
    cased = [word for word in words if word.lower() != word.upper()]
    if not cased:
        return "uncased"
    title = all(word[0].isupper() and not (len(word) > 1 and word.isupper()) for word in cased)
    return "title" if title else "mixed"


# The labelled secrets that remain in a finished run's shards.
#
# The vault's examples reassemble a document, so a secret's position in the document is a position in
# one or several examples; the released id gives the shard, the span ledger the strict policy's masks.


SECRET_COUNTS = ("secrets", "left_public", "left_private", "withheld")


def count_unmasked_secrets(run: RunFolder, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the labelled secrets of ``rows`` ({id, text, spans}) that a finished run did not mask.

    A secret is ``left_public`` if a public example contains any character of it, ``left_private`` if the strict policy
    does not mask all of it in the private examples, ``withheld`` if no released example contains any of it. A duplicate
    counts where its first copy is. Returns {documents, secrets, left_public, left_private, withheld, labels: {label:
    the same}}. ``CheckFailed`` if the vault does not match a row's text.
    """
    labelled = {str(row["id"]): row for row in rows}
    examples: dict[str, list[tuple[int, int, int]]] = {}
    vault = read_values(run.vault, "doc_id", "example_id", "prefix", "text", "suffix")
    for doc_id, group in groupby(vault, key=lambda entry: entry[0]):
        if doc_id in labelled:
            examples[doc_id] = locate_examples(doc_id, labelled[doc_id]["text"], (entry[1:] for entry in group))
    routing, labels = _load_routing(run), defaultdict[str, Counter[str]](Counter)
    for doc_id, row in labelled.items():
        for span in row["spans"]:
            standing, met = set(), False
            for example_id, start, end in examples.get(doc_id, ()):
                low, high = max(start, span["start"]) - start, min(end, span["end"]) - start
                if low < high and example_id in routing:
                    met, (split, marks) = True, routing[example_id]
                    masked = merge_intervals(row["text"][start:end], marks)
                    if not any(first <= low and high <= last for first, last in masked):
                        standing.add(split)
            labels[str(span["label"])].update(
                secrets=1, left_public="public" in standing, left_private="private" in standing, withheld=not met
            )
    return summarize_secret_counts(len(labelled), labels)


def summarize_secret_counts(documents: int, labels: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """Return the counts of each label, and of all labels together."""
    total = sum(labels.values(), Counter[str]())
    return {
        "documents": documents,
        **{name: total[name] for name in SECRET_COUNTS},
        "labels": {label: {name: labels[label][name] for name in SECRET_COUNTS} for label in sorted(labels)},
    }


def locate_examples(
    doc_id: str, document: str, vault_rows: Iterable[tuple[int, str, str, str]]
) -> list[tuple[int, int, int]]:
    """Return (example_id, start, end) in a document of the text of each example (example_id, prefix, text, suffix).

    Examples follow each other without a gap, except if a quarantined one is missing from the vault: then the ids jump,
    and the next text is searched for.
    """
    examples = []
    position, expected_id = 0, None
    for example_id, prefix, text, suffix in vault_rows:
        piece = prefix + text + suffix
        offset = position if example_id == expected_id else document.find(piece, position)
        if offset < 0 or not document.startswith(piece, offset):
            raise CheckFailed(f"document {doc_id}: the examples in the vault do not add up to its text")
        start = offset + len(prefix)
        examples.append((example_id, start, start + len(text)))
        position, expected_id = offset + len(piece), example_id + 1
    return examples


def _load_routing(run: RunFolder) -> dict[int, tuple[str, list[tuple[int, int]]]]:
    shard_of = dict.fromkeys(read_column(run.public, "example_id"), "public")
    shard_of.update((released_id, "private") for released_id in read_column(run.private, "example_id"))
    rows = list(read_values(run.examples, "example_id", "released_id", "dup_of"))
    splits = {i: shard_of[released_id] for i, released_id, dup_of in rows if dup_of is None and released_id in shard_of}
    splits.update((i, splits[dup_of]) for i, _, dup_of in rows if dup_of in splits)
    routing: dict[int, tuple[str, list[tuple[int, int]]]] = {i: (split, []) for i, split in splits.items()}
    for example_id, start, end, policy in read_values(run.spans, "example_id", "start", "end", "policy"):
        if policy == "strict" and example_id in routing:
            routing[example_id][1].append((start, end))
    return routing
