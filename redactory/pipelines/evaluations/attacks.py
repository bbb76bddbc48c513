"""Evaluate membership: can a model's training secrets be told from others of the same form?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from redactory.evaluation.membership import SecretSentence, commonest_label, member_texts
from redactory.evaluation.plots import extraction_plot, membership_plot, pictures
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.evaluations.model import keep_result, open_model, trained_on
from redactory.pipelines.labelled import labelled_points, labelled_rows
from redactory.pipelines.models import named_model
from redactory.pipelines.sealed import sealed
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder
from redactory.redaction.shards import read_batches, read_column

COUNT, GROUP_SIZE = 1_000, 20
Named = tuple[RunFolder, str]
"""A model by its run and its name."""


def evaluate_membership(
    run: str | Path,
    model: str | None = None,
    *,
    secrets: str | Path | None = None,
    others: str | Path | None = None,
    label: str | None = None,
    reference: str | Path | None = None,
    count: int = COUNT,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Individual and group membership inference (CRT, appendix A.5) on a model of a finished run.

    ``secrets`` is JSON lines with true spans of this corpus (the run's ``evaluate.labelled`` by default),
    ``label`` the kind of secret, the one with the most different values by default.  ``others`` is a labelled
    file whose values stand for secrets that were never trained on; without it values of the same form are
    drawn.  None of them stands in the run's originals, and every sentence that counts as trained on does.
    ``reference`` is another model of this run, or the folder of a run with a model of this one's name: the
    stronger attack compares the two.

    The result is that of :func:`redactory.evaluation.membership.membership` with {run, model, label,
    fresh_values: "file" | "drawn", reference_model}; figures and counts, no text.
    """
    folder, name, manifest = open_model(run, model)
    labelled = secrets or manifest["configuration"]["evaluate"]["labelled"]
    if labelled is None:
        raise ConfigurationError(
            "evaluate.labelled: name a JSONL file with true spans there, or with --secrets"
        )
    if count < 4 or group_size < 1:
        raise ConfigurationError("count must be at least 4, group_size at least 1")
    compared = _reference(folder, name, reference)

    def measure() -> dict[str, Any]:
        sentences, kind = _sentences(folder, manifest, Path(labelled), label)
        members, strangers = member_texts(sentences, _fresh(folder, kind, others, seed), count, seed)
        asked: dict[str, Any] = {"group_size": group_size, "confidence": confidence, "seed": seed}
        return {
            "run": str(folder.root),
            "model": name,
            "label": kind,
            "fresh_values": "drawn" if others is None else "file",
            "reference_model": compared[1] if compared else None,
            **_attacked((folder, name), compared, members, strangers, progress=progress, **asked),
        }

    return sealed(folder.state, keep_result, folder, name, "membership", measure, _draw)


def _attacked(
    own: Named, compared: Named | None, members: Sequence[str], strangers: Sequence[str], **asked: Any
) -> dict[str, Any]:
    from redactory.evaluation.membership import membership
    from redactory.training import load_model

    reference = load_model(compared[0].model(compared[1])) if compared else None
    return membership(load_model(own[0].model(own[1])), members, strangers, reference=reference, **asked)


def standing(run: RunFolder, values: Iterable[str]) -> set[str]:
    """Those of ``values`` that stand anywhere in the run's originals; nothing of them is kept."""
    import ahocorasick

    automaton = ahocorasick.Automaton()
    for value in values:
        if value:
            automaton.add_word(value, value)
    if not len(automaton):
        return set()
    automaton.make_automaton()
    texts = (text for batch in read_batches(run.vault, ["text"]) for text in batch.column(0).to_pylist())
    return {value for text in texts for _, value in automaton.iter(text)}


def _sentences(
    run: RunFolder, manifest: dict[str, Any], labelled: Path, label: str | None
) -> tuple[list[SecretSentence], str]:
    """The points of the labelled rows that stand in the vault and hold a whole secret of ``label``."""
    cut = segmenter(SegmentSettings.model_validate(manifest["configuration"]["segment"]))
    found = [
        SecretSentence(text, span["start"], span["end"], span["label"])
        for row in labelled_rows(labelled)
        for text, spans in labelled_points(row, cut)
        for span in spans
    ]
    wanted = {one.text for one in found}
    batches = read_batches(run.vault, ["text"])
    trained = wanted.intersection(t for batch in batches for t in batch.column(0).to_pylist())
    kept = [one for one in found if one.text in trained]
    if not kept:
        raise InputError(f"{labelled.name}: no labelled secret of it stands in this run's originals")
    kind = label or commonest_label(kept)
    chosen = [one for one in kept if one.label == kind]
    if not chosen:
        raise InputError(f"{labelled.name}: no secret with the label {kind} stands in this run's originals")
    return chosen, kind


def _fresh(
    run: RunFolder, kind: str, others: str | Path | None, seed: int
) -> Callable[[Sequence[SecretSentence]], Sequence[str | None]]:
    def drawn(exchanged: Sequence[SecretSentence]) -> Sequence[str | None]:
        from redactory.evaluation.extraction import control_values

        return control_values([(kind, one.value) for one in exchanged], lambda v: standing(run, v), seed)

    def from_file(exchanged: Sequence[SecretSentence]) -> Sequence[str | None]:
        values = list(dict.fromkeys(_values(Path(str(others)), kind)))
        there = standing(run, values)
        left = (value for value in values if value not in there)
        return [next(left, None) for _ in exchanged]

    return drawn if others is None else from_file


def _values(path: Path, kind: str) -> Iterator[str]:
    for row in labelled_rows(path):
        yield from (row["text"][s["start"] : s["end"]] for s in row["spans"] if s["label"] == kind)


def _reference(run: RunFolder, name: str, reference: str | Path | None) -> Named | None:
    if reference is None:
        return None
    there = Path(reference)
    if there.is_dir():
        other = RunFolder(there)
        return other, named_model(other, name)
    if str(reference) == name:
        raise ConfigurationError("reference: another model than the one that is attacked")
    return run, named_model(run, str(reference))


def _draw(result: dict[str, Any]) -> dict[str, str]:
    return pictures("roc.svg", membership_plot, result)


# Evaluate extraction: which secrets of the vault a trained model writes by itself.


PROMPT_WORDS, MOST_PROMPTS = 4, 1_000


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
) -> dict[str, Any]:
    """Texts that the model writes, searched for the secrets of the run's vault, beside values never seen.

    ``samples`` texts of at most ``tokens`` tokens are drawn at ``temperature`` from the ``top_k`` likeliest
    tokens (all by default): half without a prompt, half after the first words of public points.  Of
    ``completions`` secrets the model is given the words before.  Secrets, controls and what is written stay
    in memory; the result, that of :func:`redactory.evaluation.extraction.extraction` with {run, model}, holds
    counts.

    ``ConfigurationError`` for arguments out of range; ``InputError`` where the model tells classes.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    folder, name, _ = open_model(run, model)

    def measure() -> dict[str, Any]:
        from redactory.evaluation.extraction import (
            ExtractionSettings,
            control_values,
            extraction,
            vault_secrets,
        )
        from redactory.training import load_model

        trained = load_model(folder.model(name))
        secrets = vault_secrets(folder, trained_on(folder, name))
        named = [(secret.label, secret.value) for secret in secrets]
        controls = control_values(named, lambda values: _standing(folder, values), seed)
        settings = ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        found = extraction(trained, secrets, controls, settings, public_prompts(folder, seed), progress)
        return {"run": str(folder.root), "model": name, **found}

    return sealed(folder.state, keep_result, folder, name, "extraction", measure, _drawn)


def public_prompts(run: RunFolder, seed: int = 0) -> list[str]:
    """The first words of public points, at most a thousand of them, drawn at random."""
    texts = read_column(run.public, "text")
    order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))
    return [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order[:MOST_PROMPTS].tolist()]


def _standing(run: RunFolder, values: list[str]) -> Collection[str]:
    """Those of ``values`` that stand in the vault, in any place and case."""
    from redactory.evaluation.linkage import ValueSearch

    search = ValueSearch(values)
    found: set[int] = set()
    for batch in read_batches(run.vault, ["text"]):
        for text in batch.column(0).to_pylist():
            found.update(search.in_text(str(text)))
    return {values[index] for index in found}


def _drawn(result: dict[str, Any]) -> dict[str, str]:
    return pictures("extraction.svg", extraction_plot, result)
