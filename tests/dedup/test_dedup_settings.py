"""The settings: each side's mode, and what cannot be asked for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from redactory.dedup import RULES, DedupSettings
from redactory.dedup.settings import Mode
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.loading import load_config


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "near"},
        {"private_mode": "greedy"},
        {"scope": "sides"},
        {"near": True},
        {"near": {"threshold": 0.2}},
        {"near": {"threshold": 1.1}},
        {"bloom": {"capacity": 0}},
        {"bloom": {"error_rate": 0.5}},
    ],
)
def test_what_is_unknown_or_senseless_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DedupSettings.model_validate(wrong)


def test_every_mode_has_a_rule_and_the_default_a_proof() -> None:
    assert set(RULES) == set(Mode.__args__)  # type: ignore[attr-defined]
    assert DedupSettings() == DedupSettings(mode="exact", scope="corpus")
    assert RULES[DedupSettings().mode].group_size == 1


def test_the_private_side_follows_the_other_unless_it_is_told() -> None:
    assert DedupSettings(mode="folded").modes() == {"folded"}
    both = DedupSettings(mode="minhash", private_mode="exact")
    assert (both.mode_of("public"), both.mode_of("private")) == ("minhash", "exact")


def test_a_limit_across_the_split_needs_the_count() -> None:
    config = {"input": "x.jsonl", "release": {"max_cross_split": 0}}
    assert load_config(config).release.max_cross_split == 0
    with pytest.raises(ConfigurationError, match=r"max_cross_split needs dedup\.across"):
        load_config({**config, "dedup": {"across": False}})


def test_what_changes_speed_only_is_not_part_of_the_shards_identity() -> None:
    plain, batched = (load_config({"input": "x.jsonl", "detect": {"batch_size": n}}) for n in (1, 2))
    assert plain.curation_hash() == batched.curation_hash()
    other = load_config({"input": "x.jsonl", "dedup": {"near": {"threshold": 0.8}}})
    assert other.curation_hash() != plain.curation_hash()
