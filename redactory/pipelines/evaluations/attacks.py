"""Attacks on a trained model: membership, extraction, and the one-run audit of its epsilon."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.labelled import labelled_points, labelled_rows
from redactory.evaluation.membership import SecretSentence, commonest_label, member_texts
from redactory.evaluation.one_run_audit import TEMPLATE, Coins, Form, coins_file, plant, read_coins
from redactory.evaluation.plots import extraction_plot, membership_plot, pictures
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import SegmentSettings
from redactory.pipelines.evaluations.model import Evaluated, Result
from redactory.pipelines.models import named_model
from redactory.pipelines.segment import segmenter
from redactory.redaction import RunFolder, read_manifest
from redactory.redaction.shards import read_batches, read_column
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel

COUNT, GROUP_SIZE = 1_000, 20
PROMPT_WORDS, MOST_PROMPTS = 4, 1_000


def _texts_in(folder: Path) -> Iterable[str]:
    return (text for batch in read_batches(folder, ["text"]) for text in batch.column(0).to_pylist())


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
) -> Result:
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
    own = Evaluated.open(run, model)
    labelled = own.configured("labelled", secrets, "--secrets", "a JSONL file with true spans")
    if count < 4 or group_size < 1:
        raise ConfigurationError("count must be at least 4, group_size at least 1")
    compared = None if reference is None else _reference(own, reference)

    def measure() -> Result:
        from redactory.evaluation.membership import membership

        sentences, kind = _sentences(own, Path(labelled), label)
        members, strangers = member_texts(sentences, _fresh(own.run, kind, others, seed), count, seed)
        return {
            "label": kind,
            "fresh_values": "drawn" if others is None else "file",
            "reference_model": compared.name if compared else None,
            **membership(
                own.load(),
                members,
                strangers,
                reference=compared.load() if compared else None,
                group_size=group_size,
                confidence=confidence,
                seed=seed,
                progress=progress,
            ),
        }

    return own.keep("membership", measure, lambda result: pictures("roc.svg", membership_plot, result))


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
    return {value for text in _texts_in(run.vault) for _, value in automaton.iter(text)}


def _sentences(own: Evaluated, labelled: Path, label: str | None) -> tuple[list[SecretSentence], str]:
    """The points of the labelled rows that stand in the vault and hold a whole secret of ``label``."""
    cut = segmenter(SegmentSettings.read_back(own.manifest["configuration"]["segment"]))
    found = [
        SecretSentence(text, span["start"], span["end"], span["label"])
        for row in labelled_rows(labelled)
        for text, spans in labelled_points(row, cut)
        for span in spans
    ]
    trained = {one.text for one in found}.intersection(_texts_in(own.run.vault))
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
        rows = labelled_rows(Path(str(others)))
        spans = ((row["text"], s) for row in rows for s in row["spans"] if s["label"] == kind)
        values = list(dict.fromkeys(text[span["start"] : span["end"]] for text, span in spans))
        there = standing(run, values)
        left = (value for value in values if value not in there)
        return [next(left, None) for _ in exchanged]

    return drawn if others is None else from_file


def _reference(own: Evaluated, reference: str | Path) -> Evaluated:
    there = Path(reference)
    if there.is_dir():
        return Evaluated.open(there, own.name)
    if str(reference) == own.name:
        raise ConfigurationError("reference: another model than the one that is attacked")
    return Evaluated(own.run, named_model(own.run, str(reference)), own.manifest)


# Which secrets of the vault a trained model writes by itself.


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
    ``completions`` secrets the model is given the words before.  Secrets, controls and what is written stay
    in memory; the result, that of :func:`redactory.evaluation.extraction.extraction` with {run, model}, holds
    counts.

    ``ConfigurationError`` for arguments out of range; ``InputError`` where the model tells classes.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    own = Evaluated.open(run, model)

    def measure() -> Result:
        from redactory.evaluation.extraction import (
            ExtractionSettings,
            control_values,
            extraction,
            vault_secrets,
        )

        trained = own.load()
        secrets = vault_secrets(own.run, own.learnt_from())
        named = [(secret.label, secret.value) for secret in secrets]
        controls = control_values(named, lambda values: _in_any_case(own.run, values), seed)
        settings = ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        return extraction(trained, secrets, controls, settings, public_prompts(own.run, seed), progress)

    return own.keep("extraction", measure, lambda result: pictures("extraction.svg", extraction_plot, result))


def public_prompts(run: RunFolder, seed: int = 0) -> list[str]:
    """The first words of public points, at most a thousand of them, drawn at random."""
    texts = read_column(run.public, "text")
    order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))
    return [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order[:MOST_PROMPTS].tolist()]


def _in_any_case(run: RunFolder, values: list[str]) -> Collection[str]:
    """Those of ``values`` that stand in the vault, in any place and case."""
    from redactory.evaluation.linkage import ValueSearch

    search = ValueSearch(values)
    found: set[int] = set()
    for text in _texts_in(run.vault):
        found.update(search.in_text(str(text)))
    return {values[index] for index in found}


# The least epsilon that a model shows, beside the most that its guarantee states.


_OF_USERS = ("users", "both", "either")
_OF_SECRETS = ("epsilon_substitution", "epsilon")


def audit_plant(
    corpus: str | Path,
    out: str | Path,
    *,
    canaries: int = 1_000,
    form: Form = "pair",
    template: str = TEMPLATE,
    seed: int | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> Result:
    """Copy a corpus of JSON lines with canaries in it, whose coins :func:`evaluate_audit` then guesses.

    As :func:`redactory.evaluation.one_run_audit.plant`, whose result this is.  To be curated is the copy.
    The file of the coins lies beside it and must stay out of the corpus.
    """
    return plant(Path(corpus), Path(out), canaries, form, template, seed, columns, progress)


def evaluate_audit(
    run: str | Path,
    model: str | None = None,
    *,
    coins: str | Path | None = None,
    confidence: float = 0.95,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Guess the coins of the planted canaries from a model, and bound its epsilon from below.

    ``coins`` is the file that :func:`audit_plant` wrote; by default the one beside the run's input.  Delta
    is that of the model's guarantee card.

    Returns {run, model, form, planted, standing, public, epsilon_upper, upper_field, comparable, reason,
    holds, guarantee_p_value} and what :func:`redactory.evaluation.one_run_audit.audit_scores` returns.
    ``epsilon_upper`` is the card's figure ``upper_field`` for the two worlds that a coin stands for; where
    there is none, ``comparable`` is false and ``reason`` says why.  ``holds`` is false where
    ``epsilon_lower`` is above ``epsilon_upper``: to a guarantee that is true that happens with probability
    at most 1 - ``confidence``.  ``guarantee_p_value`` is a sharper test of the same: so likely, at most, are
    so many right guesses if the mechanism of the ledger is what ran (its whole privacy curve, in place of
    one ε); null where there is no such curve of one row.
    ``InputError`` where none of the planted sentences stands in the run.
    """
    own = Evaluated.open(run, model)
    planted = read_coins(Path(coins) if coins is not None else _beside(own.manifest))

    def measure() -> Result:
        from redactory.evaluation.one_run_audit import audit_scores
        from redactory.training import guarantee_card

        card = guarantee_card(own.run, own.name)
        where = _places(own.run, planted)
        scores = audit_guesses(own.load(), planted, progress)
        found = audit_scores(scores, np.array(planted.coins), card["delta"], confidence)
        upper = upper_bound_of(card, planted.form, where["public"])
        return {
            "form": planted.form,
            **where,
            **found,
            **upper,
            "holds": not upper["comparable"] or found["epsilon_lower"] <= upper["epsilon_upper"],
            "guarantee_p_value": _p_value(own.run, own.name, found, upper["upper_field"]),
        }

    return own.keep("audit", measure)


def audit_guesses(model: LanguageModel, coins: Coins, progress: Progress = silent) -> NDArray[np.float64]:
    """A score a canary, positive where the model speaks for a true coin: float64 [m].

    ``pair``: by how much likelier the first number's sentence is than the second's.  Else: by how much
    likelier the number's sentence is than half of all numbers' are, of which about half were planted.
    """
    texts = [coins.sentence(digits) for pair in coins.numbers for digits in pair]
    found = np.array([one.sum() for one in model.token_log_probs(texts)])
    progress("audit", len(texts), len(texts), "sentences")
    first, second = found[0::2], found[1::2]
    scores = np.asarray(first - (second if coins.form == "pair" else np.median(first)))
    if not np.isfinite(scores).all():
        raise InputError("audit: the model gives some canary no probability that a float can hold")
    return scores


def upper_bound_of(card: Mapping[str, Any], form: Form, public: int) -> dict[str, Any]:
    """{epsilon_upper, upper_field, comparable, reason} of a guarantee card for canaries of this ``form``.

    A secret's two worlds are numbers exchanged (``epsilon_substitution``) or a number and its mask
    (``epsilon``); a user's are that user and nobody (``epsilon_sound``).  ``public`` canaries stand in public
    points of the run.
    """
    field = {"pair": "epsilon_substitution", "masked": "epsilon", "absent": "epsilon_sound"}[form]
    of_units = "epsilon_sound" in card
    value, reason = card.get(field), None
    if card.get(field if field in card else "epsilon") is None:
        reason = card["reasons"].get(field) or card["reasons"].get("epsilon") or "the card states no epsilon"
    elif of_units and (form != "absent" or card["protect"] not in _OF_USERS):
        reason = "the guarantee compares units that are there or not: plant form absent, for users"
    elif not of_units and form == "absent":
        reason = "the guarantee compares a secret with another or with its mask: plant form pair or masked"
    elif public and TRAINERS[card["trainer"]].by_policy:
        reason = f"{public} canaries stand in public points, for which nothing is promised"
    return {
        "epsilon_upper": None if reason else value,
        "upper_field": None if reason else field,
        "comparable": reason is None,
        "reason": reason,
    }


def _p_value(run: RunFolder, name: str, found: Mapping[str, Any], upper_field: str | None) -> float | None:
    """By the best share, times the number of shares; None where a mechanism has no curve of one row."""
    from redactory.evaluation.one_run_audit import curve_level, curve_p_value
    from redactory.training.accounting import Spending
    from redactory.training.accounting.curve import privacy_curve
    from redactory.training.guarantee.ledgerfacts import ledger_facts
    from redactory.training.mechanism import PoissonGaussian, Relation

    facts = ledger_facts(run, run.model(name))
    rows = facts.spec(read_manifest(run)["dedup"]).rows
    if upper_field not in _OF_SECRETS or not isinstance(facts.mechanism, PoissonGaussian) or rows > 1:
        return None
    relation = Relation.SUBSTITUTION if upper_field == "epsilon_substitution" else facts.trainer.relation
    level = curve_level(privacy_curve((Spending(facts.mechanism, facts.steps),), relation))
    every = [curve_p_value(found["canaries"], s["guesses"], s["correct"], level) for s in found["by_share"]]
    return min(1.0, len(every) * min(every))


def _places(run: RunFolder, coins: Coins) -> dict[str, int]:
    """How many sentences were planted, stand in the originals, and stand in public points."""
    planted = list(coins.planted())
    there, public = (set(planted).intersection(_texts_in(folder)) for folder in (run.vault, run.public))
    if not there:
        raise InputError(
            "coins: none of the planted sentences stands in this run; was the planted copy curated?"
        )
    return {
        "planted": len(planted),
        "standing": sum(sentence in there for sentence in planted),
        "public": sum(sentence in public for sentence in planted),
    }


def _beside(manifest: Mapping[str, Any]) -> Path:
    paths = [coins_file(Path(path)) for path in manifest["configuration"]["input"]["path"]]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        raise ConfigurationError(
            f"coins: {len(found) or 'no'} .coins.json beside the run's input; name the file with --coins"
        )
    return found[0]
