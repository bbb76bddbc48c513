"""What is kept of a policy's fit: on which labels, with which bound, and how its rows are told again.

Thresholds that were fitted on labels are a function of those labels (``docs/guarantees.md``, "Side
channels", item 2), and what a policy misses is never measured on the rows that it was fitted on.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import write_json
from redactory.foundation.keys import DigestKey
from redactory.foundation.settings import Settings

_FORMAT = "redactory-fitted-rows/1"
_PURPOSE = "fitted-rows"
_KEY = "detect.conservative.fitted"
_Share = Annotated[float, Field(gt=0, lt=1)]
_Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FittedPolicy(Settings):
    """How ``redactory fit-policy`` came to the thresholds beside it; written by it, not by hand."""

    file_sha256: _Sha256 | None = Field(
        None, description="Of the labelled file, as an earlier version wrote it; read, and not looked at."
    )
    rows: PositiveInt = Field(description="Its rows.")
    secrets: PositiveInt = Field(description="Labelled secrets that were tested, one a unit.")
    unit: Literal["user", "row"] = Field(description="What one secret each was drawn from.")
    misses: int = Field(ge=0, description="Of those, how many both policies missed.")
    miss_rate: _Share = Field(description="Bound of the share of secrets that both policies miss.")
    confidence: _Share = Field(description="Confidence of that bound, on secrets drawn like these.")
    segment: str = Field(description="How the rows were cut into points.")
    policies: dict[str, _Sha256] = Field(
        description="Hashes of the strict and the conservative policy that the bound was shown for."
    )
    date: datetime.date = Field(description="When.")
    rows_file: str = Field(description="Keyed digests of the rows; measurements refuse what is in it.")
    rows_sha256: _Sha256 = Field(description="Of that file.")


def write_fitted_rows(path: Path, texts: Iterable[str], key: DigestKey) -> str:
    """Write the keyed digests of ``texts`` to ``path``, mode 0600; the sha256 of the file."""
    digests = sorted(_digests(texts, key))
    write_json(path, {"format": _FORMAT, "key": key.fingerprint, "digests": digests})
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fitted_among(texts: Iterable[str], fitted: FittedPolicy, key: DigestKey) -> list[bool]:
    """Which of ``texts`` (rows, or points that hold a secret) the policy was fitted on.

    Raises ``ConfigurationError`` where that cannot be told: the side file is gone or changed, or was
    written under another key.
    """
    known = _known(fitted, key)
    purpose = key.purpose(_PURPOSE)
    return [_digest(text, key, purpose) in known for text in texts]


def refuse_fitted_rows(texts: Iterable[str], fitted: FittedPolicy | None, key: DigestKey) -> None:
    """``ConfigurationError`` where any of ``texts`` was fitted on, or where that cannot be told.

    To be called before γ or δ₂ is measured on labelled ``texts``; ``fitted`` is that of the
    configuration's ``detect.conservative``, ``None`` for thresholds that were not fitted.
    """
    if fitted is None:
        return
    found = fitted_among(texts, fitted, key)
    if any(found):
        raise ConfigurationError(
            f"{_KEY}: {sum(found):,} of these {len(found):,} texts are among the {fitted.rows:,} rows that "
            "the policy was fitted on; what it misses there says nothing about other text. Measure on "
            "labelled rows that were kept back, or fit again without these"
        )


def side_channel(policies: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What a card must say of a fitted policy; ``policies`` is that entry of a run's manifest.

    ``None`` where the conservative policy was not fitted (``docs/guarantees.md``, "Side channels", item 2).
    """
    fitted = policies["conservative"].get("fitted")
    if fitted is None:
        return None
    sentence = (
        f"The conservative policy's thresholds were fitted on {fitted['date']}, to labels of "
        f"{fitted['secrets']:,} secrets in {fitted['rows']:,} rows. If these rows are of the corpus that is "
        "trained on, their labels are a side channel that no epsilon covers, and no confidentiality is "
        "claimed for that corpus."
    )
    if {name: policy["hash"] for name, policy in policies.items()} != fitted["policies"]:
        sentence += (
            " The policies or their engines are not those that were fitted: the bound of the fit does not "
            "hold for them."
        )
    return sentence


def _known(fitted: FittedPolicy, key: DigestKey) -> frozenset[str]:
    return _read_rows(Path(fitted.rows_file), fitted.rows_sha256, key.fingerprint)


@functools.lru_cache(maxsize=2)
def _read_rows(path: Path, sha256: str, fingerprint: str) -> frozenset[str]:
    lost = "whether rows were fitted on cannot be told; bring the file back, or fit again"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{_KEY}.rows_file: {path.name}: {error.strerror}: {lost}") from None
    value = json.loads(data) if hashlib.sha256(data).hexdigest() == sha256 else {}
    if value.get("format") != _FORMAT:
        raise ConfigurationError(f"{_KEY}.rows_file: {path.name} is not as fit-policy wrote it: {lost}")
    if value["key"] != fingerprint:
        raise ConfigurationError(
            f"{_KEY}.rows_file: {path.name} was written under another key, so whether rows were fitted on "
            "cannot be told; set the REDACTORY_KEY that was set then, or fit again with a lasting one"
        )
    return frozenset(value["digests"])


def _digests(texts: Iterable[str], key: DigestKey) -> set[str]:
    purpose = key.purpose(_PURPOSE)
    return {_digest(text, key, purpose) for text in texts}


def _digest(text: str, key: DigestKey, purpose: bytes) -> str:
    # white space around a row or a point is no part of what was labelled
    return key.text_digest(purpose, text.strip().encode("utf-8", "surrogatepass")).hex()
