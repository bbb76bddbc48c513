"""Errors that a user reads.  No message ever carries text of a corpus, only files, rows, keys and ids."""

from __future__ import annotations

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


def some(count: int, what: str, many: str | None = None) -> str:
    """``1 point``, ``2,000 points``; ``many`` is the plural where that is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def listed(things: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; ``last`` stands before the last of them."""
    *before, end = things
    return f"{', '.join(before)} {last} {end}" if before else end
