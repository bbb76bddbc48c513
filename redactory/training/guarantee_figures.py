"""The figures of a guarantee, each confirmed by a second accountant, each null with its reason."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spendings, epsilon_of, group_epsilon_of, removal_epsilon_of
from redactory.training.accounting.figures import truncated
from redactory.training.accounting.second import Bracket
from redactory.training.accounting.second_opinion import (
    NOT_FINITE,
    Stated,
    bracket,
    group_bracket,
    removal_bracket,
    stated,
)
from redactory.training.confidentiality import bayesian_epsilon
from redactory.training.mechanism import Relation

EPSILONS = (
    "epsilon",
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "epsilon_substitution",
    "epsilon_add_remove",
    "epsilon_group",
)
NO_GROUP_FIGURE = "where a size has no figure, none below 4096 was found: the noise protects no such group"
NOT_MEASURED = "recall not measured"
NO_GROUP_OF_SEVERAL = "groups under a truncated sampler are accounted for one training at a time"
POLICIES_UNUSED = (
    "the policies are not used by this trainer: epsilon_substitution is the figure for a secret in a "
    "point of the private side; the vocabulary, taken from public/, is outside of it"
)


@dataclass(frozen=True)
class Claim:
    """What figures are computed from.

    ``relation`` is what a secret and its mask are to the noised points; ``gamma`` and ``delta_2`` are the
    upper bounds of :class:`~redactory.training.confidentiality.MissRates`; ``by_policy`` says whether the
    policies decide what is noised, as in ``crt``.  ``across`` says that a point of one training moves rows of
    another one: then a row that goes from the one comes to the other.
    """

    spent: Spendings
    delta: float
    group_sizes: tuple[int, ...] = ()
    relation: Relation = Relation.SUBSTITUTION
    gamma: float = 1.0
    delta_2: float | None = None
    by_policy: bool = True
    across: bool = False

    @property
    def rows(self) -> int:
        """The most rows that one exchanged point exchanges in any training."""
        return max((one.rows for one in self.spent), default=1)

    @property
    def dropped(self) -> bool:
        """Whether a secret and its mask are a row there and a row gone, in every training."""
        return self.relation is Relation.ADD_OR_REMOVE and self.rows == 1

    @property
    def _missed(self) -> Relation:
        return Relation.ADD_OR_REMOVE if self.dropped else Relation.SUBSTITUTION

    def curve(self, delta: float) -> float | None:
        """Epsilon of one named secret that the strict policy missed, at ``delta``."""
        if delta >= 1.0:
            return 0.0
        return epsilon_of(self.spent, delta, self._missed)

    def second_curve(self, delta: float) -> Bracket:
        """The second accountant's bounds of :meth:`curve`."""
        if delta >= 1.0:
            return Bracket(0.0, 0.0)
        return bracket(self.spent, delta, self._missed)


@dataclass
class Figures:
    """``values`` of :data:`EPSILONS`, ``reasons`` for those that are null, ``second`` opinions as bounds.

    ``alone`` are the names of figures that no second accountant computed.
    """

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)

    def state(self, name: str, found: Stated) -> None:
        """Take what may be stated for ``name``."""
        self.put(name, found.value, found.second, found.reason or NOT_FINITE)

    def put(self, name: str, value: float | None, second: Bracket | None, reason: str = NOT_FINITE) -> None:
        """Take ``value`` for ``name``, which ``second`` holds."""
        self.values[name] = value
        if value is None:
            self.reasons[name] = reason
        if second is not None:
            self.second[name] = outward(second)


def refused(group_sizes: tuple[int, ...], reason: str) -> Figures:
    """No figure at all, for one reason."""
    values: dict[str, Any] = dict.fromkeys(EPSILONS)
    values["epsilon_group"] = {str(size): None for size in group_sizes}
    return Figures(values, dict.fromkeys(EPSILONS, reason), {})


def figures_of(claim: Claim) -> Figures:
    """Every figure of ``claim``; ``GuaranteeError`` where the two accountants disagree about one."""
    found = Figures()
    # under rule S2 a point that goes leaves its place to another: one row is exchanged, none just gone
    alone = Relation.ADD_OR_REMOVE if claim.rows == 1 else Relation.SUBSTITUTION
    one_row = tuple(one if claim.across else dataclasses.replace(one, rows=1) for one in claim.spent)
    for name, spent, relation in (
        ("epsilon_substitution", claim.spent, Relation.SUBSTITUTION),
        ("epsilon_add_remove", one_row, alone),
    ):
        found.state(name, one_exchanged(spent, claim.delta, relation, name))
    own = "epsilon_add_remove" if claim.dropped else "epsilon_substitution"
    found.put("epsilon", found.values[own], None, found.reasons.get(own, NOT_FINITE))
    if own in found.second:
        found.second["epsilon"] = found.second[own]
    _groups(claim, found)
    _by_policy(claim, found)
    return found


def one_exchanged(spent: Spendings, delta: float, relation: Relation, what: str) -> Stated:
    """Epsilon of one point under ``relation``, computed twice."""
    return stated(
        lambda at: epsilon_of(spent, at, relation), lambda at: bracket(spent, at, relation), delta, what
    )


def one_removed(spent: Spendings, delta: float, what: str) -> Stated:
    """Epsilon of one unit whose points are null in the other world, computed twice where that is known."""
    if truncated(spent):
        value = removal_epsilon_of(spent, delta, 1)
        return Stated(value, None, NOT_FINITE if value is None else None)
    return stated(
        lambda at: removal_epsilon_of(spent, at, 1), lambda at: removal_bracket(spent, at, 1), delta, what
    )


def _groups(claim: Claim, found: Figures) -> None:
    values: dict[str, float | None] = {}
    seconds: dict[str, Any] = {}
    reasons: list[str] = []
    several = truncated(claim.spent) and len([one for one in claim.spent if one.steps]) > 1
    for size in claim.group_sizes:
        if several:
            values[str(size)] = None
            continue
        if truncated(claim.spent):
            main = removal_epsilon_of if claim.dropped else group_epsilon_of
            values[str(size)] = main(claim.spent, claim.delta, size)
            found.alone[:] = ["epsilon_group"]
            continue
        one = _group(claim, size)
        values[str(size)] = one.value
        if one.value is not None and one.second is not None:
            seconds[str(size)] = outward(one.second)
        elif one.reason not in (None, NOT_FINITE):
            reasons.append(f"{size} points: {one.reason}")
    found.values["epsilon_group"] = values
    found.second["epsilon_group"] = seconds
    if None in values.values():
        why = NO_GROUP_OF_SEVERAL if several else NO_GROUP_FIGURE
        found.reasons["epsilon_group"] = "; ".join([why, *reasons])


def _group(claim: Claim, size: int) -> Stated:
    main = removal_epsilon_of if claim.dropped else group_epsilon_of
    other = removal_bracket if claim.dropped else group_bracket
    return stated(
        lambda at: main(claim.spent, at, size),
        lambda at: other(claim.spent, at, size),
        claim.delta,
        f"a group of {size}",
    )


def _by_policy(claim: Claim, found: Figures) -> None:
    """``epsilon_confidentiality`` (every secret) and ``epsilon_bayesian`` (secrets that a policy catches)."""
    if not claim.by_policy:
        for name in ("epsilon_confidentiality", "epsilon_bayesian"):
            found.put(name, None, None, POLICIES_UNUSED)
        return
    _amplified(claim, found, "epsilon_bayesian", 0.0)
    if claim.delta_2 is None:
        reason = f"{NOT_MEASURED}: delta_2 may be above delta"
        found.put("epsilon_confidentiality", None, None, reason)
    elif claim.delta <= claim.delta_2:
        reason = (
            f"delta {claim.delta:g} is not above {claim.delta_2:.3g}, the upper bound of the share of "
            "secrets that both policies miss: for those there is no guarantee"
        )
        found.put("epsilon_confidentiality", None, None, reason)
    else:
        _amplified(claim, found, "epsilon_confidentiality", claim.delta_2)


def _amplified(claim: Claim, found: Figures, name: str, delta_2: float) -> None:
    inner = (claim.delta - delta_2) / claim.gamma if claim.gamma > 0.0 else math.inf
    missed = stated(claim.curve, claim.second_curve, inner, name)

    def amplified(epsilon: float | None) -> float | None:
        return bayesian_epsilon(lambda _: epsilon, claim.delta, claim.gamma, delta_2)

    second = missed.second
    if second is not None:
        low, high = (amplified(one) or 0.0 for one in (second.lower, second.upper))
        second = Bracket(low, high)
    found.state(name, Stated(amplified(missed.value), second, missed.reason))


def outward(second: Bracket) -> dict[str, float | None]:
    """Bounds that are the same on every machine: four decimals, outwards."""
    upper = math.ceil(second.upper * 1e4) / 1e4 if math.isfinite(second.upper) else None
    lower = math.floor(second.lower * 1e4) / 1e4 if math.isfinite(second.lower) else None
    return {"lower": lower, "upper": upper}


def require_reasons(values: dict[str, Any], reasons: dict[str, str]) -> None:
    """``GuaranteeError`` where a figure is null without a reason."""
    missing = [name for name, value in values.items() if value is None and name not in reasons]
    if missing:
        raise GuaranteeError(f"no reason is given for {', '.join(missing)}")


# The words of a guarantee card that do not depend on figures: assumptions, side channels, limits.


UNIT = "one secret in one data point (a sentence or a turn), replaced by <MASK>"

UNIT_OF_DPSGD = "one original data point (a sentence or a turn)"

NOTES = {
    "epsilon": "for one named secret that the strict policy missed, in a private point",
    "as_published": "the papers' formulas on the same mechanism: not a guarantee",
    "epsilon_add_remove": "information only: one point there or not, a weaker relation than substitution",
    "epsilon_group": "that many points of the private side exchanged at once, by number of points",
    "epsilon_bayesian": "for secrets that at least one policy catches",
    "coverage_failure": "upper bound of the share of secrets that both policies miss: no guarantee for them",
}

RELATIONS = {
    Relation.SUBSTITUTION: "Two corpora are neighbours when one data point of the private side is "
    "exchanged for another one, both present (substitution). Epsilon bounds how well anybody who holds the "
    "model can tell which of the two it was trained on.",
    Relation.ADD_OR_REMOVE: "Two corpora are neighbours when one secret is replaced by <MASK>. A point "
    "with a mask contributes a zero gradient here, so its point is there in one of them and gone in the "
    "other (add or remove). Epsilon bounds how well anybody who holds the model can tell "
    "which of the two it was trained on.",
}

MAIN_ACCOUNTANT = "privacy loss distributions, pessimistic (connect the dots), composed under a tilt"
SECOND_ACCOUNTANT = (
    "a discretised distribution of our own, rounded both ways: each figure lies between its bounds, or "
    "none is stated"
)

NO_NOISE = {
    "sgd": "no noise: this trainer learns the original texts as they are, nothing is guaranteed",
    "redact-only": "no noise: this trainer learns the masked texts as they are; a secret that π missed is "
    "learnt without noise, nothing is guaranteed",
    "sdp": "no finite epsilon: noise protects only the tokens that π marks, and a secret that π missed is "
    "learnt without noise; under a policy that can miss, epsilon is infinite",
    "de-identification": "no noise: this trainer learns the texts with their entities masked; an entity that "
    "no detector and no list marks is learnt as it is, and so is everything else of a user; nothing is "
    "guaranteed",
    "noiseless": "no noise: this trainer learns the original texts as they are, nothing is guaranteed",
}
"""Why a trainer without a privacy mechanism of its own has no figure."""
FROM_CORPUS = (
    "no finite epsilon: neither public text nor a pretrained folder is on record, so the vocabulary may "
    "come from the corpus"
)

NOISE = {
    "float": "Arithmetic is exact: noise is computed in double precision, and attacks on floating-point "
    "noise are not covered (setting noise: lattice).",
    "lattice": "Noise is an exactly rounded Gaussian, added as whole numbers, so that its addition gives "
    "nothing away. How the clipped sum itself is rounded in floating point is covered by a margin of the "
    "noise, not proved.",
}

ON_A_CARD = (
    "The clipped sums were computed on a graphics card (cuda), the noise on the processor. That the card's "
    "rounding of a sum stays within the margin of the noise was not measured."
)
"""What a training on device cuda rests on besides."""

SEVERAL_MODELS = (
    "A secret is taken to stand in one point of each run. It counts as missed if any run misses it: in each "
    "run it stands in another point, which decides its fate, so that the bounds of all runs are added; "
    "bounds measured on one run are taken to hold for the secrets that the runs share."
)
ACROSS_AN_INDEX = (
    "Some of these runs share an index, and left out what earlier ones saw: a point exchanged in each run "
    "moves, in a later one, its own rows and one more for each earlier run among them. As many are counted."
)
"""What a composed card says besides where its runs share an index (docs, "Several models")."""

DROPPED = (
    "A private point with a mask contributes a zero gradient, but counts wherever points are counted. A "
    "secret that π missed is compared with its point gone: one point there or not, and groups likewise."
)
SEEDED = (
    "test mode: seed known. Whoever knows the seed can subtract the noise; the figures hold for nobody else"
)

ASSUMPTIONS_OF_ALL = (
    "A point's fate (public, private, quarantined) and its masked text are a function of its own text, of "
    "policies fixed before this corpus was seen, and of public constants.",
    "Whoever reads the model learns nothing else that was computed from private text: no report, log, "
    "timing, "
    "intermediate file or second model of the same data (each further model costs its own epsilon).",
    "The root key came from the operating system's entropy, unless this card says that it was seeded, "
    "and was deleted when training ended.",
)

DEDUPLICATION = {
    "S1": "Points are segmented first, masked and routed next, deduplicated last: inside each side, by a "
    "keyed 128-bit digest of the masked text (rule S1). Two of n texts share a digest with probability at "
    "most n²/2¹²⁹. A group counts the distinct masked texts that hold its secrets.",
    "S2": "Points are segmented first, masked and routed next, deduplicated last: on the private side texts "
    "with one local key (case, signs, white space and digits folded) are one, and the one whose keyed digest "
    "is the smallest stays (rule S2). Exchanging one point exchanges at most two of the texts that are "
    "trained on: every figure of this card is computed for as many points as that, so twice a group's size.",
    "none": "Points are segmented first, then masked and routed; nothing is deduplicated, so each point "
    "stands for itself. A group counts every point that holds its secrets.",
}
"""What the card says of each stable rule, by the rule that the manifest names."""

LOST = {
    "near-greedy": "deduplication dropped near-duplicates on the private side (minhash), a rule without a "
    "stability proof: one point exchanged can bring back, or drop, every text that nearly duplicates it, and "
    "those that these stood for in turn. What holds of rule S1 (one text exchanged) does not hold here",
    "bloom": "deduplication was one pass with a Bloom filter on the private side (bloom), a rule without a "
    "stability proof: one point exchanged changes the filter, and with it which later texts are dropped as "
    "false positives. What holds of rule S1 (one text exchanged) does not hold here",
}
"""What each rule without a stability proof costs, by the rule that the manifest names."""

ASSUMPTIONS_OF_CRT = (
    "The vocabulary, the network's size and every constant come from public text and the configuration "
    "alone.",
    "Bayesian figures are averages over the secrets of this corpus, for an adversary who does not know "
    "which of "
    "them was masked. For a secret that is known to have been missed by π, epsilon_substitution is the "
    "figure.",
)

RECALL_NOT_MEASURED = (
    "Recall was not measured: every secret counts as missed by π, so epsilon_bayesian is no better than "
    "epsilon_substitution. It is measured on labelled text, by redactory evaluate detection, or on a "
    "labelled sample, by redactory label, before the training."
)
COVERAGE_UNKNOWN = (
    "What share of the secrets both policies miss is not known: no figure holds for every secret."
)
_VOUCHED_FOR = (
    "was used to tune a policy, is the word of whoever gave the labels; what Redactory refuses, where it "
    "measures, are rows that fit-policy fitted the run's policy on."
)
RECALL_OF_COUNTS = (
    "Recall was measured on {labels}, {when}. That they are drawn i.i.d. from the secrets "
    f"of this corpus, and that none of them {_VOUCHED_FOR} It says nothing about another corpus."
)
MEASURED_ON, MEASURED_SOME_DAY = "on {date}", "on a day that was not recorded"
RECALL_OF_SAMPLE = (
    "Recall was measured on a labelled sample of this run ('{name}': {texts}, by stratum, with {labels}, "
    "scored on {date}). That the labels are true, and that none of them "
    f"{_VOUCHED_FOR} They say nothing about another corpus. A secret is drawn there by drawing a point that "
    "holds one, each alike, and then one of its secrets, each alike: Bayesian figures and coverage_failure "
    "are averages in this sense."
)

ASSUMPTIONS_OF_DPSGD = (
    "The exchanged points both lie on the private side: the vocabulary is made of public/, so a word of a "
    "public "
    "point can be a token of this model.",
    "Original texts are used, duplicates included: a secret that stands in K points is a group of K.",
)

NOT_COVERED = (
    "Secrets that stand in a public point (both policies missed them): they are learnt without noise.",
    "The released shards, reports, counts and positions of masks themselves: the figures are about the "
    "model only.",
    "Secrets longer than a data point, and raw-document neighbours: the unit is a span inside one "
    "segmented point.",
    "Which points are private, and how many: equal in both worlds, so it may be seen.",
    "What can be inferred about a person from other people's text or from public points.",
    "Evaluations on private text (exposure, membership attacks, perplexity): releases of their own.",
    "Timing, the machine itself, and whoever holds the run folder.",
)

_PRE_STEPS_OF_ALL = (
    (
        "segmentation",
        "a document's own text",
        "a point is segmented before anything else: the unit is a point",
    ),
    ("masking and routing", "a point's own text", "policies fixed before the corpus was seen"),
    ("quarantine", "a point's own text", "a failed point counts as a private one that contributes nothing"),
)
_PRE_STEPS_BY_POLICY = (
    (
        "deduplication",
        "the masked texts of a point's own side",
        "by the rule that is named in the assumptions",
    ),
    ("vocabulary, network, initial weights", "public text and constants", "equal in both worlds"),
    ("steps without noise", "public text", "equal in both worlds: post-processing of the noisy steps"),
)


def pre_steps(by_policy: bool) -> list[dict[str, str]]:
    """What is computed from the corpus before the noisy steps, from what, and why that is covered."""
    told = (*_PRE_STEPS_OF_ALL, *(_PRE_STEPS_BY_POLICY if by_policy else _PRE_STEPS_BY_POLICY[1:2]))
    return [{"step": step, "depends_on": data, "covered": why} for step, data, why in told]


POLICIES_TUNED = "policies tuned on private text"
EARLIER_RUNS = "an index or warm start from earlier runs"
INDEXED = (
    "Every training starts from fresh weights. What {runs} of the index {index} saw on the same side was "
    "left out, text by text, so that one point exchanged in any of them exchanges at most one of the texts "
    "that this model was trained on: each figure holds for a point of those runs as for one of this run, and "
    "a group counts the texts of those runs too. "
    "Which runs the index held follows from numbers and dates alone."
)
MODELS_OF_AN_INDEX = (
    "The models of several runs of the index {index} together: the figures are for this model alone, which "
    "shares the index with {runs} and with every later one. All models trained on them compose. A "
    "secret that stands in each of these runs costs more than the sum of their epsilons: redactory guarantee "
    "of all of them says how much."
)
"""Both for a run whose private side went by an index of earlier runs (docs, "Earlier runs")."""
SIDE_CHANNELS: tuple[tuple[str, str], ...] = (
    (
        "vocabulary and initial weights",
        "words of public/ over a fixed alphabet; weights drawn from the stream",
    ),
    (
        POLICIES_TUNED,
        "assumed: policies are frozen and hashed in the manifest before the run",
    ),
    ("document context, coreference, linking", "policies see one point's text at a time"),
    (
        "corpus-wide deduplication or filters",
        "inside each side; on the private one by a stable rule (S1, S2, none at all), or there is no figure",
    ),
    ("packing, length buckets, splitting after redaction", "one point is one row, padded and masked"),
    ("state carried across points", "the LSTM's state is zero before every point"),
    ("order and sampler", "Poisson coins under a fresh secret key; no order in noisy steps"),
    ("rates, steps, schedules, normaliser from counts", "constants of the configuration; no schedule"),
    ("early stopping and selection on private text", "none: the last weights after a fixed number of steps"),
    ("clipping or noise adapted to private gradients", "constants"),
    ("operations across examples", "none in the network; gradients are clipped one by one"),
    ("normalisation of a point's loss", "the sum over its tokens, inside the clip"),
    ("statistics of the whole corpus in the public loss", "the public loss reads public points only"),
    (
        "release of masks, logs, losses, norms, seeds",
        "no mask, log, loss, seed or norm of a gradient leaves; the ledger has the norm of each layer's "
        "change, which follows from the weights before and after training",
    ),
    ("known or weak randomness", "ChaCha20 under operating-system entropy, unless test mode is named here"),
    ("which points are private", "equal in both worlds under substitution"),
    ("averaging of private iterates", "none; it would be post-processing"),
    ("segmentation", "before everything else; secrets are spans inside segmented points"),
    ("batched detector numerics and timeouts", "assumed of the curation: a failed text is quarantined"),
    (
        "oversize or empty Poisson batches",
        "an empty batch is a step of noise; none is cut, unless by the truncated sampler, accounted as such",
    ),
    ("loss scaling, skipped steps on infinity", "none; a point's non-finite gradient counts as zero"),
    (
        "keys in checkpoints, or used twice",
        "one key a training, bound to its data and settings, deleted at the end",
    ),
    (EARLIER_RUNS, "every training starts from fresh weights; no index of earlier runs was used"),
    ("unkeyed digests and sizes of private files", "the ledger's digests are keyed and their key is deleted"),
    ("evaluations on private text", "not covered: each is a release of its own"),
)


def place_of(device: str) -> dict[str, str]:
    """What a card says of where the arithmetic was done: nothing where that was the processor."""
    return {} if device == "cpu" else {"device": device}


def resting_on(device: str) -> tuple[str, ...]:
    """The assumptions that a guarantee rests on for being computed there."""
    return () if device == "cpu" else (ON_A_CARD,)
