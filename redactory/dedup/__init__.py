"""Dedup: which texts repeat an earlier one.

The room promises exact answers in bounded memory: keyed 128-bit digests are spread over hash ranges
on disk, and each range names, for every repeated digest, the point that held it first.  As a multiset
the kept digests are a set: one text more or less in the corpus changes at most one of them (rule S1
of ``docs/guarantees.md``, deduplication).
"""

from redactory.dedup.digests import read_range, write_digests
from redactory.dedup.plan import RANGES, DuplicatePlan, plan_range
from redactory.dedup.settings import DedupSettings

__all__ = ["RANGES", "DedupSettings", "DuplicatePlan", "plan_range", "read_range", "write_digests"]
