"""What forbids that a run leaves: one answer for ``verify``, an export, a mirror and a night's release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redactory.detectors import blind_of, blind_words
from redactory.foundation.errors import CheckFailed
from redactory.foundation.wording import listed
from redactory.pipelines.verify_seals import Check
from redactory.redaction import RunFolder, read_manifest


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
