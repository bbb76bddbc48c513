"""Synthesize: let a model with a guarantee write text, as shards that may be shared like ``public/``.

The text is a function of the model, public constants and a histogram with separate noise. It is post-processing, so
the joint guarantee of model and histogram covers it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from redactory import training
from redactory.detectors import Detector, DetectSettings
from redactory.evaluation.generation import generate_texts
from redactory.foundation.canonical import file_sha256, json_sha256
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError, pluralize
from redactory.foundation.files import PUBLIC_FILE, make_private_folder, remove_leftovers, write_json, write_text
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.finish import render_synthetic_card
from redactory.pipelines.curation.models import load_audit, require_training_packages, resolve_model_name, seal_result
from redactory.pipelines.curation.output_folder import create_folder_atomically, lock_folders
from redactory.pipelines.curation.release_log import check_released
from redactory.pipelines.curation.share import finish_export
from redactory.pipelines.measure.evaluate import CLASSIFY, read_trainer_texts
from redactory.pipelines.modeling.train import guarantee
from redactory.redaction import MASK, RunFolder, format_part_name, read_manifest, write_part
from redactory.redaction.folder import SYNTHETIC, SyntheticFolder, find_containing_job
from redactory.redaction.mask import apply_edits
from redactory.redaction.replacements import ReplacedSpan, Replacer, Surrogate, plan_edits
from redactory.redaction.shards import CLASS, ROLE, build_shard_schema
from redactory.training.settings import TRAINERS, BudgetSettings

OVERSAMPLING = 2
"""Number of texts generated per kept text if lengths must match."""
_PART_ROWS = 100_000
_NOT_COUNTED_MESSAGE = "Nothing was counted: do not use a histogram (omit --histogram), or choose a model with room."
_MASK = re.compile(re.escape(MASK))
_SEED_BITS = 32


@dataclass(frozen=True)
class SamplingSettings:
    """How a model writes: at most ``tokens`` tokens; the first string of ``stop`` ends a text."""

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
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Let a model of a finished run write ``rows`` texts into the new folder ``out``, which may be shared.

    ``labels`` are the public names of the classes or roles in the training's prefix (train.prefix). Each is equally
    frequent; with ``histogram``, frequencies and lengths follow a histogram of the corpus with noise of this standard
    deviation, drawn once per model, accounted, and charged to the budget of the model's training. Spans that the strict
    policy finds, and masks, become invented values; ``drop_suspected`` leaves out texts in which the conservative
    policy suspects more. Returns {run, model, out, rows, holds, epsilon, delta, unit, histogram, surrogates,
    lengths_met, files}. ``GuaranteeError`` for a model without a guarantee, unless ``no_guarantee``: the card then says
    so, and the text is not exported.
    """
    folder = RunFolder(Path(run))
    name = resolve_model_name(folder, model)
    require_training_packages()
    if rows < 1:
        raise ConfigurationError(f"synthesize: --rows {rows}: give at least 1")
    how = SamplingSettings(temperature, top_p, tokens, tuple(stop), drop_suspected)

    def write_and_seal() -> dict[str, Any]:
        writer = _SyntheticWriter(folder, name, tuple(dict.fromkeys(labels)), how, progress)
        card = writer.make_card(histogram, no_guarantee)
        with create_folder_atomically(Path(out), lambda: check_released(folder)) as staging:
            result = writer.write_corpus(SyntheticFolder(staging), card, rows, seed)
        return {"run": str(folder.root), "model": name, "out": str(out), **result}

    return run_with_sealed_traceback(folder.state, write_and_seal)


@dataclass
class _SyntheticWriter:
    run: RunFolder
    model: str
    labels: tuple[str, ...]
    sampling: SamplingSettings
    progress: Progress

    def __post_init__(self) -> None:
        settings = read_manifest(self.run.get_model_folder(self.model))["settings"]
        self.prefix, self.trainer = settings.get("prefix"), TRAINERS[settings["trainer"]]
        if settings.get("task") == CLASSIFY:
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

    def make_card(self, deviation: float | None, no_guarantee: bool) -> dict[str, Any]:
        """Make the card of the text; draw the histogram first, if one is requested."""
        card = compose_guarantee(self.run, self.model)
        reason = None if card["holds"] else card["holds_reason"]
        if (audit := load_audit(self.run, self.model)) is not None and not audit["holds"]:
            reason = "an audit proves a larger epsilon than its guarantee"
        if reason is not None:
            if not no_guarantee:
                raise GuaranteeError(
                    f"{self.model} cannot write text for export: {reason}. Train one with a guarantee, or give "
                    "--no-guarantee for text that is not exported"
                )
            card |= {"holds": False, "holds_reason": reason}
        self.histogram = None
        if deviation is None:
            return card
        if self.prefix != CLASS:
            raise ConfigurationError(
                "synthesize: --histogram counts classes (train.prefix: class); omit it for this model"
            )
        training.histogram.require_histogram_guarantee(self.trainer, self.trainer.relation)
        with lock_folders(find_containing_job(self.run), self.run):
            self.histogram = self._load_or_draw_histogram(deviation)
        return compose_guarantee(self.run, self.model) if card["holds"] else card

    def _load_or_draw_histogram(self, deviation: float) -> training.histogram.Histogram:
        """Load the model's histogram, or draw it; under the run's lock, because two at a time would each draw one."""
        if (earlier := training.histogram.Histogram.read_model_histogram(self.run, self.model)) is not None:
            if (earlier.deviation, *earlier.counts) != (deviation, *self.labels):
                raise RunStateError(
                    f"synthesize: the histogram of {self.model} was drawn with --histogram "
                    f"{earlier.deviation:g} and {pluralize(len(earlier.counts), 'label')} "
                    f"({', '.join(earlier.counts)}); another one would spend the same again, so give the same "
                    "values"
                )
            return earlier
        stream = RandomStream.from_entropy()
        self._charge_budget(deviation, stream)
        texts = read_trainer_texts(self.run, self.trainer.list_data_folders(self.run))
        histogram = training.histogram.Histogram.draw_noisy_counts(texts, self.labels, deviation, stream)
        model = self.run.get_model_folder(self.model)
        body = {"format": "redactory-evaluation/1", "evaluation": training.histogram.HISTOGRAM_FOLDER}
        result_folder = model.get_result_folder(training.histogram.HISTOGRAM_FOLDER)
        remove_leftovers(result_folder.root)
        seal_result(result_folder, histogram.to_json(), {**body, "parent": file_sha256(model.manifest)})
        return histogram

    def _charge_budget(self, deviation: float, stream: RandomStream) -> None:
        """Charge the model's budget before noise is drawn; ``BudgetExceeded`` if it is full or lacks the training."""
        model, title = self.run.get_model_folder(self.model), f"{self.run.root.name}/{self.model}"
        if (record := read_manifest(model).get("budget")) is None:
            return
        facts = training.guarantee.spec.read_ledger_facts(self.run, model)
        overrides = {"budget": BudgetSettings.model_validate(record)}
        budget = training.guarantee.budget.Budget.from_settings(facts.settings.model_copy(update=overrides))
        rows = training.guarantee.spec.read_training_spec(self.run, facts, None).exchanged_row_count
        assert budget is not None
        budget.require_reservation(json_sha256(read_records(model.ledger)[0].body), title, _NOT_COUNTED_MESSAGE)
        identity = f"histogram-{stream.random_bytes('identity', 0, 16).hex()}"
        spending = training.histogram.Histogram(deviation, {}).compute_spending(rows)
        budget.reserve_spending(identity, f"{title}/histogram", spending, _NOT_COUNTED_MESSAGE)

    def write_corpus(
        self, target: SyntheticFolder, card: Mapping[str, Any], rows: int, seed: int | None
    ) -> dict[str, Any]:
        """Write the shards, their card, guarantee and manifest."""
        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        trained, quotas = training.load_model(self.run.get_model_folder(self.model)), self._compute_quotas(rows)
        labelled_texts, fitting = self._generate_texts(trained, quotas, seed)
        replaced_texts, surrogates = replace_values(
            self.run, [text for _, text in labelled_texts], seed, self.sampling.drop_suspected
        )
        texts = {index: text for index, text in enumerate(replaced_texts) if text is not None}
        shuffled = RandomStream.from_seed(seed).permutation("rows", 0, len(replaced_texts)).tolist()
        order = [index for index in shuffled if index in texts]
        columns = {CLASS if self.prefix == CLASS else ROLE: "string"} if self.prefix else {}
        manifest = self._build_manifest(card, len(texts), columns, seed)
        make_private_folder(target.public)
        for part, first in enumerate(range(0, len(order), _PART_ROWS)):
            shard_rows = order[first : first + _PART_ROWS]
            table = {
                "example_id": [f"synthetic-{first + index}" for index in range(len(shard_rows))],
                "text": [texts[i] for i in shard_rows],
                **{column: [labelled_texts[i][0] for i in shard_rows] for column in columns},
            }
            shard = pa.table(table, schema=build_shard_schema(manifest, "public"))
            write_part(target.public / format_part_name(part), shard, PUBLIC_FILE)
        write_json(target.guarantee, card)
        write_text(target.card, render_synthetic_card(manifest, card))
        files = finish_export(target, manifest)
        guarantee_fields = {key: card.get(key) for key in ("holds", "holds_reason", "epsilon", "delta", "unit")}
        noise = self.histogram and self.histogram.deviation
        counts = {"rows": len(texts), "histogram": noise, "surrogates": surrogates, "lengths_met": fitting}
        return {**guarantee_fields, **counts, "manifest": file_sha256(target.manifest), "files": len(files)}

    def _build_manifest(self, card: Mapping[str, Any], rows: int, columns: dict[str, str], seed: int) -> dict[str, Any]:
        """Build the manifest from public constants, the card's guarantee, and only noisy numbers of the corpus."""
        curated = read_manifest(self.run)
        return {
            "format": SYNTHETIC,
            "run": curated.get("run", self.run.root.name),
            "model": self.model,
            "model_manifest": file_sha256(self.run.get_model_folder(self.model).manifest),
            "holds": card["holds"],
            "date": str(curated.get("created", ""))[:10],
            "versions": read_manifest(self.run.get_model_folder(self.model))["versions"],
            "counts": {"public": rows},
            **({"columns": columns, "labels": list(self.labels)} if columns else {}),
            "sampling": {**asdict(self.sampling), "stop": list(self.sampling.stop), "seed": seed},
            "histogram": None if self.histogram is None else self.histogram.to_json(),
        }

    def _compute_quotas(self, rows: int) -> dict[str, list[int]]:
        """Return the number of texts by label and length bin; one bin if lengths are free."""
        if self.histogram is not None:
            return self.histogram.compute_quotas(rows)
        names = self.labels or ("",)
        remainder = rows % len(names)
        return {name: [rows // len(names) + (label_index < remainder)] for label_index, name in enumerate(names)}

    def _generate_texts(
        self, model: training.LanguageModel, quotas: Mapping[str, list[int]], seed: int
    ) -> tuple[list[tuple[str, str]], int]:
        """Return (label, text) of every row, and how many have the length drawn for them."""
        labelled_texts, fitting_count = list[tuple[str, str]](), 0
        for label_index, (label, bins) in enumerate(quotas.items()):
            count = sum(bins) * (OVERSAMPLING if len(bins) > 1 else 1)
            prompts = (f"{label}:",) if label else ()
            numbers = (self.sampling.tokens, self.sampling.temperature, None, seed + label_index)
            generated = generate_texts(model, count, *numbers, prompts, self.progress, top_p=self.sampling.top_p)
            texts = [self._cut_at_stop(text) for text in generated]
            selected, fitting = texts, len(texts)
            if len(bins) > 1:
                selected, fitting = select_by_length(texts, bins, training.histogram.find_length_bin)
            labelled_texts += [(label, text) for text in selected]
            fitting_count += fitting
        return labelled_texts, fitting_count

    def _cut_at_stop(self, text: str) -> str:
        positions = (position for stop in self.sampling.stop if stop and (position := text.find(stop)) >= 0)
        return text[: min(positions, default=len(text))].strip()


def compose_guarantee(run: RunFolder, model: str) -> dict[str, Any]:
    """Compose the guarantee of ``model`` and its histogram, without paths of this machine."""
    card = guarantee(run.root, [model])
    return {**card, "models": [{**model_card, "run": Path(model_card["run"]).name} for model_card in card["models"]]}


def select_by_length(texts: Sequence[str], bins: Sequence[int], get_bin: Callable[[str], int]) -> tuple[list[str], int]:
    """Select as many ``texts`` as ``bins`` request, topped up by spare ones in order; also return how many fit."""
    remaining, selected = list(bins), list[str]()
    spare: list[str] = []
    for text in texts:
        length_bin = get_bin(text)
        (selected if remaining[length_bin] > 0 else spare).append(text)
        remaining[length_bin] -= remaining[length_bin] > 0
    return selected + spare[: sum(bins) - len(selected)], len(selected)


# Replacement of found spans and masks in generated text by invented values.


_VALUE_FORMS = {
    "EMAIL_ADDRESS": (r"e-?mail|@", "mary.miller@example.com"),
    "PHONE_NUMBER": (r"phone|call|mobile|\btel\b", "555-010-2345"),
    "DATE": (r"\b(on|date|born|until|since|dated|as of)\b", "12 March 2021"),
    "ID": (r"number|\bid\b|code|order|account|card|\bpin\b|#", "58213"),
    "LOCATION": (r"\b(street|address|city|in|at|to|from|laws of)\b", "Springfield"),
    "PERSON": ("", "Mary Miller"),
}
"""For each kind of value: words before a mask that suggest it, and a sample value."""
_CONTEXT_CHARS = 30


def replace_values(
    run: RunFolder, texts: Sequence[str], seed: int, drop_suspected: bool = False
) -> tuple[list[str | None], int]:
    """Replace the spans that π of ``run`` finds, and masks; return the texts and how many changed.

    A text is None if it cannot be searched, and with ``drop_suspected`` if π_c suspects something that π does not mask.
    """
    settings = DetectSettings.from_manifest(read_manifest(run)["configuration"]["detect"])
    results, replaced = list[str | None](), 0
    stream = RandomStream.from_seed(seed)
    for row, (text, detection) in enumerate(zip(texts, Detector(settings).detect(texts), strict=True)):
        spans = [ReplacedSpan(s.start, s.end, s.label, s.score) for s in detection.strict]
        spans += [
            ReplacedSpan(*match.span(), _guess_value_kind(text[: match.start()])) for match in _MASK.finditer(text)
        ]
        if spans:
            # one key per row, so that replacements of a mask differ between rows
            key = DigestKey(stream.random_bytes("surrogates", row, 32))
            make_surrogate = Surrogate(key, settings.language).create_replacer(str(row), [text])

            def invent_value(kind: str, value: str, replacer: Replacer = make_surrogate) -> str:
                return replacer(kind, _VALUE_FORMS.get(kind, _VALUE_FORMS["PERSON"])[1] if MASK in value else value)

            text = apply_edits(text, plan_edits(text, spans, invent_value))
        # π_c has a span that overlaps no span of π
        is_suspected = any(
            all(s.end <= span.start or span.end <= s.start for span in detection.strict) for s in detection.conservative
        )
        is_kept = not (detection.failure or (drop_suspected and is_suspected))
        results.append(text if is_kept else None)
        replaced += bool(spans and is_kept)
    return results, replaced


def _guess_value_kind(context: str) -> str:
    return next(
        kind for kind, (cue, _) in _VALUE_FORMS.items() if re.search(cue, context[-_CONTEXT_CHARS:], re.IGNORECASE)
    )
