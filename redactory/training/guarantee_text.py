"""The words of a guarantee card that do not depend on figures: assumptions, side channels, limits."""

from __future__ import annotations

from redactory.training.guarantee_figures import NOT_MEASURED as NOT_MEASURED
from redactory.training.mechanism import Relation

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
    "epsilon_substitution. It is measured on labelled text, by redactory evaluate recall, or on a labelled "
    "sample, by redactory audit, before the training."
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
