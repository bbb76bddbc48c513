"""Sample a run's examples by stratum for people to label, and compute γ and δ₂ from the labels.

Every copy of a text counts as an example, because the bound is on the share of the *corpus's* secrets that is missed
(``redactory/evaluation/sample_bounds.py``). But a text is labelled once, however many of its copies are drawn.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from redactory.detectors import Span
from redactory.detectors.settings import get_kind
from redactory.evaluation import recall
from redactory.evaluation import sample_bounds as bounds
from redactory.evaluation.labelled import read_labelled_rows
from redactory.evaluation.sample_bounds import MASKED, PUBLIC, STRATA, SUSPECTED, Stratum, UnmeasuredExamples
from redactory.evaluation.statistics import count_secrets_needed
from redactory.foundation.bounds import round_up
from redactory.foundation.errors import CheckFailed, InputError, pluralize
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import PRIVATE, mask_intervals, merge_intervals
from redactory.redaction.shards import EXAMPLES, read_batches

_DEFAULT_GOAL = 1e-3
_MAX_LISTED_IDS = 5
Ids = NDArray[np.int64]
DrawRecord = Mapping[str, Any]


class LabelledSpan(NamedTuple):
    """One span: code points [start, end) and a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class SampledText:
    """A distinct text of the sample, under the id of one of its examples.

    ``times`` is how often it was drawn, or its copies if its stratum is labelled completely. ``prefilled`` are the
    spans shown to the labeller, ``masked`` the strict policy's masks. The record of a draw holds a keyed ``digest`` and
    no word of the text. Labels give the ``text`` and its distinct ``secrets``, in order; measuring tells of each secret
    whether the strict policy ``missed`` it.
    """

    example_id: int
    stratum: str
    times: int
    prefilled: tuple[LabelledSpan, ...] = ()
    masked: tuple[tuple[int, int], ...] = ()
    digest: str = ""
    text: str = field(default="", repr=False)
    secrets: tuple[LabelledSpan, ...] = ()
    missed: tuple[bool, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether the labeller changed the spans that were filled in."""
        return set(self.secrets) != set(self.prefilled)

    def without_kinds(self, kinds: Collection[str]) -> SampledText:
        """The same text without the secrets of ``kinds``."""
        return replace(self, secrets=tuple(secret for secret in self.secrets if get_kind(secret.label) not in kinds))

    def to_record(self, key: DigestKey) -> dict[str, Any]:
        """The fields of a text that the record of the draw keeps."""
        fields = {name: getattr(self, name) for name in ("example_id", "stratum", "times", "prefilled", "masked")}
        return {**fields, "digest": _digest_text(self.text, key)}


def _digest_text(text: str, key: DigestKey) -> str:
    return key.compute_text_digest(key.derive_subkey("audit sample"), text.encode()).hex()


@dataclass(frozen=True)
class SamplingFrame:
    """All examples by ascending id, with the stratum of each (its index in STRATA, or -1)."""

    ids: Ids
    strata: NDArray[np.int8]
    quarantined: int
    fitted_on: UnmeasuredExamples

    def list_stratum_ids(self, name: str) -> Ids:
        """The example ids of a stratum."""
        return np.asarray(self.ids[self.strata == STRATA.index(name)])

    def find_strata(self, ids: Ids) -> NDArray[np.int8]:
        """Return the stratum of each of ``ids``; -1 also for unknown ids."""
        positions = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[positions] == ids, self.strata[positions], np.int8(-1))


def build_sampling_frame(run: RunFolder, fitted_on: Ids | None = None) -> SamplingFrame:
    """Return the strata of a finished run, without quarantined examples and those a policy was ``fitted_on``."""
    spans = read_batches(run.spans, ["example_id", "policy"])
    strict_ids = [np.unique(batch["example_id"].filter(pc.equal(batch["policy"], "strict"))) for batch in spans]
    columns = ["example_id", "split", "decision"]
    schema = pa.schema([EXAMPLES.field(name) for name in columns])
    examples = pa.Table.from_batches(read_batches(run.examples, columns), schema).sort_by("example_id")
    ids = examples["example_id"].to_numpy()
    public = pc.equal(examples["split"], PUBLIC).to_numpy()
    failed = pc.equal(examples["decision"], "quarantined").to_numpy()
    held = ~failed & np.isin(ids, () if fitted_on is None else fitted_on)
    private = np.where(np.isin(ids, np.concatenate([[], *strict_ids])), STRATA.index(MASKED), STRATA.index(SUSPECTED))
    strata = np.where(public, STRATA.index(PUBLIC), private)
    return SamplingFrame(
        ids,
        np.where(failed | held, -1, strata).astype(np.int8),
        int(failed.sum()),
        UnmeasuredExamples(int((held & public).sum()), int((held & ~public).sum())),
    )


def draw_sample(
    run: RunFolder, frame: SamplingFrame, n: int, public_share: float, seed: int
) -> tuple[bounds.SamplePlan, list[SampledText]]:
    """Draw at most ``n`` texts: small strata completely, others by independent uniform draws.

    ``ConfigurationError`` as :func:`~redactory.evaluation.sample_bounds.plan_sample`.
    """
    stream, known = RandomStream.from_seed(seed), _count_distinct_texts(run, frame, n)
    sizes = {name: len(frame.list_stratum_ids(name)) for name in STRATA}
    plan = bounds.plan_sample(sizes, {name: len(texts) for name, texts in known.items()}, n, public_share)
    # by stratum and text: how often it was drawn (or occurs), and the lowest id
    chosen = {name: known[name] for name in plan.whole}
    times = Counter[int]()
    for name, draws in plan.draws.items():
        chosen[name] = {}
        coins = stream.uniform(f"draws of {name} points", 0, draws)
        times.update(frame.list_stratum_ids(name)[(coins * sizes[name]).astype(np.int64)].tolist())
    for example_id, text in _iter_rows(run.vault, ("example_id", "text"), times):
        texts = chosen[STRATA[frame.find_strata(np.array([example_id]))[0]]]
        count, first = texts.get(text, (0, example_id))
        texts[text] = count + times[example_id], first
    spans = defaultdict[int, list[Span]](list)
    first_ids = {first for texts in chosen.values() for _, first in texts.values()}
    for example_id, policy, *fields in _iter_rows(run.spans, ("example_id", "policy", *Span._fields), first_ids):
        if policy == "strict":
            spans[example_id].append(Span(*fields))
    sample = []
    for name in STRATA:
        for text, (count, example_id) in chosen.get(name, {}).items():
            strict = spans[example_id]
            masked = tuple(merge_intervals(text, ((span.start, span.end) for span in strict)))
            sample.append(SampledText(example_id, name, count, select_prefilled_spans(strict), masked, text=text))
    return plan, [sample[i] for i in stream.permutation("order of the sample", 0, len(sample)).tolist()]


def _count_distinct_texts(
    run: RunFolder, frame: SamplingFrame, max_texts: int
) -> dict[str, dict[str, tuple[int, int]]]:
    """Return each stratum's texts with copies and lowest id; of more than ``max_texts``, any ``max_texts`` + 1."""
    texts_by_stratum: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in STRATA}
    for batch in read_batches(run.vault, ["example_id", "text"]):
        if all(len(known) > max_texts for known in texts_by_stratum.values()):
            break
        strata = frame.find_strata(batch["example_id"].to_numpy())
        for number, known in enumerate(texts_by_stratum.values()):
            if len(known) <= max_texts:
                text_groups = pa.table(batch.filter(pa.array(strata == number))).group_by("text")
                for row in text_groups.aggregate([("example_id", "count"), ("example_id", "min")]).to_pylist():
                    count, first = known.get(row["text"], (0, row["example_id_min"]))
                    known[row["text"]] = count + row["example_id_count"], first
    return texts_by_stratum


def _iter_rows(folder: Path, columns: Sequence[str], example_ids: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    ids = pa.array(sorted(example_ids), pa.int64())
    for batch in read_batches(folder, list(columns)):
        rows = batch.filter(pc.is_in(batch["example_id"], ids))
        yield from zip(*(rows[name].to_pylist() for name in columns), strict=True)


def select_prefilled_spans(strict: Iterable[Any]) -> tuple[LabelledSpan, ...]:
    """Return the strict spans without those that overlap a longer or an earlier equally long one.

    Of spans at one place the most certain is kept: with the higher score, or from a user's list.
    """
    kept_spans: list[LabelledSpan] = []
    for span in sorted(strict, key=lambda s: (s.start - s.end, s.start, -s.score, s.detector != "list", s.label)):
        if all(span.end <= other.start or other.end <= span.start for other in kept_spans):
            kept_spans.append(LabelledSpan(span.start, span.end, span.label))
    return tuple(sorted(kept_spans))


def to_labelling_rows(sample: Iterable[SampledText]) -> list[dict[str, Any]]:
    """The sample in the span schema, with the strict policy's spans filled in as ``spans``."""
    return [
        {
            "id": str(entry.example_id),
            "example_id": entry.example_id,
            "stratum": entry.stratum,
            "text": entry.text,
            "spans": [span._asdict() for span in entry.prefilled],
        }
        for entry in sample
    ]


# The labels: read, checked against the draw, measured.


def read_labels(path: Path, drawn_texts: Sequence[SampledText], key: DigestKey) -> list[SampledText]:
    """Read the labelled sample of ``path`` in the order of ``drawn_texts``.

    ``InputError``, with row and example id and without text, unless the rows are those of the draw, each once, with the
    text unchanged.
    """
    labelled: dict[int, SampledText] = {}
    expected = {entry.example_id: entry for entry in drawn_texts}
    for number, row in enumerate(read_labelled_rows(path), 1):
        raw_id = row.get("example_id", row.get("id"))
        if not (isinstance(raw_id, int) or (isinstance(raw_id, str) and raw_id.isascii() and raw_id.isdigit())):
            raise InputError(
                f"{path.name}, row {number}: it has no 'example_id'; label the rows of the sample, and change "
                "only their spans"
            )
        example_id, where = int(raw_id), f"{path.name}, row {number} (example {int(raw_id)})"
        if example_id not in expected:
            raise InputError(f"{where}: this example is not in the sample")
        if example_id in labelled:
            raise InputError(f"{where}: this example also occurs in an earlier row")
        if _digest_text(row["text"], key) != expected[example_id].digest:
            raise InputError(f"{where}: its text differs from the sample; only 'spans' may change")
        secrets = {LabelledSpan(span["start"], span["end"], span["label"]) for span in row["spans"]}
        labelled[example_id] = replace(expected[example_id], text=row["text"], secrets=tuple(sorted(secrets)))
    if missing := [str(example_id) for example_id in expected if example_id not in labelled]:
        listed = ", ".join(missing[:_MAX_LISTED_IDS]) + (", …" if len(missing) > _MAX_LISTED_IDS else "")
        raise InputError(
            f"{path.name}: {len(missing)} of the sample's {pluralize(len(drawn_texts), 'text')} are missing (example "
            f"{listed}); a text without a secret is a row without spans"
        )
    return [labelled[example_id] for example_id in expected]


def measure_sample_misses(
    rows: Sequence[SampledText], route_texts: recall.TextRouter, progress: Progress = ignore_progress
) -> list[SampledText]:
    """Return ``rows`` with ``missed``: whether F(s) ≠ F(s') for each secret, s' being s with it as ``<MASK>``.

    ``CheckFailed`` unless F gives each text the split and masks of the run, and each s' the private split (a
    quarantined example counts as private): then both policies miss exactly the secrets of public examples, which the
    bounds of a sample require.
    """
    places = [(row.text, [(secret.start, secret.end) for secret in row.secrets]) for row in rows]
    measured = []
    for row, (decision, without) in zip(rows, recall.route_masked_variants(route_texts, places, progress), strict=True):
        split = PUBLIC if row.stratum == PUBLIC else PRIVATE
        if decision != (split, mask_intervals(row.text, row.masked)):
            raise CheckFailed(
                f"example {row.example_id}: its decision no longer matches the run, although the policies are "
                "the same; nothing is measured"
            )
        if any(variant == PUBLIC for variant, _ in without):
            raise CheckFailed(
                f"example {row.example_id}: it would be public with a secret masked, although everything with a "
                "mask is private; nothing is measured"
            )
        measured.append(replace(row, missed=tuple(decision != tuple(variant) for variant in without)))
    return measured


def count_sample_secrets(texts: Sequence[SampledText]) -> dict[str, Any]:
    """Count the unmasked labelled secrets of the sample by label and split, unweighted.

    The keys are those of ``redactory.evaluation.recall.count_unmasked_secrets``.
    """
    labels = defaultdict[str, Counter[str]](Counter)
    for text in texts:
        is_public = text.stratum == PUBLIC
        for start, end, label in text.secrets:
            covered = any(low <= start and end <= high for low, high in text.masked)
            labels[label].update(secrets=1, left_public=is_public, left_private=not is_public and not covered)
    return recall.summarize_secret_counts(len(texts), labels)


# γ and δ₂ in total and by label, with bounds, and the labels still needed.


def compute_sample_metrics(
    draw: DrawRecord, texts: Sequence[SampledText], confidence: float, delta: float
) -> dict[str, Any]:
    """Return ``misses``, ``strata`` and ``needed`` of a score.

    ``misses`` has the keys of ``measure_misses``: plain counts, the weighted ``rate``, and as ``upper`` the bounds of
    :func:`compute_upper_bounds` in three digits, which reveal less of the counts; a label's metrics are of its secrets
    alone. ``needed`` gives for ``delta`` and 10⁻³ how many independently drawn secrets, or public draws of a sample
    like this one, must show no miss to bound δ₂ by it.
    """
    fitted, quarantined = draw["fitted_on"], draw["quarantined"]
    unmeasured = UnmeasuredExamples(fitted["public"], fitted["private"] + quarantined)

    secrets = [
        (text.stratum, secret.label, missed)
        for text in texts
        for secret, missed in zip(text.secrets, text.missed, strict=True)
    ]
    units = list(_iter_independent_units(draw, texts))

    def summarize_misses(label: str | None) -> dict[str, Any]:
        strata = _summarize_strata(draw, units, label)
        upper, rate = bounds.compute_upper_bounds(strata, confidence, unmeasured), bounds.estimate_rates(strata)
        flags = [(name, missed) for name, secret_label, missed in secrets if label in (None, secret_label)]
        misses = {"gamma": sum(missed for _, missed in flags), "delta_2": sum(name == PUBLIC for name, _ in flags)}
        return {"n": len(flags)} | {
            name: {"misses": count, "rate": rate and getattr(rate, name), "upper": round_up(getattr(upper, name), 3)}
            for name, count in misses.items()
        }

    strata = _summarize_strata(draw, units, None)
    known = sorted({label for _, label, _ in secrets})
    labels = {label: summarize_misses(label) for label in known}
    return {
        "misses": {**summarize_misses(None), **recall.summarize_misses_by_label(labels, confidence)},
        "strata": {
            name: {
                "examples": stratum.examples,
                "texts": draw["strata"][name]["texts"],
                "whole": stratum.draws is None,
                "draws": stratum.examples if stratum.draws is None else stratum.draws,
                "secrets": stratum.secrets,
                "missed_by_strict": stratum.missed,
                "missed_by_both": stratum.secrets if name == PUBLIC else 0,
            }
            for name, stratum in strata.items()
        },
        "needed": [
            {
                "delta_2": goal,
                "secrets": count_secrets_needed(goal, confidence),
                "public_draws": bounds.count_public_draws_needed(strata, goal, confidence, unmeasured),
            }
            for goal in sorted({delta, _DEFAULT_GOAL}, reverse=True)
        ],
    }


def draw_secret_indices(row: SampledText, stream: RandomStream) -> Iterator[int]:
    """Yield one uniformly drawn secret (its index in ``row.secrets``) per draw of a text that holds any.

    This makes draws independent units. The coins depend on the example's id, so the order of rows and spans does not
    matter.
    """
    if row.secrets:
        coins = stream.uniform("one secret of an example", 0, row.times, index=row.example_id)
        yield from (int(coin * len(row.secrets)) for coin in coins)


def _iter_independent_units(draw: DrawRecord, texts: Iterable[SampledText]) -> Iterator[tuple[str, str, float, bool]]:
    """Yield stratum, label, weight and miss: of one secret per draw, or of all, weighted, if the stratum is whole."""
    stream = RandomStream.from_seed(draw["seed"])
    for text in texts:
        whole = draw["strata"][text.stratum]["whole"]
        # a text's copies times the share of its secrets
        weight = text.times / max(1, len(text.secrets)) if whole else 1
        for place in range(len(text.secrets)) if whole else draw_secret_indices(text, stream):
            yield text.stratum, text.secrets[place].label, weight, text.missed[place]


def _summarize_strata(
    draw: DrawRecord, units: Sequence[tuple[str, str, float, bool]], label: str | None
) -> dict[str, Stratum]:
    strata = {}
    for name in STRATA:
        facts = draw["strata"][name]
        chosen = [
            (weight, missed)
            for stratum, secret_label, weight, missed in units
            if stratum == name and label in (None, secret_label)
        ]
        secrets, missed = sum(weight for weight, _ in chosen), sum(weight * missed for weight, missed in chosen)
        strata[name] = Stratum(facts["examples"], None if facts["whole"] else facts["draws"], secrets, missed)
    return strata
