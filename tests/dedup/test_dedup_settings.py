"""Only the rules whose stability is proved can be asked for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from redactory.dedup import DedupSettings


@pytest.mark.parametrize(
    "wrong", [{"mode": "minhash"}, {"mode": "bloom"}, {"scope": "sides"}, {"near": True}]
)
def test_other_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DedupSettings.model_validate(wrong)
    assert DedupSettings() == DedupSettings(mode="exact", scope="corpus")
