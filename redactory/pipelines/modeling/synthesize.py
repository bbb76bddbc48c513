"""Synthesize: text that a model with a guarantee writes, as shards that may leave as ``public/`` does.

What is written is a function of the model, of public constants, and of a histogram with noise of its own: it
is post-processing, and promised as these are together.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from redactory.detectors import Detection, Detector, DetectSettings
from redactory.foundation.canonical import file_sha256, json_sha256
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError, pluralize
from redactory.foundation.files import PUBLIC_FILE, make_private_folder, remove_leftovers, write_json, write_text
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, no_progress
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.error_sealing import run_sealed
from redactory.pipelines.curation.models import load_audit, require_training_packages, resolve_model_name, seal_result
from redactory.pipelines.curation.output_folder import create_folder, lock_run
from redactory.pipelines.curation.release import render_synthetic_card
from redactory.pipelines.curation.release_log import check_released
from redactory.pipelines.curation.share import finish_export
from redactory.pipelines.modeling.train import guarantee
from redactory.redaction import MASK, RunFolder, part_name, read_manifest, write_part
from redactory.redaction.folder import SYNTHETIC, SyntheticFolder
from redactory.redaction.replacements import ReplacedSpan, Replacer, Surrogate, apply_edits, plan_edits
from redactory.redaction.shards import CLASS, ROLE, shard_schema
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.histogram import Histogram
    from redactory.training.trainers import Trainer

OVERSAMPLING = 2
"""So many texts are written for each that is kept, where lengths are to be met."""
_PART_ROWS = 100_000
_NOT_COUNTED_MESSAGE = "Nothing was counted: do not use a histogram (omit --histogram), or choose a model with room."
_MASK = re.compile(re.escape(MASK))
_SEED_BITS = 32


@dataclass(frozen=True)
class SamplingSettings:
    """How a model writes: ``tokens`` at most, ``stop`` ends a text before the first such string."""

    temperature: float = 1.0
    top_p: float = 1.0
    tokens: int = 100
    stop: tuple[str, ...] = ()
    drop_suspected: bool = False


def synthesize(
    run: str | Path,
    model: str | None = None,
    *,
    rows: int,
    out: str | Path,
    labels: Sequence[str] = (),
    histogram: float | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    tokens: int = 100,
    stop: Sequence[str] = (),
    drop_suspected: bool = False,
    seed: int | None = None,
    no_guarantee: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Have a model of a finished run write ``rows`` texts into the new folder ``out``, which may leave.

    ``labels`` are the public names of the classes or roles that the training read texts with (train.prefix): as often
    each, or, with ``histogram``, as often and as long as a histogram of the corpus says that has noise of this standard
    deviation; drawn once for a model, accounted, booked in the budget that the model was trained under. What the strict
    policy finds in a text, and each mask, becomes an invented value; with ``drop_suspected`` a text in which the
    conservative one suspects more is left out.  Returns {run, model, out, rows, holds, epsilon, delta, unit, histogram,
    surrogates, lengths_met, files}.  ``GuaranteeError`` for a model of which nothing is guaranteed, unless with
    ``no_guarantee``: the card then says so, and what is written is not exported.
    """
    folder = RunFolder(Path(run))
    name = resolve_model_name(folder, model)
    require_training_packages()
    if rows < 1:
        raise ConfigurationError(f"synthesize: --rows {rows}: give at least 1")
    how = SamplingSettings(temperature, top_p, tokens, tuple(stop), drop_suspected)

    def work() -> dict[str, Any]:
        writer = _SyntheticWriter(folder, name, tuple(dict.fromkeys(labels)), how, progress)
        card = writer.make_card(histogram, no_guarantee)
        with create_folder(Path(out), lambda: check_released(folder)) as staging:
            result = writer.write_corpus(SyntheticFolder(staging), card, rows, seed)
        return {"run": str(folder.root), "model": name, "out": str(out), **result}

    return run_sealed(folder.state, work)


@dataclass
class _SyntheticWriter:
    """What is asked of one model: the ``labels`` before its texts, and how it is to write."""

    run: RunFolder
    model: str
    labels: tuple[str, ...]
    sampling: SamplingSettings
    progress: Progress

    def __post_init__(self) -> None:
        settings = read_manifest(self.run.model(self.model))["settings"]
        self.prefix, self.trainer = settings.get("prefix"), TRAINERS[settings["trainer"]]
        if settings.get("task") == "classify":
            raise ConfigurationError(f"synthesize: {self.model} predicts classes and cannot generate text")
        if settings.get("chat") is not None:
            raise ConfigurationError(
                f"synthesize: {self.model} was trained on conversations (train.chat), whose turns cannot be "
                "separated into columns here; train with train.prefix: role, or prompt it (redactory predict)"
            )
        if bool(self.prefix) != bool(self.labels):
            kind = "classes" if self.prefix == CLASS else "roles"
            raise ConfigurationError(
                f"synthesize: --label: {self.model} was trained with the {kind} of its texts (train.prefix): "
                "name them, a public list"
                if self.prefix
                else (f"synthesize: --label: {self.model} has no labels; omit it, or train with train.prefix")
            )

    @property
    def column(self) -> str:
        """What the labels are."""
        return CLASS if self.prefix == CLASS else ROLE

    def make_card(self, deviation: float | None, no_guarantee: bool) -> dict[str, Any]:
        """The card of what is written; a histogram is drawn first, where one is asked for."""
        card = compose_guarantee(self.run, self.model)
        reason = None if card["holds"] else card["holds_reason"]
        if (audit := load_audit(self.run, self.model)) is not None and not audit["holds"]:
            reason = "an audit proves a larger epsilon than its guarantee"
        if reason is not None and not no_guarantee:
            raise GuaranteeError(
                f"{self.model} cannot write text for export: {reason}. Train one with a guarantee, or give "
                "--no-guarantee for text that is not exported"
            )
        if reason is not None:
            card |= {"holds": False, "holds_reason": reason}
        self.histogram = None if deviation is None else self._require_histogram(deviation)
        if self.histogram is None or not card["holds"]:
            return card
        return compose_guarantee(self.run, self.model)

    def _require_histogram(self, deviation: float) -> Histogram:
        """The one that was drawn before, or one that is booked, drawn and sealed now."""
        from redactory.training.histogram import require_countable

        if self.prefix != CLASS:
            raise ConfigurationError(
                "synthesize: --histogram counts classes (train.prefix: class); omit it for this model"
            )
        require_countable(self.trainer, self.trainer.relation)
        with lock_run(self.run):  # two at a time would each draw one
            return self._load_or_draw_histogram(deviation)

    def _load_or_draw_histogram(self, deviation: float) -> Histogram:
        from redactory.training.histogram import HISTOGRAM_FOLDER, Histogram

        if (earlier := Histogram.read_for_model(self.run, self.model)) is not None:
            if (earlier.deviation, *earlier.counts) != (deviation, *self.labels):
                raise RunStateError(
                    f"synthesize: the histogram of {self.model} was drawn with --histogram "
                    f"{earlier.deviation:g} and {pluralize(len(earlier.counts), 'label')} "
                    f"({', '.join(earlier.counts)}); another one would spend the same again, so give the same "
                    "values"
                )
            return earlier
        stream = RandomStream.from_entropy()
        self._book_cost(deviation, stream)
        histogram = Histogram.draw(read_counted_texts(self.run, self.trainer), self.labels, deviation, stream)
        model = self.run.model(self.model)
        body = {
            "format": "redactory-evaluation/1",
            "evaluation": HISTOGRAM_FOLDER,
            "parent": file_sha256(model.manifest),
        }
        remove_leftovers(model.result(HISTOGRAM_FOLDER).root)
        seal_result(model.result(HISTOGRAM_FOLDER), histogram.to_json(), body)
        return histogram

    def _book_cost(self, deviation: float, stream: RandomStream) -> None:
        """Book its cost in the budget that the model was trained under, before noise is drawn.

        ``BudgetExceeded`` where that has no room, or is not where the model's training was booked.
        """
        from redactory.training.guarantee.budget import Budget
        from redactory.training.guarantee.spec import read_ledger_facts, read_training_spec
        from redactory.training.histogram import Histogram
        from redactory.training.settings import BudgetSettings

        model, title = self.run.model(self.model), f"{self.run.root.name}/{self.model}"
        if (record := read_manifest(model).get("budget")) is None:
            return
        facts = read_ledger_facts(self.run, model)
        overrides = {"budget": BudgetSettings.model_validate(record)}
        budget, rows = (
            Budget.from_settings(facts.settings.model_copy(update=overrides)),
            read_training_spec(self.run, facts, None).rows,
        )
        assert budget is not None
        budget.require_reservation(json_sha256(read_records(model.ledger)[0].body), title, _NOT_COUNTED_MESSAGE)
        identity = f"histogram-{stream.random_bytes('identity', 0, 16).hex()}"
        budget.reserve(
            identity, f"{title}/histogram", Histogram(deviation, {}).compute_spending(rows), _NOT_COUNTED_MESSAGE
        )

    def write_corpus(
        self, target: SyntheticFolder, card: Mapping[str, Any], rows: int, seed: int | None
    ) -> dict[str, Any]:
        """The shards, and all that says what they are."""
        from redactory.training import load_model

        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        trained, quotas = load_model(self.run.model(self.model)), self._compute_quotas(rows)
        labelled_texts, fitting = self._generate_texts(trained, quotas, seed)
        every, surrogates = replace_values(
            self.run, [text for _, text in labelled_texts], seed, self.sampling.drop_suspected
        )
        texts = {place: text for place, text in enumerate(every) if text is not None}
        shuffled = RandomStream.from_seed(seed).permutation("rows", 0, len(every)).tolist()
        order = [place for place in shuffled if place in texts]
        columns = {self.column: "string"} if self.prefix else {}
        manifest = self._build_manifest(card, len(texts), columns, seed)
        make_private_folder(target.public)
        for part, first in enumerate(range(0, len(order), _PART_ROWS)):
            shard_rows = order[first : first + _PART_ROWS]
            table = {
                "example_id": [f"synthetic-{first + place}" for place in range(len(shard_rows))],
                "text": [texts[i] for i in shard_rows],
                **{column: [labelled_texts[i][0] for i in shard_rows] for column in columns},
            }
            shard = pa.table(table, schema=shard_schema(manifest, "public"))
            write_part(target.public / part_name(part), shard, PUBLIC_FILE)
        write_json(target.guarantee, card)
        write_text(target.card, render_synthetic_card(manifest, card))
        files = finish_export(target, manifest)
        guarantee_fields = {key: card.get(key) for key in ("holds", "holds_reason", "epsilon", "delta", "unit")}
        noise = self.histogram and self.histogram.deviation
        counts = {"rows": len(texts), "histogram": noise, "surrogates": surrogates, "lengths_met": fitting}
        return {**guarantee_fields, **counts, "manifest": file_sha256(target.manifest), "files": len(files)}

    def _build_manifest(self, card: Mapping[str, Any], rows: int, columns: dict[str, str], seed: int) -> dict[str, Any]:
        """Public constants, the card's promise, and no number of the corpus but noisy ones."""
        curated = read_manifest(self.run)
        how = {key: value for key, value in asdict(self.sampling).items() if key != "stop"}
        return {
            "format": SYNTHETIC,
            "run": curated.get("run", self.run.root.name),
            "model": self.model,
            "model_manifest": file_sha256(self.run.model(self.model).manifest),
            "holds": card["holds"],
            "date": str(curated.get("created", ""))[:10],
            "versions": read_manifest(self.run.model(self.model))["versions"],
            "counts": {"public": rows},
            **({"columns": columns, "labels": list(self.labels)} if columns else {}),
            "sampling": {**how, "stop": list(self.sampling.stop), "seed": seed},
            "histogram": None if self.histogram is None else self.histogram.to_json(),
        }

    def _compute_quotas(self, rows: int) -> dict[str, list[int]]:
        """How many texts of each label by the bin of their length; one bin where lengths are as they come."""
        if self.histogram is not None:
            return self.histogram.compute_quotas(rows)
        names = self.labels or ("",)
        more = rows % len(names)
        return {name: [rows // len(names) + (place < more)] for place, name in enumerate(names)}

    def _generate_texts(
        self, model: LanguageModel, quotas: Mapping[str, list[int]], seed: int
    ) -> tuple[list[tuple[str, str]], int]:
        """(label, text) of every row, and how many of them have the length that was drawn for them."""
        from redactory.evaluation.generation import generate_texts
        from redactory.training.histogram import find_length_bin

        labelled_texts, met = list[tuple[str, str]](), 0
        for place, (label, bins) in enumerate(quotas.items()):
            count = sum(bins) * (OVERSAMPLING if len(bins) > 1 else 1)
            prompts = (f"{label}:",) if label else ()
            arguments = (self.sampling.tokens, self.sampling.temperature, None, seed + place, prompts, self.progress)
            texts = [
                self._cut_at_stop(text) for text in generate_texts(model, count, *arguments, top_p=self.sampling.top_p)
            ]
            selected, fitting = (
                (texts, len(texts)) if len(bins) == 1 else select_by_length(texts, bins, find_length_bin)
            )
            labelled_texts += [(label, text) for text in selected]
            met += fitting
        return labelled_texts, met

    def _cut_at_stop(self, text: str) -> str:
        """``text`` up to the first stop string."""
        places = (place for stop in self.sampling.stop if stop and (place := text.find(stop)) >= 0)
        return text[: min(places, default=len(text))].strip()


def read_counted_texts(run: RunFolder, trainer: Trainer) -> Iterator[tuple[str, str | None]]:
    """(text, class) of every point as ``trainer`` learns it, which is what its figures are about.

    Of ``crt`` that is masked: a secret that π caught bears on no count, as it bears on no step; counted from
    the originals it would, and no miss rate could amplify what is stated.
    """
    from redactory.training.data import read_classes, read_texts

    for folder in trainer.list_data_folders(run):
        yield from zip(read_texts(run, folder), read_classes(run, folder), strict=True)


def compose_guarantee(run: RunFolder, model: str) -> dict[str, Any]:
    """What holds of ``model`` and its histogram together; no place on this machine."""
    card = guarantee(run.root, [model])
    return {**card, "models": [{**one, "run": Path(one["run"]).name} for one in card["models"]]}


def select_by_length(texts: Sequence[str], bins: Sequence[int], get_bin: Callable[[str], int]) -> tuple[list[str], int]:
    """Of ``texts`` as many as ``bins`` ask for, of each length as many if there are; how many fit.

    What lacks is made up by texts that are left over, in the order in which they were written.
    """
    left, selected = list(bins), list[str]()
    spare: list[str] = []
    for text in texts:
        place = get_bin(text)
        (selected if left[place] > 0 else spare).append(text)
        left[place] -= left[place] > 0
    return selected + spare[: sum(bins) - len(selected)], len(selected)


# What is found in a text that was written, and each mask, becomes an invented value.


_VALUE_FORMS = {
    "EMAIL_ADDRESS": (r"e-?mail|@", "mary.miller@example.com"),
    "PHONE_NUMBER": (r"phone|call|mobile|\btel\b", "555-010-2345"),
    "DATE": (r"\b(on|date|born|until|since|dated|as of)\b", "12 March 2021"),
    "ID": (r"number|\bid\b|code|order|account|card|\bpin\b|#", "58213"),
    "LOCATION": (r"\b(street|address|city|in|at|to|from|laws of)\b", "Springfield"),
    "PERSON": ("", "Mary Miller"),
}
"""By what seems to stand where a mask is: words before it that say so, and the form of a value."""
_CONTEXT_CHARS = 30


def replace_values(
    run: RunFolder, texts: Sequence[str], seed: int, drop_suspected: bool = False
) -> tuple[list[str | None], int]:
    """``texts`` with what π of ``run`` finds in them, and each mask, replaced; in how many that was.

    None for one that cannot be looked through, and with ``drop_suspected`` for one in which π_c points at
    what π does not mark.
    """
    settings = DetectSettings.read_back(read_manifest(run)["configuration"]["detect"])
    results, replaced = list[str | None](), 0
    stream = RandomStream.from_seed(seed)
    for row, (text, detection) in enumerate(zip(texts, Detector(settings).detect(texts), strict=True)):
        spans = [ReplacedSpan(s.start, s.end, s.label, s.score) for s in detection.strict]
        spans += [ReplacedSpan(*match.span(), _guess_kind(text[: match.start()])) for match in _MASK.finditer(text)]
        if spans:
            # a key for each row: what is put in place of a mask differs from row to row
            key = DigestKey(stream.random_bytes("surrogates", row, 32))
            put = Surrogate(key, settings.language).for_document(str(row), [text])

            def invent_value(kind: str, value: str, replacer: Replacer = put) -> str:
                return replacer(kind, _VALUE_FORMS.get(kind, _VALUE_FORMS["PERSON"])[1] if MASK in value else value)

            text = apply_edits(text, plan_edits(text, spans, invent_value))
        is_kept = not (detection.failure or (drop_suspected and _has_suspected_span(detection)))
        results.append(text if is_kept else None)
        replaced += bool(spans and is_kept)
    return results, replaced


def _has_suspected_span(detection: Detection) -> bool:
    """Whether π_c points at a place in which π marks nothing."""
    marked = [(span.start, span.end) for span in detection.strict]
    return any(all(s.end <= a or b <= s.start for a, b in marked) for s in detection.conservative)


def _guess_kind(context: str) -> str:
    """The kind that the words before a mask point at."""
    return next(k for k, (cue, _) in _VALUE_FORMS.items() if re.search(cue, context[-_CONTEXT_CHARS:], re.IGNORECASE))
