"""Lower bounds of epsilon from one training run whose canaries were planted by fair coins.

Each of m canaries has a coin that decides which of two things the corpus contains. The auditor sees the model and
guesses some of the coins. A training with a given trade-off curve limits the number of correct guesses: Mahloujifar,
Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), Algorithm 3. The curve of (ε, δ) bounds every
training; those of Gaussian mechanisms give a tighter bound, valid for such trainings only.

The canaries need not be independent in the model. The number of guesses must not depend on whether they are correct.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import TypeAdapter

from redactory.evaluation.canary import DIGITS_PLACEHOLDER
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import commit_file, read_json, write_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.training.accounting.bounds import compute_gaussian_epsilon

GUESS_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Shares of the canaries to guess, most certain first; the confidence is split among them."""
MAX_AUDIT_EPSILON = 50.0
_BISECTIONS = 26

LevelFunction = Callable[[float], float]
"""Maps a power to the level a test of the two worlds needs: the inverse of 1 - f, f the trade-off curve."""


def audit_scores(
    scores: NDArray[np.float64],
    coins: NDArray[np.bool_],
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = GUESS_SHARES,
) -> dict[str, Any]:
    """Guess the ``coins`` [m] from ``scores`` [m], larger is likelier true, and bound ε from below.

    For each of ``shares``, guesses the canaries with the scores farthest from 0. Each share uses a part of 1 -
    ``confidence``, so that the best bound is valid. Returns {canaries, guesses, correct, accuracy, epsilon_lower,
    epsilon_lower_gaussian, delta, confidence, by_share}; the counts are those of the share with the largest
    ``compute_epsilon_lower_bound``, the larger share on ties.
    """
    if len(scores) != len(coins) or not len(scores) or not np.isfinite(scores).all():
        raise ValueError("needs one finite score for each of at least one coin")
    surest = np.argsort(-np.abs(scores), kind="stable")
    right = ((scores > 0.0) == coins)[surest]
    share_confidence = 1.0 - (1.0 - confidence) / len(shares)
    by_share: list[dict[str, Any]] = []
    for share in shares:
        guesses = max(1, round(share * len(scores)))
        correct = int(right[:guesses].sum())
        counts = (len(scores), guesses, correct)
        bounds = {
            "epsilon_lower": compute_epsilon_lower_bound(*counts, delta, share_confidence),
            "epsilon_lower_gaussian": compute_gaussian_lower_bound(*counts, delta, share_confidence),
        }
        by_share.append({"guesses": guesses, "correct": correct, **bounds})
    best = max(by_share, key=lambda row: row["epsilon_lower"])
    return {
        "canaries": len(scores),
        "guesses": best["guesses"],
        "correct": best["correct"],
        "accuracy": best["correct"] / best["guesses"],
        "epsilon_lower": best["epsilon_lower"],
        "epsilon_lower_gaussian": max(row["epsilon_lower_gaussian"] for row in by_share),
        "delta": delta,
        "confidence": confidence,
        "by_share": by_share,
    }


def compute_epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the smallest ε compatible with ``correct`` of ``guesses`` at ``delta``.

    A training that is (ε, ``delta``)-DP with a smaller ε gives as many correct guesses with probability at most 1 -
    ``confidence``. 0 if nothing is shown; at most :data:`MAX_AUDIT_EPSILON`. ``ValueError`` unless 0 <= correct <=
    guesses <= canaries.
    """
    _check_guess_counts(canaries, guesses, correct, delta, confidence)

    def is_refuted(epsilon: float) -> bool:
        level = make_curve_level_function([(epsilon, delta)])
        return is_guess_count_refuted(canaries, guesses, correct, level, 1.0 - confidence)

    return _bisect_largest(is_refuted, MAX_AUDIT_EPSILON)


def is_guess_count_refuted(canaries: int, guesses: int, correct: int, level: LevelFunction, chance: float) -> bool:
    """Return whether this many correct guesses have probability < ``chance`` under the trade-off curve.

    With p_i the probability of exactly i correct of c' guesses (all wrong or correct ones, m canaries), R_c = Σ_{i>=c}
    p_i i/m and H_c = Σ_{i>=c} p_i (c'-i)/m: exchanging one canary's coin turns a correct guess into a wrong one, so
    H_{c-1} >= level(R_c). From P(>= ``correct``) = ``chance`` these bound R_0 + H_0 from below, which is c'/m; more is
    a contradiction (Mahloujifar et al. 2024, Algorithm 3, two choices).
    """
    if correct == 0 or guesses == 0:
        return False
    right = chance * correct / canaries
    wrong = chance * (guesses - correct) / canaries
    whole, least = guesses / canaries, 0.0
    for count in range(correct - 1, -1, -1):
        # the wrong share with at least `count` correct cannot be less than with more correct
        least = max(least, level(right))
        right += count / (guesses - count) * (least - wrong)
        wrong = least
        if right + wrong > whole * (1.0 + 1e-12):
            return True
    return False


def compute_curve_p_value(canaries: int, guesses: int, correct: int, level: LevelFunction) -> float:
    """Bound the probability of at least ``correct`` correct guesses under the trade-off curve of ``level``."""

    def is_refuted(bits: float) -> bool:
        return is_guess_count_refuted(canaries, guesses, correct, level, math.exp(-bits))

    return math.exp(-_bisect_largest(is_refuted, 40.0))


def compute_gaussian_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the smallest ε at ``delta`` compatible with the guesses if the training is Gaussian.

    Of the trade-off curves G_μ (a unit Gaussian against one shifted by μ) uses the largest refuted μ, as ε(``delta``).
    It is not a bound for a training with another curve.
    """
    _check_guess_counts(canaries, guesses, correct, delta, confidence)

    def is_refuted(shift: float) -> bool:
        return is_guess_count_refuted(canaries, guesses, correct, make_gaussian_level_function(shift), 1.0 - confidence)

    return compute_gaussian_epsilon(_bisect_largest(is_refuted, 2.0 * math.sqrt(MAX_AUDIT_EPSILON)), delta)


def make_gaussian_level_function(shift: float) -> LevelFunction:
    """Return the level at which N(0, 1) against N(``shift``, 1) has a given power."""
    return lambda power: float(scipy.special.ndtr(scipy.special.ndtri(min(power, 1.0)) - shift))


def make_curve_level_function(curve: Sequence[tuple[float, float]]) -> LevelFunction:
    """Return the level function of two worlds with many known (ε, δ): the largest of their levels."""
    epsilon, delta = np.array(curve).T
    small, factor = np.exp(-epsilon), np.exp(epsilon)

    def compute_level(power: float) -> float:
        above = 1.0 - delta - factor * (1.0 - power)
        return max(0.0, float((small * (power - delta)).max()), float(above.max()))

    return compute_level


def _bisect_largest(is_rejected: Callable[[float], bool], upper_limit: float) -> float:
    low, high = 0.0, upper_limit
    if not is_rejected(low):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low


def _check_guess_counts(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> None:
    if not (0 <= correct <= guesses <= canaries and 0.0 <= delta < 1.0 and 0.0 < confidence < 1.0):
        raise ValueError("needs 0 <= correct <= guesses <= canaries, 0 <= delta < 1 and 0 < confidence < 1")


# Canaries with coins: what a one-run audit plants in a corpus before it is curated.


CanaryForm = Literal["pair", "masked", "absent"]

DEFAULT_TEMPLATE = "The code is: {digits}"
CANARY_LABEL = "CANARY"
CANARY_DIGITS = 8
COINS_FORMAT = "redactory-coins/1"
_PROGRESS_ROWS = 1000


@dataclass(frozen=True)
class AuditCoins:
    """The planted numbers and their coins; keep them from the auditor.

    ``numbers[i]`` is (the number if the coin is true, the number if it is false); the second of ``masked`` and
    ``absent`` is never planted.
    """

    form: CanaryForm
    template: str
    numbers: list[tuple[str, str]]
    coins: list[bool]
    seeded: bool

    def render_sentence(self, digits: str) -> str:
        """The sentence that contains a number."""
        return self.template.replace(DIGITS_PLACEHOLDER, digits)

    def iter_planted_sentences(self) -> Iterator[str]:
        """The sentences planted in the corpus, in the order of the canaries."""
        for (true, false), coin in zip(self.numbers, self.coins, strict=True):
            if coin or self.form == "pair":
                yield self.render_sentence(true if coin else false)
            elif self.form == "masked":
                yield self.render_sentence(MASK)


def get_coins_path(corpus: Path) -> Path:
    """Return the path of a planted corpus's coins: its name plus ``.coins.json``."""
    return corpus.with_name(f"{corpus.name}.coins.json")


def draw_coins(
    canaries: int, form: CanaryForm = "pair", template: str = DEFAULT_TEMPLATE, seed: int | None = None
) -> AuditCoins:
    """Draw numbers and fair coins; without a ``seed`` from the operating system's randomness.

    ``ConfigurationError`` for no canary, too many for the numbers, an unknown form, or a template that does not end
    with ``{digits}``.
    """
    if not 1 <= canaries <= 10**CANARY_DIGITS // 4:
        raise ConfigurationError(f"canaries: must be between 1 and {10**CANARY_DIGITS // 4}")
    if form not in get_args(CanaryForm):
        raise ConfigurationError(f"form: expected one of {', '.join(get_args(CanaryForm))}")
    if not template.endswith(DIGITS_PLACEHOLDER) or template.count(DIGITS_PLACEHOLDER) != 1:
        raise ConfigurationError(f"template: needs one {DIGITS_PLACEHOLDER}, at its end")
    source = random.SystemRandom() if seed is None else random.Random(f"audit coins {seed}")
    numbers = [f"{number:0{CANARY_DIGITS}d}" for number in source.sample(range(10**CANARY_DIGITS), 2 * canaries)]
    pairs = list(zip(numbers[:canaries], numbers[canaries:], strict=True))
    coins = [source.random() < 0.5 for _ in pairs]
    return AuditCoins(form, template, pairs, coins, seed is not None)


def plant_canaries(
    corpus: str | Path,
    out: str | Path,
    *,
    canaries: int = 1_000,
    form: CanaryForm = "pair",
    template: str = DEFAULT_TEMPLATE,
    seed: int | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Write ``corpus`` (JSON lines) to ``out`` with canaries appended, and the coins beside it.

    Curate the copy, without the coins file, which ``evaluate_audit`` guesses. ``columns`` maps text, id and user_id to
    the corpus's column names. A planted row has these columns, and ``spans`` with the number's position if the first
    row of the corpus has ``spans``. Returns {out, coins_file, canaries, planted, rows, form, seeded}. ``InputError``
    for an unreadable corpus, ``ConfigurationError`` if ``out`` exists.
    """
    corpus, out = Path(corpus), Path(out)
    if out.exists() or get_coins_path(out).exists():
        raise ConfigurationError(f"{out.name}: it or its coins file already exists; give another name")
    coins = draw_coins(canaries, form, template, seed)
    named = {"text": "text", "id": "id", "user_id": "user_id", **(columns or {})}
    stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
    planted, start = list(coins.iter_planted_sentences()), len(template) - len(DIGITS_PLACEHOLDER)
    with commit_file(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        rows, labelled = _copy_corpus(corpus, file, progress)
        # shuffle the planted canaries, because a position must not reveal a coin
        for number in stream.permutation("order", 0, len(planted)):
            name, sentence = f"audit-{number:06d}", planted[number]
            row: dict[str, Any] = {named["id"]: name, named["user_id"]: name, named["text"]: sentence}
            if labelled:
                span = {"start": start, "end": len(sentence), "label": CANARY_LABEL, "value": sentence[start:]}
                row["spans"] = [] if sentence.endswith(MASK) else [span]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    write_json(get_coins_path(out), {"format": COINS_FORMAT, **asdict(coins)})
    return {
        "out": str(out),
        "coins_file": str(get_coins_path(out)),
        "canaries": canaries,
        "planted": len(planted),
        "rows": rows + len(planted),
        "form": form,
        "seeded": coins.seeded,
    }


def _copy_corpus(corpus: Path, output: TextIO, progress: Progress) -> tuple[int, bool]:
    first_row, rows = None, 0
    try:
        with corpus.open(encoding="utf-8", newline="\n") as file:
            for rows, line in enumerate(file, 1):
                first_row = json.loads(line) if rows == 1 else first_row
                output.write(line if line.endswith("\n") else line + "\n")
                if rows % _PROGRESS_ROWS == 0:
                    progress("plant", rows, None, "rows")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{corpus.name} cannot be read: {type(error).__name__}") from None
    except ValueError:
        first_row = None
    if not isinstance(first_row, dict):
        raise InputError(f"{corpus.name}: planting canaries needs at least one row, each a JSON object")
    return rows, "spans" in first_row


def read_coins(path: Path) -> AuditCoins:
    """Read the coins that :func:`plant_canaries` wrote; ``InputError`` for anything else."""
    try:
        value = read_json(path)
        if value.pop("format") != COINS_FORMAT:
            raise ValueError
        coins = TypeAdapter(AuditCoins).validate_python(value)
        if len(coins.numbers) != len(coins.coins) or not coins.coins:
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not such a file"
        raise InputError(
            f"{path} cannot be read as the coins of an audit: {problem}; give the .coins.json file that "
            "redactory evaluate plant-canaries wrote"
        ) from None
    return coins
