"""Deduplication: find texts that repeat an earlier one, exactly or nearly.

The exact plan is exact in bounded memory: keyed 128-bit digests are spread over hash ranges on disk, and each range
names, for every repeated digest, the example that is kept. The kept digests, as a multiset, are a set: one text more or
less in the corpus changes at most one of them (rule S1 of ``docs/guarantees.md``, deduplication). Near-duplicates are
found by MinHash, verified by their true similarity, and selected within a split. Mode ``bloom`` is one pass in fixed
memory. :data:`RULES` states what each mode proves.
"""

from redactory.dedup.plan import compute_hash_ranges as compute_hash_ranges
from redactory.dedup.plan import find_repeats_in_range as find_repeats_in_range
from redactory.dedup.plan import lookup_replacements as lookup_replacements
from redactory.dedup.plan import write_digests as write_digests
from redactory.dedup.settings import RULES as RULES
from redactory.dedup.settings import DedupSettings as DedupSettings
