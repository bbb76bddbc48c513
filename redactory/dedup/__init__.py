"""Dedup: which texts repeat an earlier one, exactly or nearly.

The exact plan promises exact answers in bounded memory: keyed 128-bit digests are spread over hash
ranges on disk, and each range names, for every repeated digest, the point that stands for it.  As a
multiset the kept digests are a set: one text more or less in the corpus changes at most one of them
(rule S1 of ``docs/guarantees.md``, deduplication).  Near-duplicates are found by MinHash, verified by
their true similarity, and chosen among within a side; mode ``bloom`` is one pass in fixed memory.  What
each mode proves, or does not, stands in :data:`RULES`.
"""

from redactory.dedup.plan import RANGES, first_of, plan_range, ranges_of, read_range, write_digests
from redactory.dedup.settings import RULES, BloomSettings, DedupSettings, IndexSettings, NearSettings, Rule

__all__ = [
    "RANGES",
    "RULES",
    "BloomSettings",
    "DedupSettings",
    "IndexSettings",
    "NearSettings",
    "Rule",
    "first_of",
    "plan_range",
    "ranges_of",
    "read_range",
    "write_digests",
]
