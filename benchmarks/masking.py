"""Measure what the default policy masks in support tickets and in harmless sentences, and what it leaves.

Texts are those of ``tickets.py``. A masked run is a maximal run of masked text, white space between masks included.
The policy's spans are those that it masks; an engine of ``--against`` masks everything it finds. Prints JSON.

    OMP_NUM_THREADS=1 python benchmarks/masking.py --against presidio --show 40
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tickets import generate_tickets, list_harmless_texts

from redactory import Policy
from redactory.detectors.baselines import ReferenceDetector, resolve_reference_engines
from redactory.detectors.settings import get_kind
from redactory.evaluation.statistics import estimate_proportion
from redactory.redaction.mask import merge_intervals
from redactory.redaction.replacements import ReplacedSpan, plan_edits, unify_labels

Spans = list[tuple[int, int, str, float]]
"""(start, end, label, score) of the masked spans of a text, or of the labelled ones, whose score is 1."""

GROUPS = (
    ("PHONE_NUMBER",),
    ("EMAIL_ADDRESS",),
    ("ACCOUNT", "CREDIT_CARD", "IBAN_CODE", "CRYPTO", "US_BANK_NUMBER"),
    (
        *("IDENTIFIER", "US_SSN", "US_PASSPORT", "US_DRIVER_LICENSE", "UUID"),
        *("MEDICAL_LICENSE", "UK_NHS", "US_ITIN", "MAC_ADDRESS"),
    ),
    ("STREET_ADDRESS", "POSTAL_CODE", "LOCATION"),
)
"""Kinds that count as the same label; every other kind (``get_kind``) counts only as itself."""
_GROUP_OF_KIND = {kind: group[0] for group in GROUPS for kind in group}


def get_group(label: str) -> str:
    """Return the first kind of the label's group, or its kind."""
    return _GROUP_OF_KIND.get(get_kind(label), get_kind(label))


def detect_with_policy(policy: Policy, texts: Sequence[str]) -> Iterator[Spans]:
    """Yield the spans that the strict policy masks in each text."""
    for examples in policy.route_many(texts):
        if any(example.failure for example in examples):
            raise ValueError("a text cannot be processed")
        yield [
            (s.start, s.end, s.label, s.score) for example in examples for s in example.spans if s.policy == "strict"
        ]


def detect_with_engine(detector: ReferenceDetector, texts: Sequence[str]) -> Iterator[Spans]:
    """Yield everything that one engine finds in each text."""
    for detection in detector.detect(texts):
        yield [(span.start, span.end, span.label, span.score) for span in detection.strict]


class Row:
    """A labelled row with its masked spans."""

    def __init__(self, text: str, labelled: Spans, spans: Spans) -> None:
        [self.spans] = unify_labels([text], [[ReplacedSpan(*span) for span in spans]])
        self.text, self.labelled = text, labelled
        self.runs = merge_intervals(text, [(start, end) for start, end, *_ in spans])
        self._masked = {place for start, end in self.runs for place in range(start, end)}

    def list_harmless_masks(self) -> Iterator[tuple[int, int]]:
        """Yield the masked runs that overlap no labelled span."""
        for start, end in self.runs:
            if not any(start < last and first < end for first, last, *_ in self.labelled):
                yield start, end

    def find_label(self, start: int, end: int) -> str | None:
        """Return the label that ``redact`` gives: by ``unify_labels``, then ``plan_edits``."""
        here = [span for span in self.spans if span.start < end and start < span.end]
        kinds = Counter({edit.kind: edit.end - edit.start for edit in plan_edits(self.text, here, lambda _, new: new)})
        return kinds.most_common(1)[0][0] if kinds else None

    def measure_cover(self, start: int, end: int) -> str:
        """Return ``covered``, ``partial`` or ``open``, by the letters and digits that are masked."""
        signs = [place for place in range(start, end) if self.text[place].isalnum()]
        covered = sum(place in self._masked for place in signs)
        return "covered" if covered == len(signs) else "partial" if covered else "open"

    def count_characters(self) -> tuple[int, int]:
        """Return the numbers of masked letters and digits, and of the labelled ones among them."""
        labelled = {place for start, end, *_ in self.labelled for place in range(start, end)}
        masked = {place for place in self._masked if self.text[place].isalnum()}
        return len(masked), len(masked & labelled)


def measure_tickets(rows: Sequence[Row], show: int) -> dict[str, Any]:
    """Count harmless masks, wrong labels and open values; ``show`` examples of each, spread over the rows."""
    harmless, wrong, left = list[str](), list[str](), list[str]()
    rows_with_harmless, labels_of_harmless, confusions = 0, Counter[str](), Counter[str]()
    by_label: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        masks = list(row.list_harmless_masks())
        rows_with_harmless += bool(masks)
        for start, end in masks:
            label = row.find_label(start, end)
            labels_of_harmless[str(label)] += 1
            harmless.append(f"{label}: {_quote(row.text, start, end)}")
        for start, end, label, _ in row.labelled:
            cover, found = row.measure_cover(start, end), row.find_label(start, end)
            is_wrong = found is not None and get_group(found) != get_group(label)
            by_label[label].update({"n": 1, cover: 1, "wrong_label": is_wrong})
            if is_wrong:
                confusions[f"{label} as {found}"] += 1
                wrong.append(f"{label} as {found}: {_quote(row.text, start, end)}")
            if cover != "covered":
                left.append(f"{label}, {cover}: {_quote(row.text, start, end)}")
    masked, both = (sum(column) for column in zip(*(row.count_characters() for row in rows), strict=True))
    total = sum(by_label.values(), Counter[str]())
    return {
        "rows": len(rows),
        "values": total["n"],
        "masked_runs": sum(len(row.runs) for row in rows),
        "harmless_masked_runs": len(harmless),
        "rows_with_harmless_masked": rows_with_harmless,
        "harmless_by_label": dict(labels_of_harmless.most_common()),
        "wrong_labels": total["wrong_label"],
        "confusions": dict(confusions.most_common()),
        "open": {"whole": total["open"], "partial": total["partial"]},
        "covered": estimate_proportion(total["covered"], total["n"]),
        "labelled_share_of_masked_characters": both / masked if masked else None,
        "by_label": {
            label: {name: counts[name] for name in ("n", "covered", "partial", "open", "wrong_label")}
            for label, counts in sorted(by_label.items())
        },
        "examples": {"harmless": _thin(harmless, show), "wrong_labels": _thin(wrong, show), "open": _thin(left, show)},
    }


def measure_harmless(texts: Sequence[tuple[str, str]], found: Iterable[Spans], show: int) -> dict[str, Any]:
    """Count the harmless texts that are changed, by language."""
    by_language: dict[str, Counter[str]] = defaultdict(Counter)
    changed = list[str]()
    for (language, text), spans in zip(texts, found, strict=True):
        by_language[language].update(n=1, changed=bool(spans))
        changed += [f"{label}: {_quote(text, start, end)}" for start, end, label, _ in spans[:1]]
    total = sum(by_language.values(), Counter[str]())
    return {
        "n": total["n"],
        "changed": total["changed"],
        "by_language": {name: {"n": c["n"], "changed": c["changed"]} for name, c in by_language.items()},
        "examples": _thin(changed, show),
    }


def _quote(text: str, start: int, end: int) -> str:
    quoted = f"{text[max(0, start - 25) : start]}[[{text[start:end]}]]{text[end : end + 20]}"
    return " ".join(quoted.split())


def _thin(examples: Sequence[str], limit: int) -> list[str]:
    return (
        [examples[number * len(examples) // limit] for number in range(limit)] if len(examples) > limit else [*examples]
    )


def main() -> None:
    """Measure the default policy and other engines; one JSON object on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--config", help="a configuration instead of the default one")
    parser.add_argument("--against", default="", help="other engines, with commas, such as presidio")
    parser.add_argument("--show", type=int, default=0, help="examples of each kind of mistake to print")
    arguments = parser.parse_args()
    tickets = list(generate_tickets(arguments.rows, arguments.seed))
    labelled = [[(span["start"], span["end"], span["label"], 1.0) for span in row["spans"]] for row in tickets]
    texts, harmless = [row["text"] for row in tickets], list_harmless_texts()
    policy = Policy(arguments.config)
    engines: dict[str, Callable[[Sequence[str]], Iterator[Spans]]] = {
        "redactory": lambda batch: detect_with_policy(policy, batch)
    }
    for engine in resolve_reference_engines(filter(None, arguments.against.split(",")), "en"):
        detector = ReferenceDetector(engine)
        engines[engine.name] = lambda batch, detector=detector: detect_with_engine(detector, batch)  # type: ignore[misc]
    results = {}
    for name, detect in engines.items():
        start = time.process_time()
        rows = [Row(*values) for values in zip(texts, labelled, detect(texts), strict=True)]
        seconds = time.process_time() - start
        results[name] = {
            "tickets": measure_tickets(rows, arguments.show),
            "harmless": measure_harmless(harmless, detect([text for _, text in harmless]), arguments.show),
            "tickets_per_second": len(texts) / seconds,
        }
    result = {
        "benchmark": "masking",
        "seed": arguments.seed,
        "policies": policy.hashes,
        "same_label": GROUPS,
        "engines": results,
    }
    print(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
