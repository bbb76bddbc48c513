"""One check of a run that ends in an error is that check's failure, and the others are made all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from redactory.foundation.errors import ConfigurationError, RedactoryError, SealedError
from redactory.pipelines.sealed import wordless
from redactory.pipelines.verify_seals import Check
from redactory.redaction import RunFolder, part_rows, parts


def attempted(run: RunFolder, name: str, checks: Callable[[], Iterable[Check]]) -> list[Check]:
    """What ``checks`` gives; where it ends in an error, one failed check ``name`` that says why.

    An error that is not our own can quote text: its kind is told, and the part that cannot be read, if one
    cannot.  Nothing is written.
    """
    try:
        return wordless("it was checked", lambda: list(checks()))
    except ConfigurationError as error:
        # of this machine's settings: it says nothing about the run
        return [Check(name, False, str(error), made=False)]
    except SealedError as error:
        broken = _unreadable(run)
        return [Check(name, False, f"{broken} cannot be read" if broken else str(error))]
    except RedactoryError as error:
        return [Check(name, False, str(error))]


def _unreadable(run: RunFolder) -> str | None:
    """The first part of the data folders that is no part at all."""
    for path in (path for folder in run.data_folders for path in parts(folder)):
        try:
            wordless("a part was opened", part_rows, path)
        except RedactoryError:
            return path.relative_to(run.root).as_posix()
    return None
