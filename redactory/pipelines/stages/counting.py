"""Public by count: who gave which text, which of these are counted, and the public side that follows.

The policies still mask; what decides a side is how many users gave the masked text, with noise and a
threshold (``docs/guarantees.md``, "Public by count").  The public shard is written from the selected texts
alone, by digest: neither the order nor the rows of the corpus decide anything in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from redactory.dedup import write_digests
from redactory.dedup.counting import bound_range, count_range, write_contributions
from redactory.dedup.plan import ENTRY, are_among
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import PUBLIC_FILE, make_private_folder
from redactory.foundation.keys import DIGEST_BYTES
from redactory.foundation.progress import StageReport
from redactory.foundation.stream import RandomStream
from redactory.pipelines.config import Config
from redactory.pipelines.journal import Journal
from redactory.pipelines.stages.dedup import fate_digests, owners_of, users_of
from redactory.pipelines.work import REDACTED, Job, column, numbers, scalar, table_of
from redactory.redaction import PRIVATE, PUBLIC, Fate, part_name, read_part, read_secret, write_part, write_secret
from redactory.redaction.shards import ROLE, USERS
from redactory.training.counted import Selection
from redactory.training.lattice import rounded_normal

FEW = "count:FEW"
"""Why a point is private whose text too few users gave."""


def begin_selection(job: Job, journal: Journal) -> Job:
    """``job`` with the selection that it makes: its constants, and the name of its noise's key.

    The key is drawn once a run and lies with the work files, gone when the run is finished.  What the
    selection spends stands in the journal before the first count, and in ``train.budget`` where there is one.
    """
    own = job.config.route
    if own.strategy == "policies":
        return job
    if journal.selected is None:
        stream = RandomStream.from_entropy()
        make_private_folder(job.run.work)
        write_secret(job.count_key, stream.root)
        found = Selection.calibrated(own.epsilon, own.delta, own.texts_per_user)
        name = stream.octets("fingerprint", 0, 16).hex()
        journal.select({**own.model_dump(mode="json"), **replace(found, id=name).to_json()})
    selection = Selection.of_run({"route": journal.selected})
    assert selection is not None
    if job.config.train.budget is not None:
        from redactory.pipelines.models import require_training_packages

        require_training_packages()
        from redactory.training.guarantee.budget import Budget

        budget = Budget.of(job.config.train)
        assert budget is not None
        budget.reserve_selection(selection, job.run.root.name)
    return replace(job, selection=selection)


def check_countable(config: Config) -> None:
    """``ConfigurationError`` where noise could not be drawn here."""
    if config.route.strategy != "policies" and find_spec("mpmath") is None:
        raise ConfigurationError(
            "route.strategy: exactly rounded noise needs mpmath, not installed here: pip install 'redactory[train]'"
        )


# Who gave what; bounded by user, counted by text.


def contribute(job: Job, partition: int, points: pa.Table, fates: Sequence[Fate]) -> None:
    """Write one partition's contributions: the texts that may become public, each with who gave it.

    With ``strategy: both`` those alone in which no policy found anything, which is a function of the text
    too.
    """
    key, digests = job.key, digests_of(job, points, [fate.text for fate in fates])
    of_user, of_pair = key.purpose("count/user"), key.purpose("count/choice")
    rows = []
    for user, text, fate in zip(users_of(points), digests, fates, strict=True):
        if fate.failure is None and (job.config.route.strategy == "count" or fate.side == PUBLIC):
            own = key.text_digest(of_user, user.encode())
            rows.append((own, key.text_digest(of_pair, own + text), text))
    _write(job, "masked", partition, points, fates)
    users, ranks, texts = zip(*rows, strict=True) if rows else ((), (), ())
    write_contributions(job.digests("given", partition), users, ranks, texts)


def digests_of(job: Job, points: pa.Table, texts: Sequence[str | None]) -> list[bytes]:
    """What is counted of each point: its masked text, with its role where there are roles."""
    purpose = job.key.purpose("count/text")
    roles = points[ROLE].to_pylist() if ROLE in job.carried.names else [None] * len(texts)
    pairs = zip(roles, texts, strict=True)
    return [job.key.text_digest(purpose, f"{role or ''}\x00{text or ''}".encode()) for role, text in pairs]


def bound_users(job: Job, partitions: int, number: int) -> StageReport:
    """Keep k distinct texts of each user, in one hash range of users."""
    files = [job.digests("given", partition) for partition in range(partitions)]
    bound_range(files, number, job.hash_ranges, _selection(job).texts, job.range("bounded", number))
    return StageReport("bound")


def count_texts(job: Job, partitions: int, number: int) -> StageReport:
    """Count, add noise and compare with the threshold, in one hash range of texts."""
    own = _selection(job)
    try:
        stream = RandomStream(read_secret(job.count_key))
    except FileNotFoundError:
        raise RunStateError("the key of the counts' noise is gone: start a new run in another folder") from None
    if stream.octets("fingerprint", 0, 16).hex() != own.id:
        raise RunStateError("the key of the counts' noise belongs to another run: start a new run in another folder")

    def noise(piece: int, texts: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return rounded_normal(stream, "counts", piece, texts, own.deviation)

    count_range(job.ranges("bounded"), number, job.hash_ranges, own.threshold, noise, job.range("counted", number))
    return StageReport("count")


def _selection(job: Job) -> Selection:
    assert job.selection is not None
    return job.selection


# What follows: a point's side, and the public shard.


def route_part(job: Job, partitions: int, number: int) -> StageReport:
    """Decide the sides of one partition's points by what was selected, and write their fates."""
    points, masked = read_part(job.part("points", number)), read_part(job.part("masked", number))
    fates = [
        Fate(row["side"], row["text"] or "", tuple(row["reasons"]), 0, row["failure"]) for row in masked.to_pylist()
    ]
    entries = np.empty(len(fates), ENTRY)
    own = b"".join(digests_of(job, points, [fate.text for fate in fates]))
    words = np.frombuffer(own, ">u8").reshape(-1, 2).T
    entries["high"], entries["low"] = words
    among = np.zeros(len(fates), bool)
    for path in job.ranges("counted"):
        among |= are_among(path, entries)
    both, decided = job.config.route.strategy == "both", list[Fate]()
    for fate, selected in zip(fates, among.tolist(), strict=True):
        if fate.failure is not None or (both and fate.side == PRIVATE):
            decided.append(fate)
        elif selected:
            decided.append(replace(fate, side=PUBLIC, reasons=()))
        else:
            decided.append(replace(fate, side=PRIVATE, reasons=(*fate.reasons, FEW)))
    write_fates(job, number, points, decided)
    counts = Counter({f"reason/{FEW}": sum(FEW in fate.reasons for fate in decided)})
    return StageReport("route", counts)


def write_fates(job: Job, partition: int, points: pa.Table, fates: Sequence[Fate]) -> None:
    """Write the fates of one partition's points, and the digests that repeats are found by."""
    ids = numbers(points, "point_id")
    digests, ranks = fate_digests(job.key, job.config.dedup, ids.tolist(), fates, owners_of(job, points))
    write_digests(job.digests("redacted-digests", partition), digests, ids, ranks)
    _write(job, "redacted", partition, points, fates)


def _write(job: Job, table: str, partition: int, points: pa.Table, fates: Sequence[Fate]) -> None:
    columns = {field.name: [getattr(fate, field.name, None) for fate in fates] for field in REDACTED}
    write_part(job.part(table, partition), table_of({**columns, "point_id": points["point_id"]}, REDACTED))


def named_by_text(job: Job, points: pa.Table, redacted: pa.Table, records: pa.Table) -> pa.Table:
    """``records`` in which a public point's released id follows from its text, and from no place."""
    digests = digests_of(job, points, redacted["text"].to_pylist())
    names = job.key.pseudonyms("counted", [digest.hex() for digest in digests])
    public = pc.equal(records["fate"], scalar(PUBLIC))
    ids = pc.if_else(public, column(names, pa.string()), records["released_id"])
    return records.set_column(records.schema.get_field_index("released_id"), "released_id", ids)


def publish(job: Job, partitions: int, number: int) -> StageReport:
    """Write ``public/``: the selected texts in the order of their digests, each with its noisy number."""
    rows = pa.concat_tables(read_part(job.part("held", partition)) for partition in range(partitions))
    counted = np.concatenate([np.load(path) for path in job.ranges("counted")])
    octets = np.stack([counted["high"], counted["low"]], 1).astype(">u8").tobytes()
    keys = [octets[place : place + DIGEST_BYTES].hex() for place in range(0, len(octets), DIGEST_BYTES)]
    users = dict(zip(job.key.pseudonyms("counted", keys), counted["users"].tolist(), strict=True))
    order = {name: place for place, name in enumerate(users)}
    ids = rows["point_id"].to_pylist()
    rows = rows.take(column(sorted(range(len(ids)), key=lambda row: order[ids[row]]), pa.int64()))
    found = [users[name] for name in rows["point_id"].to_pylist()]
    columns = {**{name: rows[name] for name in rows.column_names}, USERS: found}
    write_part(job.run.public / part_name(0), table_of(columns, job.shard_schema(PUBLIC)), PUBLIC_FILE)
    return StageReport("publish")
