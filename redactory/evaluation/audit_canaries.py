"""Canaries with coins: what a one-run audit plants in a corpus before it is curated.

Each canary is a sentence with a random number, a document and a user of its own, planted once.  A fair coin
says which of two worlds the corpus is of for this canary, and they are the two that a guarantee compares:

- ``pair``: one number or another;
- ``masked``: the number or ``<MASK>``;
- ``absent``: the number, or no such document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import commit, read_json, write_json
from redactory.foundation.progress import Progress, silent
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK

Form = Literal["pair", "masked", "absent"]

TEMPLATE = "The code is: {digits}"
LABEL = "CANARY"
DIGITS = 8
FORMAT = "redactory-coins/1"
_PLACE = "{digits}"
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
        return self.template.replace(_PLACE, digits)

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
    if not template.endswith(_PLACE) or template.count(_PLACE) != 1:
        raise ConfigurationError(f"template: one {_PLACE}, at its end")
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
    lines = [_row(coins, sentence, n, named, first) for n, sentence in enumerate(coins.planted())]
    stream = RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed)
    # a canary's place must not tell its coin: the planted ones are put in an order of their own
    order = stream.permutation("order", 0, len(lines))
    places = np.sort((stream.uniform("places", 0, len(lines)) * (rows + 1)).astype(np.int64))
    with commit(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        position = 0
        for number, line in enumerate(_lines(corpus)):
            while position < len(places) and places[position] <= number:
                file.write(lines[order[position]])
                position += 1
            file.write(line)
            if (number + 1) % _PROGRESS_ROWS == 0 or number + 1 == rows:
                progress("plant", number + 1, rows, "rows")
        file.writelines(lines[place] for place in order[position:])
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
            "redactory audit plant wrote"
        ) from None
    return coins


def _row(coins: Coins, sentence: str, number: int, named: Mapping[str, str], first: Mapping[str, Any]) -> str:
    name = f"audit-{number:06d}"
    row: dict[str, Any] = {named["id"]: name, named["user_id"]: name, named["text"]: sentence}
    if "spans" in first:
        start = len(coins.template) - len(_PLACE)
        span = {"start": start, "end": len(sentence), "label": LABEL, "value": sentence[start:]}
        row["spans"] = [] if sentence.endswith(MASK) else [span]
    return json.dumps(row, ensure_ascii=False) + "\n"


def _count(corpus: Path) -> tuple[int, dict[str, Any]]:
    rows, first = 0, {}
    for line in _lines(corpus):
        if not rows:
            try:
                first = json.loads(line)
            except ValueError:
                raise InputError(
                    f"{corpus.name}, row 1: JSON lines are needed to plant canaries in"
                ) from None
        rows += 1
    if not isinstance(first, dict) or not rows:
        raise InputError(
            f"{corpus.name}: at least one row, a JSON object each, is needed to plant canaries in"
        )
    return rows, first


def _lines(corpus: Path) -> Iterator[str]:
    try:
        with corpus.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line if line.endswith("\n") else line + "\n"
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{corpus.name} cannot be read: {type(error).__name__}") from None
