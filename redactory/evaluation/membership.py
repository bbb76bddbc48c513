"""Membership inference: can sentences whose secrets were trained on be told from others like them?

CRT, sections 5.1 and 5.3 and appendix A.5, after Carlini et al. (2021): a sentence of low perplexity is
taken for one that was trained on.  The threshold is chosen on one half of the sentences and scored on the
other, so that a model that gives nothing away has an accuracy of 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.group_membership import group_attack
from redactory.evaluation.reference_attack import reference_attacks
from redactory.evaluation.threshold import Halves, attack
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    from redactory.training import LanguageModel

Scores = NDArray[np.float64]

GROUPS, GROUP_SIZE = 1_000, 20
"""Appendix A.5: a thousand groups of each kind, twenty sentences in each."""
_LEAST_TEXTS = 4
_CHUNK_TEXTS = 2_048


def membership(
    model: LanguageModel,
    members: Sequence[str],
    others: Sequence[str],
    *,
    reference: LanguageModel | None = None,
    groups: int = GROUPS,
    group_size: int = GROUP_SIZE,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Attack ``model`` on ``members``, sentences that were trained on, and ``others`` of the same form.

    As many of each are used; the result says how many.  ``individual`` takes a sentence of low perplexity
    for a member, ``group`` a group of ``group_size`` by the sum of its perplexities; with a ``reference``
    model, ``reference`` and ``rmia`` take the sentences that ``model`` finds likelier than that
    (:mod:`redactory.evaluation.reference_attack`), and ``reference_alone`` is ``individual`` against the
    reference: what the sentences give away without any model that learnt them.

    Each attack is {accuracy, scored, auc, tpr: {"0.001", "0.01"}, roc} with figures {value, low, high}, or
    None; an accuracy is of the half that chose no threshold, with an exact interval, the others are over
    all sentences, with percentiles of the bootstrap.  Intervals have ``confidence``; for the Bonferroni
    correction of k comparisons give 1 - 0.05 / k.  Returns {members, others, confidence, individual, group,
    reference, rmia, reference_alone}.

    Raises ``InputError`` where fewer than four sentences of a kind are given.
    """
    count = min(len(members), len(others))
    if count < _LEAST_TEXTS:
        raise InputError(
            f"membership needs at least {_LEAST_TEXTS} sentences of each kind; there are {count}"
        )
    halves = Halves.of(count, seed)
    texts = [*members[:count], *others[:count]]
    tokens = log_probs(model, texts, progress)
    found = _perplexities(tokens)
    alone, compared = None, {"reference": None, "rmia": None}
    if reference is not None:
        theirs = log_probs(reference, texts, progress)
        alone = attack(-_perplexities(theirs), halves, confidence, seed)
        ratios = np.array([t.sum() - r.sum() for t, r in zip(tokens, theirs, strict=True)])
        compared = reference_attacks(ratios, halves, confidence, seed)
    return {
        "members": count,
        "others": count,
        "confidence": confidence,
        "individual": attack(-found, halves, confidence, seed),
        "group": group_attack(found, halves, groups // 2, group_size, confidence, seed),
        **compared,
        "reference_alone": alone,
    }


def perplexities(model: LanguageModel, texts: Sequence[str], progress: Progress = silent) -> Scores:
    """exp(- mean natural log probability of a token) of each text, its end included: float64 [n]."""
    return _perplexities(log_probs(model, texts, progress))


def log_probs(model: LanguageModel, texts: Sequence[str], progress: Progress = silent) -> list[Scores]:
    """Natural log probability of every token of every text, its end included."""
    found: list[Scores] = []
    for start in range(0, len(texts), _CHUNK_TEXTS):
        found += model.token_log_probs(texts[start : start + _CHUNK_TEXTS])
        progress("membership", len(found), len(texts), "sentences")
    return found


def _perplexities(tokens: Sequence[Scores]) -> Scores:
    # beyond that a float holds no perplexity; the order of sentences is all that counts
    return np.exp(np.minimum([-one.mean() for one in tokens], 700.0))
