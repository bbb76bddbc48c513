"""Errors that a user reads. Messages contain files, rows, keys and ids, never text of a corpus."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class RedactoryError(Exception):
    """Base of every error that Redactory raises on purpose; messages contain no corpus text.

    ``exit_code`` is that of the command line: 1 a check failed, 2 bad input or configuration.
    """

    exit_code = 2


class ConfigurationError(RedactoryError, ValueError):
    """A setting is wrong; the message names the key's path and the fix."""


class InputError(RedactoryError, ValueError):
    """The input cannot be read; the message names the file and, if known, the row."""


class RunStateError(RedactoryError):
    """A run folder is in the wrong state for the command (locked, unfinished, changed, absent)."""


class CheckFailed(RedactoryError):
    """A check failed: a digest, a conservation law, a release rule."""

    exit_code = 1


class GuaranteeError(CheckFailed):
    """No guarantee can be stated for the code that ran, so no epsilon is reported."""


class SealedError(RedactoryError):
    """Replaces an unexpected error that might quote the corpus, and names its traceback in private ``state/``."""

    exit_code = 1


def pluralize(count: int, noun: str, plural: str | None = None) -> str:
    """Format ``1 row``, ``2,000 rows``; ``plural`` is the plural if it is not ``noun`` with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


_WORD = r"(?:[A-Z]?[^\W\d_A-Z]+|[A-Z]+){1,3}"
_JOINT = r"(?:[_./-]|\[\*?\]){1,4}"
_PATH = rf"_{{0,2}}{_WORD}(?:{_JOINT}{_WORD}){{0,5}}(?:{_JOINT})?(?:_\d{{1,2}})?"
_WORDS = re.compile(rf"{_PATH}|{_WORD}(?: {_WORD}){{1,2}}")
_MAX_NAME_LENGTH, _PREFIX_LENGTH = 40, 3
"""Maximum characters of a readable name, and of the prefix shown of any other."""


def shorten_name(name: object) -> str:
    """Return a misplaced name whole if it consists of words, else only its beginning.

    A pasted value can be a password or a key, and messages go into logs. A password that is a word cannot be told from
    a misspelt key.
    """
    text = str(name)
    if len(text) <= _MAX_NAME_LENGTH and (
        _WORDS.fullmatch(text) or (len(text) <= _PREFIX_LENGTH and text.isprintable())
    ):
        return text
    return f"{text[:_PREFIX_LENGTH].encode('unicode_escape').decode()}… ({pluralize(len(text), 'character')})"


def join_words(words: Iterable[str], conjunction: str = "and") -> str:
    """Join as ``a``, ``a and b``, ``a, b and c``, with ``conjunction`` as the conjunction."""
    *before, end = words
    return f"{', '.join(before)} {conjunction} {end}" if before else end


def did_you_mean(wrong: str, choices: Iterable[str], cutoff: float = 0.6) -> str:
    """Return ``; did you mean 'X'?`` for the choice most similar to ``wrong``; empty if none is near.

    A choice is near if it begins with ``wrong``, or has at least the similarity ``cutoff``, from 0 to 1.
    """
    choices = sorted(choices)
    near = [choice for choice in choices if wrong and choice.startswith(f"{wrong}_")]
    near += difflib.get_close_matches(wrong, choices, n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""
