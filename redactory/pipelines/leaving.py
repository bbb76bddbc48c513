"""Leaving: what forbids that a run leaves, and how it is held while it does.

One answer for ``verify``, an export, a mirror and a night's release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from redactory.detectors import blind_of, blind_words
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError, listed
from redactory.foundation.files import only_one
from redactory.pipelines.release_log import check_released
from redactory.pipelines.verify_seals import Check
from redactory.redaction import RunFolder, read_manifest, require_regular

PATIENCE = 60.0
"""Seconds that what leaves waits for another export, or for a takedown at its end."""


def what_forbids(manifest: Mapping[str, Any]) -> str | None:
    """Why the run of this manifest must not leave, with the mend; None where nothing forbids it."""
    blind = blind_of(manifest)
    accepted = manifest["configuration"]["release"].get("accept_blind", ())
    open_ = [kind for kind in blind["kinds"] if kind not in accepted]
    if not open_:
        return None
    return (
        f"{blind_words(blind)} Curate with an engine that finds {listed(open_)} in that language, or accept "
        f"what is missed and curate with release.accept_blind: [{', '.join(open_)}]"
    )


def check_may_leave(run: RunFolder) -> None:
    """``CheckFailed`` where something forbids that ``run`` leaves."""
    if (why := what_forbids(read_manifest(run))) is not None:
        raise CheckFailed(f"nothing leaves {run.root}. {why}")


def names_looked_for(manifest: Mapping[str, Any]) -> Check:
    """The check that names of every kind were looked for, or that their being missed was accepted."""
    name, why = "names looked for", what_forbids(manifest)
    accepted = blind_words(blind_of(manifest))
    fine = f"accepted (release.accept_blind). {accepted}" if accepted else "of persons, places, organisations"
    return Check(name, why is None, why or fine)


@contextmanager
def leaving(run: RunFolder) -> Iterator[Callable[[], None]]:
    """Hold a finished run while it, or a part of it, leaves: nobody changes it, or decides about it.

    Gives what is to be asked again just before the last step, where a lock alone may not do (another machine,
    a folder that was put back): both raise ``RunStateError`` where nothing may leave, or not any more.
    """
    read_manifest(run)  # a place that holds no run gets no lock by being asked for
    with only_one(run.lock, str(run.root), PATIENCE):
        began = _may_leave(run)

        def still() -> None:
            if _may_leave(run) != began:
                raise RunStateError(f"{run.root} was changed while it was to leave: ask again")

        yield still


def _may_leave(run: RunFolder) -> str:
    """The sha256 of the manifest of a run that may leave."""
    read_manifest(run)
    require_regular(run)
    check_released(run)
    check_may_leave(run)
    if run.reissue.plan.is_file():
        raise RunStateError(
            f"{run.root} is to be written anew (a takedown or a purge), and that was interrupted: ask for it "
            "again first (redactory takedown, redactory purge)"
        )
    return file_sha256(run.manifest)
