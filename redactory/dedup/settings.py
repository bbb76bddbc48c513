"""Settings of deduplication, and what each mode does and proves."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import pluralize
from redactory.foundation.settings import AbsolutePath, Settings

Mode = Literal["exact", "folded", "bloom", "minhash", "none"]


@dataclass(frozen=True)
class DedupRule:
    """What a mode does and proves (``docs/guarantees.md``, "Deduplication").

    ``group_size``: substitutions in the multiset of kept texts when one example is exchanged; None without a bound,
    when no finite epsilon can be stated. The guarantee takes ``name`` and ``group_size`` from a run's manifest;
    ``tests/dedup/test_rules.py`` checks them against every corpus of a small world.
    """

    name: str
    group_size: int | None
    planned: bool = False
    """Whether the mode plans over the digests of redacted texts."""
    folded: bool = False
    """Whether texts that differ only in case, punctuation, white space or digits have one digest."""
    one_pass: bool = False
    """Whether a Bloom filter drops repeats in one pass."""
    near: bool = False
    """Whether near-duplicates are dropped, also those of texts of earlier runs."""

    @property
    def matches_by_digest(self) -> bool:
        """Whether texts of earlier runs are recognized by digest."""
        return self.one_pass or (self.planned and not self.near)


RULES: dict[Mode, DedupRule] = {
    "exact": DedupRule("S1", 1, planned=True),
    "folded": DedupRule("S2", 2, planned=True, folded=True),
    "none": DedupRule("none", 1),
    "minhash": DedupRule("near-greedy", None, planned=True, near=True),
    "bloom": DedupRule("bloom", None, one_pass=True),
}


BLOOM_ERROR_RATE = 1e-4
"""Share of new texts that the filter of mode ``bloom`` takes for repeats, and drops, once it is full."""


class NearSettings(Settings):
    """Definition of a near-duplicate, for mode ``minhash`` and the report across splits."""

    threshold: float = Field(
        0.7,
        ge=0.3,
        le=1,
        description="Minimum Jaccard similarity of two texts' word shingles to count as near-duplicates.",
    )
    shingle: int = Field(
        2, ge=1, le=10, description="Words in a shingle: 2 for sentences and turns, 3 to 5 for documents."
    )
    permutations: ClassVar[int] = 128
    """Maximum hash values per signature; bands and rows follow from the threshold."""


class IndexSettings(Settings):
    """The index of texts in earlier runs."""

    path: AbsolutePath = Field(
        description="The folder of the index, created by its first run; private. Relative to the configuration file."
    )
    keep: dict[Literal["runs", "days"], Annotated[int, Field(ge=1)]] = Field(
        {},
        description="Keep only this many of the latest runs in the index, and none older than this many "
        "days; default: keep all.",
    )


class DedupSettings(Settings):
    """Which repeated examples are dropped from a split."""

    mode: Mode = Field(
        "exact",
        description="exact: a redacted text is a duplicate from its second occurrence on (rule S1); folded: "
        "texts that differ only in case, punctuation, white space or digits are equal (rule S2, groups count "
        "twofold); none: every example is kept. Without a stability proof, so no finite epsilon: minhash: "
        "near-duplicates are dropped; bloom: one pass, fixed memory, false positives are lost.",
    )
    private_mode: Mode | None = Field(
        None,
        description="The mode of the private split, if different: with minhash on the public split and exact "
        "here the guarantee holds in full.",
    )
    scope: Literal["corpus", "user"] = Field(
        "corpus", description="Whether a text repeats across the corpus, or only within one user's examples."
    )
    near: NearSettings = NearSettings()
    report_cross_split: bool = Field(
        True,
        description="List the public examples that nearly duplicate a private one (audit/across): suspected "
        "misses of the conservative policy. No example is moved.",
    )
    index: IndexSettings | None = Field(
        None, description="Examples that repeat what an earlier run of this index saw are duplicates too."
    )

    @model_validator(mode="after")
    def _check_index_mode(self) -> Self:
        if self.index is not None and not any(r.planned or r.one_pass for r in self.get_rules().values()):
            raise ValueError("index has no effect with mode none, which keeps every example: remove it")
        return self

    def mode_for(self, split: str) -> Mode:
        """The mode of the split ``public`` or ``private``."""
        return self.private_mode if split == "private" and self.private_mode else self.mode

    def get_rules(self) -> dict[str, DedupRule]:
        """The deduplication rule of each split."""
        return {split: RULES[self.mode_for(split)] for split in ("public", "private")}


def summarize_dedup(facts: dict[str, Any]) -> list[str]:
    """Describe in sentences what a run's deduplication did and proves, from its manifest section ``dedup``."""
    # imported on first use: Jinja takes a tenth of a second
    from jinja2 import Template

    template = Template((files("redactory.dedup") / "summary.j2").read_text(encoding="utf-8"), autoescape=False)
    text: str = template.render(facts=facts, rules=RULES, some=pluralize, up=format_upper, many="{:,}".format)
    return text.strip().splitlines()
