"""A lower bound of epsilon from one training run, whose canaries were planted by fair coins.

Of m canaries each has a coin of its own that says which of two things the corpus holds.  Whoever sees the
model guesses some of the coins; of a training that is (ε, δ)-DP for the exchange of one canary, more than so
many guesses cannot be right.  Two bounds:

- Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run" (2023), Theorem 5.2: for every
  (ε, δ)-DP training, whatever it does;
- Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run" (2024), Algorithm 3: for
  every training whose trade-off curve is given, and so for a family of them.  Tighter, and a statement about
  that family alone.

Neither needs the canaries to be independent of each other in the model.  Guessing is one decision: how many
guesses are made must not depend on whether they are right.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.canary import PLACE
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import commit, read_json, write_json
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""The shares of the canaries that are guessed, the surest first; the confidence is split among them."""
LARGEST_EPSILON = 50.0
_BISECTIONS = 26

Level = Callable[[float], float]
"""The level that a test of the two worlds needs for a power: the inverse of 1 - f, f the trade-off curve."""


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The least ε that ``correct`` of ``guesses`` right leaves possible at ``delta`` (Steinke et al. 2023).

    A training that is (ε, ``delta``)-DP with a smaller ε gives so many right guesses with probability at
    most 1 - ``confidence``.  0 where nothing is shown; at most :data:`LARGEST_EPSILON`.

    Raises ``ValueError`` unless 0 <= correct <= guesses <= canaries.
    """
    _check(canaries, guesses, correct, delta, confidence)

    def rejected(epsilon: float) -> bool:
        return p_value(canaries, guesses, correct, epsilon, delta) <= 1.0 - confidence

    return _largest(rejected, LARGEST_EPSILON)


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most this probability of ``correct`` right guesses or more under (``epsilon``, ``delta``)-DP.

    Theorem 5.2: P[Bin(r, p) >= v] + 2mδ max_i P[v - i <= Bin(r, p) < v] / i, with p = e^ε / (e^ε + 1).
    """
    from scipy import stats

    if correct == 0:
        return 1.0
    right = 1.0 / (1.0 + math.exp(-epsilon))
    law = stats.binom(guesses, right)
    steps = np.arange(1, correct + 1)
    alpha = float((np.cumsum(law.pmf(correct - steps)) / steps).max())
    return min(1.0, float(law.sf(correct - 1)) + 2.0 * canaries * delta * alpha)


def too_many_right(canaries: int, guesses: int, correct: int, level: Level, chance: float) -> bool:
    """Whether so many right guesses have less than ``chance`` under the trade-off curve behind ``level``.

    With p_i the probability of exactly i right of c' guesses (all wrong or right ones, m canaries), R_c =
    Σ_{i>=c} p_i i/m and H_c = Σ_{i>=c} p_i (c'-i)/m: exchanging one canary's coin turns a right guess into
    a wrong one, so that H_{c-1} >= level(R_c).  From P(>= ``correct``) = ``chance`` these bound R_0 + H_0
    from below, which is c'/m; more is a contradiction (Mahloujifar et al. 2024, Algorithm 3, two choices).
    """
    if correct == 0 or guesses == 0:
        return False
    right = chance * correct / canaries
    wrong = chance * (guesses - correct) / canaries
    whole, least = guesses / canaries, 0.0
    for count in range(correct - 1, -1, -1):
        # what is wrong with at least `count` right cannot be less than with more of them right
        least = max(least, level(right))
        right += count / (guesses - count) * (least - wrong)
        wrong = least
        if right + wrong > whole * (1.0 + 1e-12):
            return True
    return False


def curve_p_value(canaries: int, guesses: int, correct: int, level: Level) -> float:
    """At most this probability of ``correct`` right or more under the trade-off curve of ``level``."""
    low, high = -40.0, 0.0
    if too_many_right(canaries, guesses, correct, level, math.exp(low)):
        return math.exp(low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        refuted = too_many_right(canaries, guesses, correct, level, math.exp(middle))
        low, high = (low, middle) if refuted else (middle, high)
    return math.exp(high)


def gaussian_epsilon_lower(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The least ε at ``delta`` that the guesses leave possible for a training that is as good as a Gaussian.

    Of the trade-off curves G_μ (a unit Gaussian against one shifted by μ) the largest μ that is refuted,
    as ε(``delta``).  It is no bound for a training whose curve is not one of these.
    """
    _check(canaries, guesses, correct, delta, confidence)

    def rejected(mu: float) -> bool:
        return too_many_right(canaries, guesses, correct, gaussian_level(mu), 1.0 - confidence)

    return gaussian_epsilon(_largest(rejected, 2.0 * math.sqrt(LARGEST_EPSILON)), delta)


def gaussian_level(mu: float) -> Level:
    """The level at which N(0, 1) against N(``mu``, 1) has a given power."""
    from scipy.special import ndtr, ndtri

    return lambda power: float(ndtr(ndtri(min(power, 1.0)) - mu))


def curve_level(curve: Sequence[tuple[float, float]]) -> Level:
    """The same for two worlds of which (ε, δ) are known, many at once: the largest of their levels."""
    epsilon, delta = np.array(curve).T
    small, large = np.exp(-epsilon), np.exp(epsilon)

    def level(power: float) -> float:
        above = 1.0 - delta - large * (1.0 - power)
        return max(0.0, float((small * (power - delta)).max()), float(above.max()))

    return level


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at ``delta`` of N(0, 1) against N(``mu``, 1) (Balle and Wang 2018)."""
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(1.0 / mu, delta)) if mu > 0.0 else 0.0


def audit_scores(
    scores: NDArray[np.float64],
    coins: NDArray[np.bool_],
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
) -> dict[str, Any]:
    """Guess the ``coins`` [m] from ``scores`` [m], the larger the likelier true, and bound ε from below.

    Guessed are, for each of ``shares``, the canaries whose score lies farthest from 0; a positive score is
    a guess of true.  Each share has its part of 1 - ``confidence``, so that the best of them stands.

    Returns {canaries, guesses, correct, accuracy, epsilon_lower, epsilon_lower_gaussian, delta, confidence,
    by_share: [{guesses, correct, epsilon_lower, epsilon_lower_gaussian}]}; the counts are those of the
    share with the largest ``epsilon_lower``, of equal ones the larger share.
    """
    if len(scores) != len(coins) or not len(scores) or not np.isfinite(scores).all():
        raise ValueError("needs one finite score for each of at least one coin")
    surest = np.argsort(-np.abs(scores), kind="stable")
    right = ((scores > 0.0) == coins)[surest]
    each = 1.0 - (1.0 - confidence) / len(shares)
    by_share = []
    for share in shares:
        guesses = max(1, round(share * len(scores)))
        counts = len(scores), guesses, int(right[:guesses].sum())
        by_share.append(
            {
                "guesses": guesses,
                "correct": counts[2],
                "epsilon_lower": epsilon_lower(*counts, delta, each),
                "epsilon_lower_gaussian": gaussian_epsilon_lower(*counts, delta, each),
            }
        )
    best = max(by_share, key=lambda row: float(row["epsilon_lower"]))
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


def _largest(rejected: Callable[[float], bool], most: float) -> float:
    """The largest value that is rejected; values below a rejected one are rejected too."""
    low, high = 0.0, most
    if not rejected(low):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _check(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> None:
    if not (0 <= correct <= guesses <= canaries and 0.0 <= delta < 1.0 and 0.0 < confidence < 1.0):
        raise ValueError("needs 0 <= correct <= guesses <= canaries, 0 <= delta < 1 and 0 < confidence < 1")


# Canaries with coins: what a one-run audit plants in a corpus before it is curated.


Form = Literal["pair", "masked", "absent"]

TEMPLATE = "The code is: {digits}"
LABEL = "CANARY"
DIGITS = 8
FORMAT = "redactory-coins/1"
_PROGRESS_ROWS = 1000


@dataclass(frozen=True)
class Coins:
    """What was planted, and by which coins: whoever guesses must not see this.

    ``numbers[i]`` is (the number where the coin is true, the number where it is false); the second of
    ``masked`` and ``absent`` is never planted.
    """

    form: Form
    template: str
    numbers: list[tuple[str, str]]
    coins: list[bool]
    seeded: bool

    def sentence(self, digits: str) -> str:
        """The sentence that a number stands in."""
        return self.template.replace(PLACE, digits)

    def planted(self) -> Iterator[str]:
        """The sentences that the corpus holds, in the order of the canaries."""
        for (true, false), coin in zip(self.numbers, self.coins, strict=True):
            if coin or self.form == "pair":
                yield self.sentence(true if coin else false)
            elif self.form == "masked":
                yield self.sentence(MASK)


def coins_file(corpus: Path) -> Path:
    """Where the coins of a planted corpus lie: its name with ``.coins.json`` behind."""
    return corpus.with_name(f"{corpus.name}.coins.json")


def draw_coins(
    canaries: int, form: Form = "pair", template: str = TEMPLATE, seed: int | None = None
) -> Coins:
    """Draw numbers and fair coins; without a ``seed`` from the operating system's randomness.

    Raises ``ConfigurationError`` for no canary, more than the numbers can tell apart, another form, a
    template that does not end with ``{digits}``.
    """
    needed = 2 * canaries
    if canaries < 1 or needed > 10**DIGITS // 2:
        raise ConfigurationError(f"canaries: at least 1 and at most {10**DIGITS // 4}")
    if form not in get_args(Form):
        raise ConfigurationError(f"form: one of {', '.join(get_args(Form))}")
    if not template.endswith(PLACE) or template.count(PLACE) != 1:
        raise ConfigurationError(f"template: one {PLACE}, at its end")
    stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
    drawn: dict[str, None] = {}
    step = 0
    while len(drawn) < needed:
        for u in stream.uniform("numbers", step, needed):
            drawn[f"{int(u * 10**DIGITS):0{DIGITS}d}"] = None
        step += 1
    numbers = list(drawn)[:needed]
    coins = stream.uniform("coins", 0, canaries) < 0.5
    pairs = list(zip(numbers[:canaries], numbers[canaries:], strict=True))
    return Coins(form, template, pairs, coins.tolist(), seed is not None)


def plant(
    corpus: Path,
    out: Path,
    canaries: int = 1_000,
    form: Form = "pair",
    template: str = TEMPLATE,
    seed: int | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write ``corpus`` (JSON lines) to ``out`` with the canaries at random places, and the coins beside it.

    ``columns`` names the columns text, id and user_id where they are called otherwise.  A planted row has
    these, and ``spans`` with the number's place where the first row of the corpus has ``spans``.

    Returns {out, coins_file, canaries, planted, rows, form, seeded}: counts.  Raises ``InputError`` for a
    corpus that cannot be read, ``ConfigurationError`` where ``out`` exists.
    """
    if out.exists() or coins_file(out).exists():
        raise ConfigurationError(f"{out.name}: it exists, or its coins do; give another name")
    coins = draw_coins(canaries, form, template, seed)
    rows, first = _count(corpus)
    named = {"text": "text", "id": "id", "user_id": "user_id", **(columns or {})}
    lines = [_row(coins, sentence, n, named, "spans" in first) for n, sentence in enumerate(coins.planted())]
    stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
    # a canary's place must not tell its coin: the planted ones are put in an order of their own
    order = stream.permutation("order", 0, len(lines))
    places = np.sort((stream.uniform("places", 0, len(lines)) * (rows + 1)).astype(np.int64))
    waiting = deque((place, lines[number]) for place, number in zip(places, order, strict=True))
    with commit(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(_lines(corpus)):
            while waiting and waiting[0][0] <= number:
                file.write(waiting.popleft()[1])
            file.write(line)
            if (number + 1) % _PROGRESS_ROWS == 0 or number + 1 == rows:
                progress("plant", number + 1, rows, "rows")
        file.writelines(line for _, line in waiting)
    write_json(coins_file(out), {"format": FORMAT, **asdict(coins)})
    return {
        "out": str(out),
        "coins_file": str(coins_file(out)),
        "canaries": canaries,
        "planted": len(lines),
        "rows": rows + len(lines),
        "form": form,
        "seeded": coins.seeded,
    }


def read_coins(path: Path) -> Coins:
    """The coins that :func:`plant` wrote; ``InputError`` for anything else."""
    try:
        value = read_json(path)
        if value.pop("format") != FORMAT:
            raise ValueError
        coins = Coins(**{**value, "numbers": [(str(a), str(b)) for a, b in value["numbers"]]})
        if len(coins.numbers) != len(coins.coins) or not coins.coins or coins.form not in get_args(Form):
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not such a file"
        raise InputError(
            f"{path} cannot be read as the coins of an audit: {problem}; name the .coins.json that "
            "redactory evaluate audit --plant wrote"
        ) from None
    return coins


def _row(coins: Coins, sentence: str, number: int, named: Mapping[str, str], labelled: bool) -> str:
    name = f"audit-{number:06d}"
    row: dict[str, Any] = {named["id"]: name, named["user_id"]: name, named["text"]: sentence}
    if labelled:
        start = len(coins.template) - len(PLACE)
        span = {"start": start, "end": len(sentence), "label": LABEL, "value": sentence[start:]}
        row["spans"] = [] if sentence.endswith(MASK) else [span]
    return json.dumps(row, ensure_ascii=False) + "\n"


def _count(corpus: Path) -> tuple[int, dict[str, Any]]:
    """How many rows there are, and the first of them."""
    lines = _lines(corpus)
    try:
        first = json.loads(next(lines, "null"))
    except ValueError:
        first = None
    if not isinstance(first, dict):
        raise InputError(
            f"{corpus.name}: at least one row, a JSON object each, is needed to plant canaries in"
        )
    return 1 + sum(1 for _ in lines), first


def _lines(corpus: Path) -> Iterator[str]:
    try:
        with corpus.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line if line.endswith("\n") else line + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{corpus.name} cannot be read: {type(error).__name__}") from None
