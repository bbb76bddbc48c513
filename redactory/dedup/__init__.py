"""Dedup: which texts repeat an earlier one, exactly or nearly.

The exact plan promises exact answers in bounded memory: keyed 128-bit digests are spread over hash ranges on disk, and
each range names, for every repeated digest, the point that stands for it.  As a multiset the kept digests are a set:
one text more or less in the corpus changes at most one of them (rule S1 of ``docs/guarantees.md``, deduplication).
Near-duplicates are found by MinHash, verified by their true similarity, and chosen among within a side; mode ``bloom``
is one pass in fixed memory.  What each mode proves, or does not, stands in :data:`RULES`.
"""

from redactory.dedup.plan import RANGES as RANGES
from redactory.dedup.plan import hash_ranges as hash_ranges
from redactory.dedup.plan import lookup_first as lookup_first
from redactory.dedup.plan import plan_range as plan_range
from redactory.dedup.plan import read_range as read_range
from redactory.dedup.plan import write_digests as write_digests
from redactory.dedup.settings import RULES as RULES
from redactory.dedup.settings import DedupSettings as DedupSettings
from redactory.dedup.settings import NearSettings as NearSettings
from redactory.dedup.settings import Rule as Rule
