"""What a trained model knows: of held-out text, of planted canaries, of secrets; what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from redactory.evaluation import plots
from redactory.evaluation.labelled import labelled_points, labelled_rows
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.membership import SecretSentence, commonest_label, member_texts
from redactory.evaluation.report import write_report
from redactory.evaluation.utility import accuracy, perplexity
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent, waiting
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.models import named_model, require_training_packages, seal_result
from redactory.pipelines.policy import detect_fates
from redactory.pipelines.readers import Document, InputSettings, find_sources
from redactory.pipelines.readers.documents import RowCounts
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import Cutter, Segment, is_role, of_parts, segmenter, turns_of
from redactory.redaction import RunFolder, part_rows, parts, read_manifest
from redactory.redaction.folder import SyntheticFolder
from redactory.redaction.shards import CLASS, ROLE, read_batches, read_column, read_values
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel
    from redactory.training.chat import ChatCodec

CLASSIFY = "classify"
PROMPT_WORDS, MOST_PROMPTS, MOST_COMPARED = 4, 1_000, 2_000
Result = dict[str, Any]
Labelled = tuple[str, str | None]
"""A text with its class or role."""
Compared = tuple[str, str | None, bool]


@dataclass(frozen=True)
class Evaluated:
    """A finished model that is evaluated: its run, its name, the manifests of both."""

    run: RunFolder
    name: str
    curated: Result
    trained: Result

    @classmethod
    def open(cls, run: str | Path, model: str | None, chats: bool = False) -> Evaluated:
        """One of the finished models of a finished run: ``model``, or the one that is configured.

        ``ConfigurationError`` for a chat model where these are not asked for (``chats``).
        """
        folder = RunFolder(Path(run))
        curated, name = read_manifest(folder), named_model(folder, model)
        require_training_packages()
        trained = read_manifest(folder.model(name))
        if trained["settings"].get("chat") and not chats:
            raise ConfigurationError(
                f"evaluate: {name} was trained on conversations (train.chat), but this would prompt it with "
                "single examples; use evaluate model"
            )
        return cls(folder, name, curated, trained)

    @property
    def task(self) -> str:
        """What it was trained to do."""
        return str(self.trained["settings"]["task"])

    @property
    def cut(self) -> Cutter:
        """The run's segmenter."""
        return segmenter(SegmentSettings.read_back(self.curated["configuration"]["segment"]))

    def load(self) -> LanguageModel:
        """The language model itself."""
        from redactory.training import load_model

        return load_model(self.run.model(self.name))

    def configured(self, key: str, given: Any, what: str) -> Any:
        """``given``, or what the run's configuration names under ``evaluate``."""
        found = given or self.curated["configuration"]["evaluate"][key]
        if not found:
            raise ConfigurationError(f"evaluate.{key}: name {what}")
        return found

    def learnt_from(self) -> tuple[Path, ...]:
        """The data folders that it learnt from: the shards, or the vault."""
        trainer = TRAINERS[self.trained["summary"]["trainer"]]
        return tuple(getattr(self.run, name) for name in trainer.folders)

    def originals(self) -> Iterator[str]:
        """The texts of the run's vault."""
        return texts_in(self.run.vault)

    def held_out(self, paths: Sequence[str], *optional: str) -> Iterator[tuple[str, str | None, str | None]]:
        """The text, class and role of every point of a held-out corpus, cut as the run's own is.

        A manifest names every column, and one that is named must be there; of ``optional`` none is read.
        """
        for entry, points in self._documents(paths, optional):
            for point in points:
                yield point.text, entry.label, point.speaker if is_role(point.speaker) else None

    def conversations(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """What a chat model is asked of a held-out corpus, as it is and masked: conversations, or turns.

        Examples of one turn are joined by a space, as the model has learnt them.
        """
        found = [
            [(turn, role, point.text) for (turn, role), point in zip(turns_of(points), points, strict=True)]
            for _, points in self._documents(paths, ("id", "user", "label"))
        ]
        if self.trained["settings"]["chat"]["example"] == "turn":
            found = [[point] for points in found for point in points]
        given = [text for points in found for _, _, text in points]
        masked = iter([text for _, text in detect_fates(self.curated)(given)])
        hidden = [[(turn, role, next(masked)) for turn, role, _ in points] for points in found]
        as_is, as_masked = ([_conversation(points) for points in each] for each in (found, hidden))
        return as_is, as_masked

    def _documents(self, paths: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[Document, list[Segment]]]:
        given = self.curated["configuration"]["input"].items()
        never = ("metadata_columns", "allow_personal_columns", "emit_document_order", *optional)
        columns = {key: value for key, value in given if key not in never}
        settings = InputSettings.read_back({**columns, "path": tuple(paths)})
        cut = of_parts(self.cut) if settings.has_parts else self.cut
        counts = RowCounts(settings)
        for source in find_sources(settings.path, settings.format, key="evaluate.test"):
            for entry in counts.read(source):
                if isinstance(entry, Document):
                    yield entry, cut(entry.text)
        # a model is not measured on a part of a file
        if counts.damage:
            raise counts.damage[0]
        counts.check()

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """The columns that no held-out row needs: that of the class, but where texts were read with it."""
        return () if self.trained["settings"].get("prefix") == CLASS else ("label",)

    def compared(
        self, held_out: Sequence[tuple[str, str | None, str | None]], seed: int, progress: Progress
    ) -> tuple[list[Compared], list[Compared]]:
        """At most :data:`MOST_COMPARED` held-out texts, and originals, drawn alike, each with class or role.

        As the model reads them: where policies decide what is learnt with noise they are masked.  The last of
        the three says whether the text is: what is public, the model may show.
        """
        by_class = self.trained["settings"].get("prefix") == CLASS
        order = RandomStream.from_seed(seed).permutation("held out", 0, len(held_out))[:MOST_COMPARED]
        theirs = [(held_out[i][0], held_out[i][1 if by_class else 2]) for i in order.tolist()]
        total = sum(map(part_rows, parts(self.run.vault)))
        chosen = np.sort(RandomStream.from_seed(seed).permutation("learnt", 0, total)[:MOST_COMPARED])
        learnt, first = list[Labelled](), 0
        for batch in read_batches(self.run.vault):
            own = chosen[(chosen >= first) & (chosen < first + len(batch))] - first
            for row in batch.take(own).to_pylist():
                role = row["speaker"] if is_role(row["speaker"]) else None
                learnt.append((row["text"], row.get(CLASS) if by_class else role))
            first += len(batch)
        if not TRAINERS[self.trained["summary"]["trainer"]].by_policy:
            return [(*row, True) for row in theirs], [(*row, True) for row in learnt]
        fates = detect_fates(self.curated)

        def masked(rows: Sequence[Labelled]) -> list[Compared]:
            judged = zip(rows, fates([text for text, _ in rows]), strict=True)
            return [(text, label, side == "private") for (_, label), (side, text) in judged]

        with waiting(progress, "mask by the policies"):
            return masked(theirs), masked(learnt)

    def keep(
        self,
        evaluation: str,
        measure: Callable[[], Mapping[str, Any]],
        picture: str = "",
        plot: Callable[..., str] | None = None,
    ) -> Result:
        """Measure, seal the result in the model's folder with its picture, and render the report again.

        An error that quotes text is sealed.
        """

        def work() -> Result:
            result = {"run": str(self.run.root), "model": self.name, **measure()}
            model = self.run.model(self.name)
            body = {"format": "redactory-evaluation/1", "evaluation": evaluation}
            drawn = plots.pictures(picture, plot, result) if plot else {}
            parent = {"parent": file_sha256(model.manifest)}
            seal_result(model.result(evaluation), result, {**body, **parent}, drawn)
            write_report(self.run)
            return result

        return sealed(self.run.state, work)


def _conversation(points: Sequence[tuple[int, str | None, str]]) -> str:
    """The points of one document, each with its turn and role, as one text."""
    from redactory.training.chat import joined

    by_turn = groupby(points, lambda point: point[:2])
    return joined((role, " ".join(text for _, _, text in said)) for (_, role), said in by_turn)


def texts_in(folder: Path) -> Iterator[str]:
    """The texts of a data folder of a run, in order, a row group at a time."""
    return (text for (text,) in read_values(folder, "text"))


def evaluate_model(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> Result:
    """Perplexity of a model on held-out text, as it is and masked by π; of a classifier its test error rate.

    ``test`` (the run's ``evaluate.test`` by default) is in the columns and segments of the run's
    configuration. Returns {as_is, masked} of :func:`redactory.evaluation.utility.perplexity`, and whether
    the model ``learnt_masked`` text alone, which is no measure of text as it is; or
    :func:`redactory.evaluation.utility.accuracy`, each point having its row's class.  Of a chat model the
    texts are conversations, or turns where it learnt these, and what counts is what it learnt to say.
    """
    own = Evaluated.open(run, model, chats=True)
    paths = own.configured("test", test, "a held-out corpus there, or with --test")

    def of_words() -> Result:
        from redactory.training.data import with_role

        if chat := own.trained["settings"].get("chat"):
            with waiting(progress, "mask by the policies"):
                both = dict(zip(("as_is", "masked"), own.conversations(paths), strict=True))
            trained = own.load()
            codec = replace(cast("ChatCodec", trained.tokenizer), learn=chat["loss_on"])
            return measured(trained, both, codec)
        found = list(own.held_out(paths, "id", "user", *own.unlabelled))
        texts = [text for text, _, _ in found]
        with waiting(progress, "mask by the policies"):
            masked = [text for _, text in detect_fates(own.curated)(texts)]
        if read := own.trained["settings"].get("prefix"):
            roles = [label if read == CLASS else role for _, label, role in found]
            texts, masked = (list(map(with_role, given, roles)) for given in (texts, masked))
        trained, both = own.load(), {"as_is": texts, "masked": masked}
        return measured(trained, both)

    def measured(trained: Any, both: Mapping[str, Any], *codec: Any) -> Result:
        known = TRAINERS[own.trained["settings"]["trainer"]]
        results = {name: perplexity(trained, texts, progress, *codec) for name, texts in both.items()}
        return {**results, "learnt_masked": "vault" not in (known.noised, *known.plain)}

    def of_classes() -> Result:
        from redactory.training.model import load_classifier

        points = list(own.held_out(paths, "id", "user"))
        trained = load_classifier(own.run.model(own.name))
        return accuracy(trained, [text for text, _, _ in points], [label for _, label, _ in points], progress)

    if own.task == CLASSIFY:
        return own.keep("accuracy", of_classes)
    return own.keep("perplexity", of_words)


def evaluate_canary(
    run: str | Path,
    model: str | None = None,
    canaries: str | Path | None = None,
    progress: Progress = silent,
    samples: int = 20_000,
    seed: int = 0,
) -> Result:
    """Exposure of the canaries of a simulated corpus, and the copies that curation left of each.

    Exact up to a million candidates; of more, ``samples`` are drawn by ``seed``.
    """
    own = Evaluated.open(run, model)
    path = Path(own.configured("canaries", canaries, "a FILE.canaries.json there, or with --canaries"))
    try:
        planted: Result = read_json(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "this is not JSON"
        raise InputError(f"{path} cannot be read as canaries: {problem}; give the file of redactory simulate") from None

    def measure() -> Result:
        from redactory.evaluation.canary import canary_copies_left, canary_exposure

        left = canary_copies_left(own.learnt_from(), planted)
        # what stands in a shard was not masked, whoever learns from the shards
        missed = [n > 0 for n in canary_copies_left((own.run.public, own.run.private), planted)]
        return canary_exposure(own.load(), planted, left, progress, samples, seed, missed)

    return own.keep("canary", measure, "exposure.svg", plots.exposure_plot)


# Attacks: membership inference, and which secrets of the vault a model writes by itself.


def evaluate_membership(
    run: str | Path,
    model: str | None = None,
    *,
    secrets: str | Path | None = None,
    others: str | Path | None = None,
    label: str | None = None,
    reference: str | Path | None = None,
    count: int = 1_000,
    group_size: int = 20,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Individual and group membership inference (CRT, appendix A.5) on a model of a finished run.

    ``secrets`` holds labelled rows of this corpus (the run's ``evaluate.labelled`` by default), ``label`` is
    the kind of secret (the one with the most values). ``others`` is a labelled file of values never trained
    on; without it values of the same form are drawn; none of them stands in the originals. ``reference`` is
    another model of this run, or a run with a model of this one's name. Returns
    :func:`redactory.evaluation.membership.membership` with {label, fresh_values, reference_model}; no text.
    """
    own = Evaluated.open(run, model)
    labelled = own.configured("labelled", secrets, "a file of labelled rows there, or with --secrets")
    if count < 4 or group_size < 1:
        raise ConfigurationError("count must be at least 4, group_size at least 1")
    compared = None
    if reference is not None:
        if str(reference) == own.name:
            raise ConfigurationError("reference: give a model other than the attacked one")
        other = (reference, own.name) if Path(reference).is_dir() else (run, str(reference))
        compared = Evaluated.open(*other)

    def measure() -> Result:
        from redactory.evaluation.membership import membership

        sentences = _sentences(own, Path(labelled), label)
        kind = sentences[0].label
        members, strangers = member_texts(sentences, _fresh(own, kind, others, seed), count, seed)
        found = membership(
            own.load(),
            members,
            strangers,
            reference=compared.load() if compared else None,
            group_size=group_size,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
        fresh = "drawn" if others is None else "file"
        about = {"label": kind, "fresh_values": fresh, "reference_model": compared.name if compared else None}
        return about | found

    return own.keep("membership", measure, "roc.svg", plots.membership_plot)


def _sentences(own: Evaluated, labelled: Path, label: str | None) -> list[SecretSentence]:
    """The points of the labelled rows that stand in the vault and hold a whole secret of ``label``."""
    found = [
        SecretSentence(text, span["start"], span["end"], span["label"])
        for row in labelled_rows(labelled)
        for text, spans in labelled_points(row, own.cut)
        for span in spans
    ]
    trained = {one.text for one in found}.intersection(own.originals())
    kept = [one for one in found if one.text in trained]
    if not kept:
        raise InputError(f"{labelled.name}: none of its labelled secrets occurs in the originals of this run")
    kind = label or commonest_label(kept)
    chosen = [one for one in kept if one.label == kind]
    if not chosen:
        raise InputError(f"{labelled.name}: no secret labelled {kind} occurs in the originals of this run")
    return chosen


def _fresh(
    own: Evaluated, kind: str, others: str | Path | None, seed: int
) -> Callable[[Sequence[SecretSentence]], Sequence[str | None]]:
    def drawn(exchanged: Sequence[SecretSentence]) -> Sequence[str | None]:
        from redactory.evaluation.extraction import control_values

        return control_values([(kind, one.value) for one in exchanged], lambda v: _present(own, v), seed)

    def from_file(exchanged: Sequence[SecretSentence]) -> Sequence[str | None]:
        rows = labelled_rows(Path(str(others)))
        spans = ((row["text"], s) for row in rows for s in row["spans"] if s["label"] == kind)
        values = list(dict.fromkeys(text[span["start"] : span["end"]] for text, span in spans))
        present = _present(own, values)
        left = (value for value in values if value not in present)
        return [next(left, None) for _ in exchanged]

    return drawn if others is None else from_file


def _present(own: Evaluated, values: list[str]) -> Collection[str]:
    """Those of ``values`` that stand in the run's originals, in any place and case."""
    found = {values[index].casefold() for index in ValueSearch(values).count(own.originals())}
    return {value for value in values if value.casefold() in found}


def evaluate_extraction(
    run: str | Path,
    model: str | None = None,
    samples: int = 1_000,
    tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    completions: int = 500,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Texts that the model writes, searched for the secrets of the run's vault, beside values never seen.

    ``samples`` texts of at most ``tokens`` tokens are drawn at ``temperature`` from the ``top_k`` likeliest
    tokens (all by default): half without a prompt, half after the first words of public points.  Of
    ``completions`` secrets the model is given the words before.  Returns the counts of
    :func:`redactory.evaluation.extraction.extraction`; no text.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    own = Evaluated.open(run, model)

    def measure() -> Result:
        from redactory.evaluation import extraction as e

        trained, secrets = own.load(), e.vault_secrets(own.run, own.learnt_from())
        named = [(secret.label, secret.value) for secret in secrets]
        controls = e.control_values(named, lambda values: _present(own, values), seed)
        settings = e.ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        texts = read_column(own.run.public, "text")
        order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))[:MOST_PROMPTS]
        prompts = [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order.tolist()]
        return e.extraction(trained, secrets, controls, settings, prompts, progress)

    return own.keep("extraction", measure, "extraction.svg", plots.extraction_plot)


# Text that a model wrote: what it is worth, and what it shows.


def evaluate_synthetic(
    run: str | Path,
    corpus: str | Path,
    model: str | None = None,
    *,
    test: Sequence[str] = (),
    canaries: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Result:
    """Measure what ``synthesize`` wrote into the folder ``corpus``, beside held-out text; export asks for it.

    ``test`` and ``canaries`` are the run's ``evaluate.test`` and ``evaluate.canaries`` by default; without
    canaries none are looked for.  Texts are compared as the model was trained on them: those of a trainer
    that goes by policies masked, and the private ones alone.  Returns {corpus, rows} and what
    :func:`redactory.evaluation.synthetic.worth` and :func:`~redactory.evaluation.synthetic.leaks` say.
    """
    own, folder = Evaluated.open(run, model), SyntheticFolder(Path(corpus))
    said, trained = read_manifest(folder), own.run.model(own.name).manifest
    if said.get("model_manifest") != file_sha256(trained):
        raise ConfigurationError(f"{folder.root} was not written by {own.name} of {own.run.root}: give --model")
    paths = own.configured("test", test, "a held-out corpus there, or with --test")
    planted = canaries or own.curated["configuration"]["evaluate"].get("canaries")

    def measure() -> Result:
        from redactory.evaluation import synthetic as s

        held_out = [(text, label, role) for text, label, role in own.held_out(paths, "id", "user", *own.unlabelled)]
        written = [
            (row["text"], row.get(CLASS, row.get(ROLE)))
            for batch in read_batches(folder.public)
            for row in batch.to_pylist()
        ]
        both = own.compared(held_out, seed, progress)
        rows, real = ([(text, label) for text, label, _ in group] for group in both)
        others, members = ([text for text, _, noised in group if noised] for group in both)
        ours, language = [text for text, _ in written], own.curated["configuration"]["detect"]["language"]
        numbers = None if planted is None else read_json(Path(planted))
        features = partial(s.public_features, language=language)
        with waiting(progress, "compare what was written"):
            return {
                "corpus": file_sha256(folder.manifest),
                "rows": len(written),
                "epsilon": read_json(folder.guarantee)["epsilon"],
                **s.worth(written, real, rows, said.get("labels", ()), features, seed),
                **s.leaks(ours, members, others, numbers, seed=seed),
            }

    return own.keep("synthetic", measure)
