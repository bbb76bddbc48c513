"""Spread: what was found in a text that occurs again, to each point that has it.

One barrier, by hash range: if each partition looked its repeated texts up where they were detected, it
would read nearly every earlier partition, and the time would grow with the square of the corpus.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from redactory.foundation.reports import StageReport
from redactory.pipelines.work import DETECTED, PARTITION_BITS, Job
from redactory.redaction import read_between, write_part

GROUP_ROWS = 2_048
"""Rows that are read at once of a table of which a part is looked for."""


def spread_range(job: Job, partitions: int, number: int) -> StageReport:
    """Write what was found in the repeated texts of one hash range, by the points that repeat them.

    Holds the pairs of the range's plan and the rows of its texts and repeats: about 100 bytes a row.
    """
    pairs = np.load(job.range("repeated-texts", number))
    found = _found(job, number, np.unique(pairs["first"]))
    owners = found["point_id"].to_numpy()
    begin, end = (np.searchsorted(owners, pairs["first"], side) for side in ("left", "right"))
    counts = end - begin
    # the rows of each pair's first point, one pair after the other: in the order of the points that repeat
    places = np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
    rows = found.take(pa.array(places))
    ids = pa.array(np.repeat(pairs["id"], counts), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("point_id"), "point_id", ids)
    write_part(job.spread(number), rows, group_rows=GROUP_ROWS)
    return StageReport("spread")


def _found(job: Job, number: int, firsts: NDArray[np.int64]) -> pa.Table:
    """The rows of the points ``firsts``, by point: those of one hash range in each partition."""
    tables = [DETECTED.empty_table()]
    bounds = np.flatnonzero(np.diff(firsts >> PARTITION_BITS, prepend=-1))
    for mine in np.split(firsts, bounds)[1:]:
        partition = int(mine[0]) >> PARTITION_BITS
        rows = read_between(job.part("found", partition), "range", number, number)
        wanted = np.isin(rows["point_id"].to_numpy(), mine)
        tables.append(rows.filter(pa.array(wanted)))
    return pa.concat_tables(tables).combine_chunks()
