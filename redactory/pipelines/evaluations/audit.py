"""Evaluate audit: the least epsilon that a model shows, beside the most that its guarantee states."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.one_run_audit import TEMPLATE, Coins, Form, coins_file, plant, read_coins
from redactory.evaluation.plots import audit_plot, pictures
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.evaluations.model import keep_result, open_model
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, read_manifest
from redactory.redaction.shards import read_batches

if TYPE_CHECKING:
    from redactory.training import LanguageModel

_OF_USERS = ("users", "both", "either")
_OF_SECRETS = ("epsilon_substitution", "epsilon")
_BY_POLICY = ("crt", "crt-drop")


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
) -> dict[str, Any]:
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
    folder, name, manifest = open_model(run, model)
    planted = read_coins(Path(coins) if coins is not None else _beside(manifest))

    def measure() -> dict[str, Any]:
        from redactory.evaluation.one_run_audit import audit_scores
        from redactory.training import guarantee_card, load_model

        card = guarantee_card(folder, name)
        where = _places(folder, planted)
        scores = audit_guesses(load_model(folder.model(name)), planted, progress)
        found = audit_scores(scores, np.array(planted.coins), card["delta"], confidence)
        upper = upper_bound_of(card, planted.form, where["public"])
        lower = found["epsilon_lower"]
        return {
            "run": str(folder.root),
            "model": name,
            "form": planted.form,
            **where,
            **found,
            **upper,
            "holds": not upper["comparable"] or lower <= upper["epsilon_upper"],
            "guarantee_p_value": _p_value(folder, name, found, upper["upper_field"]),
        }

    return sealed(folder.state, keep_result, folder, name, "audit", measure, _draw)


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
    (``epsilon``); a user's are she and nobody (``epsilon_sound``).  ``public`` canaries stand in public
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
    elif public and card["trainer"] in _BY_POLICY:
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
    from redactory.training.accounting.tradeoff import privacy_curve
    from redactory.training.ledgerfacts import ledger_facts
    from redactory.training.mechanism import PoissonGaussian, Relation

    facts = ledger_facts(run, run.model(name))
    one_row = read_manifest(run)["dedup"]["group_size"] in (None, 1) or facts.settings.trainer == "dpsgd"
    if upper_field not in _OF_SECRETS or not isinstance(facts.mechanism, PoissonGaussian) or not one_row:
        return None
    relation = Relation.SUBSTITUTION if upper_field == "epsilon_substitution" else facts.relation
    level = curve_level(privacy_curve((Spending(facts.mechanism, facts.steps),), relation))
    every = [curve_p_value(found["canaries"], s["guesses"], s["correct"], level) for s in found["by_share"]]
    return min(1.0, len(every) * min(every))


def _places(run: RunFolder, coins: Coins) -> dict[str, int]:
    """How many sentences were planted, stand in the originals, and stand in public points."""
    planted = list(coins.planted())
    there, public = (_holding(folder, set(planted)) for folder in (run.vault, run.public))
    standing = sum(sentence in there for sentence in planted)
    if not standing:
        raise InputError(
            "coins: none of the planted sentences stands in this run; was the planted copy curated?"
        )
    return {
        "planted": len(planted),
        "standing": standing,
        "public": sum(sentence in public for sentence in planted),
    }


def _holding(folder: Path, wanted: set[str]) -> set[str]:
    batches = read_batches(folder, ["text"])
    return wanted.intersection(text for batch in batches for text in batch.column(0).to_pylist())


def _beside(manifest: Mapping[str, Any]) -> Path:
    paths = [coins_file(Path(path)) for path in manifest["configuration"]["input"]["path"]]
    found = [path for path in paths if path.is_file()]
    if len(found) != 1:
        raise ConfigurationError(
            f"coins: {len(found) or 'no'} .coins.json beside the run's input; name the file with --coins"
        )
    return found[0]


def _draw(result: dict[str, Any]) -> dict[str, str]:
    return pictures("audit.svg", audit_plot, result)
