"""Settings of deduplication, as they stand in the configuration file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from redactory.foundation.settings import Settings


class DedupSettings(Settings):
    """Which repeated points are dropped from a side."""

    mode: Literal["exact", "none"] = Field(
        "exact",
        description="exact: from the second occurrence on, a redacted text is a duplicate; none: every point "
        "is kept, which trains better, while a secret that π misses in k points is a group of k.",
    )
    scope: Literal["corpus", "user"] = Field(
        "corpus", description="Whether a text repeats across the corpus, or only within one user's points."
    )
