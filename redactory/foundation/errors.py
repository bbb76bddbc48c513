"""Errors that a user reads.  No message ever carries text of a corpus, only files, rows, keys and ids."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class RedactoryError(Exception):
    """Base of every error Redactory raises on purpose; the message is free of corpus text.

    ``exit_code`` is what the command line ends with: 1 a check failed, 2 bad input or configuration.
    """

    exit_code = 2


class ConfigurationError(RedactoryError, ValueError):
    """A setting is wrong; the message names the key's path and the mend."""


class InputError(RedactoryError, ValueError):
    """The input as a whole cannot be read; the message names the file and, where there is one, the row."""


class RunStateError(RedactoryError):
    """A run folder is not in the state that the command needs (locked, unfinished, changed, absent)."""


class CheckFailed(RedactoryError):
    """Something was checked and did not hold: a digest, a conservation law, a release rule."""

    exit_code = 1


class GuaranteeError(CheckFailed):
    """A guarantee cannot be stated about the code that ran; never answered with a number."""


class SealedError(RedactoryError):
    """Stands in for an unexpected error whose own message might quote the corpus.

    The traceback lies in the run's private ``state/`` under the reference that the message gives.
    """

    exit_code = 1


# A number and what it counts, several things in a row, as people write them.


def pluralize(count: int, what: str, many: str | None = None) -> str:
    """``1 point``, ``2,000 points``; ``many`` is the plural where that is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


_WORD = r"(?:[A-Z]?[^\W\d_A-Z]+|[A-Z]+){1,3}"
_JOINT = r"(?:[_./-]|\[\*?\]){1,4}"
_PATH = rf"_{{0,2}}{_WORD}(?:{_JOINT}{_WORD}){{0,5}}(?:{_JOINT})?(?:_\d{{1,2}})?"
_WORDS = re.compile(rf"{_PATH}|{_WORD}(?: {_WORD}){{1,2}}")
_LONGEST, _SHOWN = 40, 3
"""Characters of a name that is shown as it is; of one that is not."""


def shorten(name: object) -> str:
    """A name that somebody wrote in a wrong place: as it is where it is words, else how it begins.

    What was pasted there can be a password or a key, and messages go into logs.  A password that is a word
    cannot be told from a key that is misspelt.
    """
    text = str(name)
    if len(text) <= _LONGEST and (_WORDS.fullmatch(text) or (len(text) <= _SHOWN and text.isprintable())):
        return text
    return f"{text[:_SHOWN].encode('unicode_escape').decode()}… ({pluralize(len(text), 'character')})"


def join_words(things: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; ``last`` stands before the last of them."""
    *before, end = things
    return f"{', '.join(before)} {last} {end}" if before else end


def did_you_mean(wrong: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """``; did you mean 'X'?`` with the choice that is most similar to ``wrong``; empty where none is near.

    Near is a choice that begins with ``wrong``, or has at least the similarity ``cutoff``, from 0 to 1.
    """
    choices = sorted(choices)
    near = [one for one in choices if wrong and one.startswith(f"{wrong}_")]
    near += difflib.get_close_matches(wrong, choices, n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""
