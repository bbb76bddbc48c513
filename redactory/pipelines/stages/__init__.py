"""The stages of a curation: plain functions over one partition (or one hash range).

Each reads files, commits files, and hands back counts.  Its output is a function of its input, the
configuration and the versions in the manifest, so running it again writes the same bytes.
"""

from redactory.pipelines.stages.detect import detect_part, spread_range
from redactory.pipelines.stages.duplicates import dedup_steps, memory_steps
from redactory.pipelines.stages.ingest import ingest, segment_part
from redactory.pipelines.stages.plans import plan_documents, plan_texts, screen_texts
from redactory.pipelines.stages.redact import redact_part, shard_part

__all__ = [
    "dedup_steps",
    "detect_part",
    "ingest",
    "memory_steps",
    "plan_documents",
    "plan_texts",
    "redact_part",
    "screen_texts",
    "segment_part",
    "shard_part",
    "spread_range",
]
