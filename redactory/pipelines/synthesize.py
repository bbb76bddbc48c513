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
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RunStateError, some
from redactory.foundation.files import PUBLIC_FILE, make_private_folder, remove_leftovers, write_json, write_text
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.pipelines.models import audited, named_model, require_training_packages, seal_result
from redactory.pipelines.output_folder import lock_run, new_folder
from redactory.pipelines.release import synthetic_card
from redactory.pipelines.release_log import check_released
from redactory.pipelines.sealed import sealed
from redactory.pipelines.share import finish_export
from redactory.pipelines.train import guarantee
from redactory.redaction import MASK, RunFolder, part_name, read_manifest, write_part
from redactory.redaction.folder import SYNTHETIC, SyntheticFolder
from redactory.redaction.replacements import Found, Put, Surrogate, edited, edits
from redactory.redaction.shards import CLASS, ROLE, schema_of
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.histogram import Histogram
    from redactory.training.trainers import Trainer

SPARE = 2
"""So many texts are written for each that is kept, where lengths are to be met."""
_PART_ROWS = 100_000
_NOT_COUNTED = "Nothing was counted: do not use a histogram (omit --histogram), or choose a model with room."
_MASK = re.compile(re.escape(MASK))
_SEED_BITS = 32


@dataclass(frozen=True)
class Sampling:
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
    progress: Progress = silent,
) -> dict[str, Any]:
    """Have a model of a finished run write ``rows`` texts into the new folder ``out``, which may leave.

    ``labels`` are the public names of the classes or roles that the training read texts with (train.prefix):
    as often each, or, with ``histogram``, as often and as long as a histogram of the corpus says that has
    noise of this standard deviation; drawn once for a model, accounted, booked in the budget
    that the model was trained under.
    What the strict policy finds in a text, and each mask, becomes an invented value; with ``drop_suspected``
    a text in which the conservative one suspects more is left out.  Returns {run, model, out, rows, holds,
    epsilon, delta, unit, histogram, surrogates, lengths_met, files}.  ``GuaranteeError`` for a model of which
    nothing is guaranteed, unless with ``no_guarantee``: the card then says so, and what is written is not
    exported.
    """
    folder = RunFolder(Path(run))
    name = named_model(folder, model)
    require_training_packages()
    if rows < 1:
        raise ConfigurationError(f"synthesize: --rows {rows}: give at least 1")
    how = Sampling(temperature, top_p, tokens, tuple(stop), drop_suspected)

    def work() -> dict[str, Any]:
        own = _Corpus(folder, name, tuple(dict.fromkeys(labels)), how, progress)
        card = own.promise(histogram, no_guarantee)
        with new_folder(Path(out), lambda: check_released(folder)) as staging:
            made = own.write(SyntheticFolder(staging), card, rows, seed)
        return {"run": str(folder.root), "model": name, "out": str(out), **made}

    return sealed(folder.state, work)


@dataclass
class _Corpus:
    """What is asked of one model: the ``labels`` before its texts, and how it is to write."""

    run: RunFolder
    model: str
    labels: tuple[str, ...]
    how: Sampling
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
            what = "classes" if self.prefix == CLASS else "roles"
            raise ConfigurationError(
                f"synthesize: --label: {self.model} was trained with the {what} of its texts (train.prefix): "
                "name them, a public list"
                if self.prefix
                else (f"synthesize: --label: {self.model} has no labels; omit it, or train with train.prefix")
            )

    @property
    def column(self) -> str:
        """What the labels are."""
        return CLASS if self.prefix == CLASS else ROLE

    def promise(self, deviation: float | None, no_guarantee: bool) -> dict[str, Any]:
        """The card of what is written; a histogram is drawn first, where one is asked for."""
        card = promise_of(self.run, self.model)
        why = None if card["holds"] else card["holds_reason"]
        if (audit := audited(self.run, self.model)) is not None and not audit["holds"]:
            why = "an audit proves a larger epsilon than its guarantee"
        if why is not None and not no_guarantee:
            raise GuaranteeError(
                f"{self.model} cannot write text for export: {why}. Train one with a guarantee, or give "
                "--no-guarantee for text that is not exported"
            )
        if why is not None:
            card |= {"holds": False, "holds_reason": why}
        self.histogram = None if deviation is None else self._histogram(deviation)
        if self.histogram is None or not card["holds"]:
            return card
        return promise_of(self.run, self.model)

    def _histogram(self, deviation: float) -> Histogram:
        """The one that was drawn before, or one that is booked, drawn and sealed now."""
        from redactory.training.histogram import require_countable

        if self.prefix != CLASS:
            raise ConfigurationError(
                "synthesize: --histogram counts classes (train.prefix: class); omit it for this model"
            )
        require_countable(self.trainer, self.trainer.relation)
        with lock_run(self.run):  # two at a time would each draw one
            return self._drawn_once(deviation)

    def _drawn_once(self, deviation: float) -> Histogram:
        from redactory.training.histogram import KEPT, Histogram

        if (known := Histogram.of_model(self.run, self.model)) is not None:
            if (known.deviation, *known.counts) != (deviation, *self.labels):
                raise RunStateError(
                    f"synthesize: the histogram of {self.model} was drawn with --histogram "
                    f"{known.deviation:g} and {some(len(known.counts), 'label')} "
                    f"({', '.join(known.counts)}); another one would spend the same again, so give the same "
                    "values"
                )
            return known
        stream = RandomStream.from_entropy()
        self._book(deviation, stream)
        found = Histogram.drawn(counted(self.run, self.trainer), self.labels, deviation, stream)
        model = self.run.model(self.model)
        body = {"format": "redactory-evaluation/1", "evaluation": KEPT, "parent": file_sha256(model.manifest)}
        remove_leftovers(model.result(KEPT).root)
        seal_result(model.result(KEPT), found.to_json(), body)
        return found

    def _book(self, deviation: float, stream: RandomStream) -> None:
        """Book its cost in the budget that the model was trained under, before noise is drawn.

        ``BudgetExceeded`` where that has no room, or is not where the model's training was booked.
        """
        from redactory.training.guarantee.budget import Budget
        from redactory.training.guarantee.spec import ledger_facts, spec_in
        from redactory.training.histogram import Histogram
        from redactory.training.settings import BudgetSettings

        model, title = self.run.model(self.model), f"{self.run.root.name}/{self.model}"
        if (record := read_manifest(model).get("budget")) is None:
            return
        facts = ledger_facts(self.run, model)
        named = {"budget": BudgetSettings.model_validate(record)}
        budget, rows = Budget.of(facts.settings.model_copy(update=named)), spec_in(self.run, facts, None).rows
        assert budget is not None
        budget.require_booked(hash_of(read_records(model.ledger)[0].body), title, _NOT_COUNTED)
        identity = f"histogram-{stream.octets('identity', 0, 16).hex()}"
        budget.reserve(identity, f"{title}/histogram", Histogram(deviation, {}).spending(rows), _NOT_COUNTED)

    def write(self, made: SyntheticFolder, card: Mapping[str, Any], rows: int, seed: int | None) -> dict[str, Any]:
        """The shards, and all that says what they are."""
        from redactory.training import load_model

        seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        trained, quotas = load_model(self.run.model(self.model)), self._quotas(rows)
        found, met = self._written(trained, quotas, seed)
        every, surrogates = without_values(self.run, [text for _, text in found], seed, self.how.drop_suspected)
        texts = {place: text for place, text in enumerate(every) if text is not None}
        drawn = RandomStream.from_seed(seed).permutation("rows", 0, len(every)).tolist()
        order = [place for place in drawn if place in texts]
        columns = {self.column: "string"} if self.prefix else {}
        manifest = self._manifest(card, len(texts), columns, seed)
        make_private_folder(made.public)
        for part, first in enumerate(range(0, len(order), _PART_ROWS)):
            own = order[first : first + _PART_ROWS]
            table = {
                "point_id": [f"synthetic-{first + place}" for place in range(len(own))],
                "text": [texts[i] for i in own],
                **{column: [found[i][0] for i in own] for column in columns},
            }
            shard = pa.table(table, schema=schema_of(manifest, "public"))
            write_part(made.public / part_name(part), shard, PUBLIC_FILE)
        write_json(made.guarantee, card)
        write_text(made.card, synthetic_card(manifest, card))
        files = finish_export(made, manifest)
        told = {key: card.get(key) for key in ("holds", "holds_reason", "epsilon", "delta", "unit")}
        noise = self.histogram and self.histogram.deviation
        counted = {"rows": len(texts), "histogram": noise, "surrogates": surrogates, "lengths_met": met}
        return {**told, **counted, "manifest": file_sha256(made.manifest), "files": len(files)}

    def _manifest(self, card: Mapping[str, Any], rows: int, columns: dict[str, str], seed: int) -> dict[str, Any]:
        """Public constants, the card's promise, and no number of the corpus but noisy ones."""
        curated = read_manifest(self.run)
        how = {key: value for key, value in asdict(self.how).items() if key != "stop"}
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
            "sampling": {**how, "stop": list(self.how.stop), "seed": seed},
            "histogram": None if self.histogram is None else self.histogram.to_json(),
        }

    def _quotas(self, rows: int) -> dict[str, list[int]]:
        """How many texts of each label by the bin of their length; one bin where lengths are as they come."""
        if self.histogram is not None:
            return self.histogram.quotas(rows)
        names = self.labels or ("",)
        more = rows % len(names)
        return {name: [rows // len(names) + (place < more)] for place, name in enumerate(names)}

    def _written(
        self, model: LanguageModel, quotas: Mapping[str, list[int]], seed: int
    ) -> tuple[list[tuple[str, str]], int]:
        """(label, text) of every row, and how many of them have the length that was drawn for them."""
        from redactory.evaluation.generation import generate
        from redactory.training.histogram import length_bin

        found, met = list[tuple[str, str]](), 0
        for place, (label, bins) in enumerate(quotas.items()):
            count = sum(bins) * (SPARE if len(bins) > 1 else 1)
            prompts = (f"{label}:",) if label else ()
            given = (self.how.tokens, self.how.temperature, None, seed + place, prompts, self.progress)
            texts = [self._ended(text) for text in generate(model, count, *given, top_p=self.how.top_p)]
            kept, fitting = (texts, len(texts)) if len(bins) == 1 else fitted(texts, bins, length_bin)
            found += [(label, text) for text in kept]
            met += fitting
        return found, met

    def _ended(self, text: str) -> str:
        """``text`` up to the first stop string."""
        places = (place for one in self.how.stop if one and (place := text.find(one)) >= 0)
        return text[: min(places, default=len(text))].strip()


def counted(run: RunFolder, trainer: Trainer) -> Iterator[tuple[str, str | None]]:
    """(text, class) of every point as ``trainer`` learns it, which is what its figures are about.

    Of ``crt`` that is masked: a secret that π caught bears on no count, as it bears on no step; counted from
    the originals it would, and no miss rate could amplify what is stated.
    """
    from redactory.training.data import classes_of, texts

    for folder in trainer.learns(run):
        yield from zip(texts(run, folder), classes_of(run, folder), strict=True)


def promise_of(run: RunFolder, model: str) -> dict[str, Any]:
    """What holds of ``model`` and its histogram together; no place on this machine."""
    card = guarantee(run.root, [model])
    return {**card, "models": [{**one, "run": Path(one["run"]).name} for one in card["models"]]}


def fitted(texts: Sequence[str], bins: Sequence[int], bin_of: Callable[[str], int]) -> tuple[list[str], int]:
    """Of ``texts`` as many as ``bins`` ask for, of each length as many if there are; how many fit.

    What lacks is made up by texts that are left over, in the order in which they were written.
    """
    left, kept = list(bins), list[str]()
    over: list[str] = []
    for text in texts:
        place = bin_of(text)
        (kept if left[place] > 0 else over).append(text)
        left[place] -= left[place] > 0
    return kept + over[: sum(bins) - len(kept)], len(kept)


# What is found in a text that was written, and each mask, becomes an invented value.


_FORMS = {
    "EMAIL_ADDRESS": (r"e-?mail|@", "mary.miller@example.com"),
    "PHONE_NUMBER": (r"phone|call|mobile|\btel\b", "555-010-2345"),
    "DATE": (r"\b(on|date|born|until|since|dated|as of)\b", "12 March 2021"),
    "ID": (r"number|\bid\b|code|order|account|card|\bpin\b|#", "58213"),
    "LOCATION": (r"\b(street|address|city|in|at|to|from|laws of)\b", "Springfield"),
    "PERSON": ("", "Mary Miller"),
}
"""By what seems to stand where a mask is: words before it that say so, and the form of a value."""
_BEFORE = 30


def without_values(
    run: RunFolder, texts: Sequence[str], seed: int, drop_suspected: bool = False
) -> tuple[list[str | None], int]:
    """``texts`` with what π of ``run`` finds in them, and each mask, replaced; in how many that was.

    None for one that cannot be looked through, and with ``drop_suspected`` for one in which π_c points at
    what π does not mark.
    """
    settings = DetectSettings.read_back(read_manifest(run)["configuration"]["detect"])
    found, replaced = list[str | None](), 0
    stream = RandomStream.from_seed(seed)
    for row, (text, detection) in enumerate(zip(texts, Detector(settings).detect(texts), strict=True)):
        spans = [Found(s.start, s.end, s.label, s.score) for s in detection.strict]
        spans += [Found(*match.span(), _standing(text[: match.start()])) for match in _MASK.finditer(text)]
        if spans:
            # a key for each row: what is put in place of a mask differs from row to row
            key = DigestKey(stream.octets("surrogates", row, 32))
            put = Surrogate(key, settings.language).of_document(str(row), [text])

            def invented(kind: str, value: str, put: Put = put) -> str:
                return put(kind, _FORMS.get(kind, _FORMS["PERSON"])[1] if MASK in value else value)

            text = edited(text, edits(text, spans, invented))
        kept = not (detection.failure or (drop_suspected and _suspected(detection)))
        found.append(text if kept else None)
        replaced += bool(spans and kept)
    return found, replaced


def _suspected(detection: Detection) -> bool:
    """Whether π_c points at a place in which π marks nothing."""
    marked = [(span.start, span.end) for span in detection.strict]
    return any(all(s.end <= a or b <= s.start for a, b in marked) for s in detection.conservative)


def _standing(before: str) -> str:
    """The kind that the words before a mask point at."""
    return next(k for k, (cue, _) in _FORMS.items() if re.search(cue, before[-_BEFORE:], re.IGNORECASE))
