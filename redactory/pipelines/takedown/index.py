"""What the index across runs shall forget with a person: texts that nobody else in the run has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redactory.dedup import DedupSettings
from redactory.foundation.keys import DigestKey
from redactory.pipelines.reissue.index import index_of
from redactory.pipelines.stages.fate_digests import fate_digests
from redactory.pipelines.takedown.heirs import SIDES, Heirs, remaining_texts, shard_texts
from redactory.pipelines.takedown.person import Row
from redactory.pipelines.takedown.texts import Told, fates_of, has_vault
from redactory.redaction import Fate, RunFolder

DIGESTS = frozenset({"exact", "folded"})
"""Modes whose digests of what a run saw are there one by one; mode ``bloom`` has a filter alone."""


def forgotten(
    run: RunFolder,
    manifest: Mapping[str, Any],
    settings: DedupSettings,
    key: DigestKey,
    points: dict[int, Row],
    heirs: Heirs,
) -> dict[str, Any] | None:
    """``{"digests": {side: hex}, "points": {side: ids}, "whole"}``; None for a run without an index.

    ``whole`` is False where more was to be forgotten than could be: of mode ``bloom``, or because the vault
    that says it was purged.
    """
    if index_of(run, manifest) is None:
        return None
    gone: dict[str, Any] = {"digests": {}, "points": {}, "whole": True}
    for side in SIDES:
        mode, own = settings.mode_of(side), {p: row for p, row in points.items() if row["side"] == side}
        gone["digests"][side], gone["points"][side] = [], []
        if mode == "minhash":
            gone["points"][side] = sorted(point for point, row in own.items() if row["fate"] == side)
        elif mode in DIGESTS:
            digests, whole = _digests(run, settings, key, side, own, heirs, set(points))
            gone["digests"][side] = sorted(digest.hex() for digest in digests)
            gone["whole"] &= whole
        elif mode == "bloom":
            gone["whole"] &= not own
    return gone


def _digests(
    run: RunFolder,
    settings: DedupSettings,
    key: DigestKey,
    side: str,
    own: dict[int, Row],
    heirs: Heirs,
    gone: set[int],
) -> tuple[set[bytes], bool]:
    """The digests of one side that only she had, and whether these are all."""
    inherited = set(heirs.replaces.values())
    lone = {p: row for p, row in own.items() if row["fate"] == side and p not in inherited}
    repeats = [p for p, row in own.items() if row["earlier_run"] is not None]
    if not has_vault(run):
        if settings.scope == "user":
            return set(), not (lone or repeats)
        texts = shard_texts(run, {row["released_id"]: point for point, row in lone.items()})
        told = [Told(Fate(side, text, ()), "") for text in texts.values()]
        return set(_of(key, settings, told)), not repeats
    mine = set(_of(key, settings, [*fates_of(run, [*lone, *repeats]).values()]))
    # what repeats an earlier run stands in this run's entry as well, and others may repeat the same
    stays = [told for _, told in remaining_texts(run, gone, side)] if repeats else []
    return mine - set(_of(key, settings, stays)), True


def _of(key: DigestKey, settings: DedupSettings, told: list[Told]) -> list[bytes]:
    users = [one.owner for one in told] if settings.scope == "user" else None
    return fate_digests(key, settings, range(len(told)), [one.fate for one in told], users)[0]
