"""The parts of a run without a person's rows, with the points that take her places; and what was counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from redactory.pipelines.reissue.reissue import Staging
from redactory.pipelines.stages.shard import DUPLICATE
from redactory.pipelines.takedown.heirs import Heirs
from redactory.pipelines.takedown.person import Row
from redactory.pipelines.takedown.rejected import Rejected, without_rows
from redactory.pipelines.takedown.texts import spans_of
from redactory.pipelines.work import PARTITION_BITS
from redactory.redaction import MASK, PRIVATE, PUBLIC, merge_intervals, part_name, parts, read_part
from redactory.redaction.shards import POINTS

Hit = tuple[str, str, str, float]
"""Policy, detector, label and score of one hit."""


@dataclass
class Tally:
    """What left the run: ``removed`` by kind, ``moved_up`` by side, and what the manifest counts of them."""

    removed: Counter[str] = field(default_factory=Counter)
    moved_up: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    hits: Counter[Hit] = field(default_factory=Counter)
    masks: int = 0
    across: int = 0


@dataclass
class _Part:
    """One partition, while its tables are made anew."""

    staging: Staging
    number: int
    gone: pa.Array
    tally: Tally

    def table(self, folder: Path) -> pa.Table | None:
        """The part as it is now; None where its folder was purged, or never written."""
        path = folder / part_name(self.number)
        return read_part(path) if path.is_file() else None

    def put(self, folder: Path, table: pa.Table) -> None:
        self.staging.put(folder / part_name(self.number), table)


def stage_parts(staging: Staging, gone: dict[int, Row], heirs: Heirs, rejected: Rejected) -> Tally:
    """Stage every part that holds one of the points ``gone``, or one that ``heirs`` changes."""
    tally = Tally()
    _count(gone, heirs, rejected, tally)
    touched = {p >> PARTITION_BITS for p in (*gone, *heirs.texts, *heirs.originals)}
    removed = pa.array(sorted(gone), pa.int64())
    for path in parts(staging.run.points):
        number = int(path.stem.rpartition("-")[2])
        part = _Part(staging, number, removed, tally)
        if number in touched:
            rows = _points(part, heirs)
            _shards(part, rows, gone, heirs)
            _originals(part)
        _quarantine(part, rejected.rows.get(path.name, []), number in touched)
        _across(part)
    return tally


def _count(gone: dict[int, Row], heirs: Heirs, rejected: Rejected, tally: Tally) -> None:
    lost = set(heirs.lost)
    tally.removed["documents"] = len({row["document"] for p, row in gone.items() if p not in lost})
    tally.removed["rejected"] = rejected.reasons.total()
    tally.rejected.update(rejected.reasons)
    for row in gone.values():
        tally.removed.update(("points", row["fate"]))
        tally.reasons.update(row["reasons"])
        if row["fate"] == DUPLICATE:
            tally.removed[f"{row['side']}_duplicate"] += 1
        if row["earlier_run"] is not None:
            tally.repeats[row["side"]] += 1


def _points(part: _Part, heirs: Heirs) -> list[Row]:
    """``audit/points`` without the points, each heir with a fate of its own; the new rows."""
    folder = part.staging.run.points
    rows: list[Row] = _without(read_part(folder / part_name(part.number)), part.gone).to_pylist()
    for row in rows:
        point = row["point_id"]
        if point in heirs.texts:
            row["fate"], row["dup_of"] = row["side"], None
            part.tally.moved_up[row["side"]] += 1
        elif point in heirs.originals:
            row["dup_of"] = heirs.originals[point]
    part.put(folder, pa.Table.from_pylist(rows, POINTS))
    return rows


def _shards(part: _Part, rows: list[Row], gone: dict[int, Row], heirs: Heirs) -> None:
    """Both sides, in the order of the points; an heir has its own released id, user and reasons."""
    run = part.staging.run
    for side, folder in ((PUBLIC, run.public), (PRIVATE, run.private)):
        table = read_part(folder / part_name(part.number))
        kept = {row["point_id"]: row for row in table.to_pylist()}
        new = []
        for row in rows:
            if row["fate"] == side:
                text = heirs.texts.get(row["point_id"])
                fresh = {**row, "point_id": row["released_id"], "text": text}
                new.append(kept[row["released_id"]] if text is None else fresh)
        names = table.schema.names
        made = pa.Table.from_pylist([{name: row[name] for name in names} for row in new], table.schema)
        if not made.equals(table):
            part.put(folder, made)
        if not _has_vault(part) and side == PRIVATE:
            # without the originals, the masks of the points that stood in a shard are all that can be counted
            mine = (kept.get(row["released_id"]) for row in gone.values())
            part.tally.masks += sum(row["text"].count(MASK) for row in mine if row)


def _originals(part: _Part) -> None:
    """``vault/`` and ``audit/spans``, and what the manifest counts of the spans that go."""
    run = part.staging.run
    ledger, vault = read_part(run.spans / part_name(part.number)), part.table(run.vault)
    hers = ledger.filter(pc.is_in(ledger["point_id"], part.gone))
    names = ("policy", "detector", "label", "score")
    part.tally.hits.update(zip(*(hers[name].to_pylist() for name in names), strict=True))
    if vault is not None:
        own, spans = vault.filter(pc.is_in(vault["point_id"], part.gone)), spans_of(hers)
        for point, text in zip(own["point_id"].to_pylist(), own["text"].to_pylist(), strict=True):
            strict = spans.get(point, {}).get("strict", ())
            part.tally.masks += len(merge_intervals(text, [(span.start, span.end) for span in strict]))
        if own.num_rows:
            part.put(run.vault, _without(vault, part.gone))
    if hers.num_rows:
        part.put(run.spans, _without(ledger, part.gone))


def _quarantine(part: _Part, places: list[int], touched: bool) -> None:
    if not places and not touched:
        return
    folder = part.staging.run.quarantine
    table = part.table(folder)
    if table is None:
        return
    kept = without_rows(table, places)
    mine = pc.fill_null(pc.is_in(kept["point_id"], part.gone), False)
    part.tally.quarantined.update(kept.filter(mine)["reason"].to_pylist())
    kept = kept.filter(pc.invert(mine))
    if kept.num_rows < table.num_rows:
        part.put(folder, kept)


def _across(part: _Part) -> None:
    """``audit/across`` without the rows that name a point of hers, on either side."""
    folder = part.staging.run.across
    table = part.table(folder)
    if table is None or not table.num_rows:
        return
    mine = pc.or_(pc.is_in(table["point_id"], part.gone), pc.is_in(table["private_point"], part.gone))
    if pc.any(mine).as_py():
        kept = table.filter(pc.invert(mine))
        part.tally.across += table.num_rows - kept.num_rows
        part.put(folder, kept)


def _has_vault(part: _Part) -> bool:
    return (part.staging.run.vault / part_name(part.number)).is_file()


def _without(table: pa.Table, gone: pa.Array) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["point_id"], gone)))
