"""What an index is bound to, and what is refused because of it before anything is written."""

from __future__ import annotations

import dataclasses
import unicodedata
from pathlib import Path
from typing import Any

from redactory.dedup.banding import banding_for
from redactory.dedup.index_folder import IndexFolder
from redactory.detectors import policy_hashes
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import KEY_VARIABLE, DigestKey
from redactory.foundation.versions import version_of
from redactory.pipelines.config import Config
from redactory.pipelines.readers.sources import is_hidden
from redactory.pipelines.stages.fate_digests import purpose_of
from redactory.pipelines.stages.near import NUMBERS

SCHEME = 1
"""Counted up whenever a digest comes to be of something else than before, for the same settings."""


def check_index(config: Config, key: DigestKey) -> None:
    """Refuse, before anything is written, a run that could not go by its index.

    ``ConfigurationError`` without a key of one's own and for folders that lie in each other,
    ``RunStateError`` where the index was made with other parameters.
    """
    settings = config.dedup.index
    if settings is None:
        return
    if key.fresh:
        raise ConfigurationError(
            f"dedup.index needs a key that later runs have too: set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE "
            "(redactory keys new digest FILE makes one)"
        )
    _check_apart(Path(settings.path).resolve(), config)
    folder = IndexFolder(Path(settings.path))
    if folder.exists():
        folder.checked(parameters_of(config, key))


def parameters_of(config: Config, key: DigestKey) -> dict[str, Any]:
    """What an index is bound to: everything that its digests, and what they are compared with, stand on."""
    dedup, detect = config.dedup, config.detect
    modes = {side: dedup.mode_of(side) for side in NUMBERS}
    near, packages = None, {}
    if "minhash" in modes.values():
        near = {
            "threshold": dedup.near.threshold,
            "shingle": dedup.near.shingle,
            **dataclasses.asdict(banding_for(dedup.near.threshold, dedup.near.permutations)),
        }
        packages["datasketch"] = version_of("datasketch")
    if config.segment.mode == "sentence":
        packages["nupunkt"] = version_of("nupunkt")
    bloom = dedup.bloom.model_dump(mode="json") if "bloom" in modes.values() else None
    return {
        "key": key.fingerprint,
        "policies": policy_hashes(detect),
        "segment": config.segment.model_dump(
            mode="json", include={"mode"} | ({"speaker"} if config.segment.mode == "turn" else set())
        ),
        "scope": dedup.scope,
        "modes": modes,
        "near": near,
        "bloom": bloom,
        "purposes": {side: purpose_of(dedup, side) for side in NUMBERS},
        "versions": {"digests": SCHEME, "unicode": unicodedata.unidata_version, **packages},
    }


def _check_apart(index: Path, config: Config) -> None:
    output = Path(config.output).resolve()
    if index.is_relative_to(output) or output.is_relative_to(index):
        raise ConfigurationError(
            f"dedup.index.path and output lie in each other ({index}, {output}): give the index a folder "
            "of its own"
        )
    for given in config.input.path:
        folder = Path(given).resolve()
        below = "://" not in given and folder.is_dir() and index.is_relative_to(folder)
        if below and not is_hidden(index.relative_to(folder).as_posix()):
            raise ConfigurationError(
                f"dedup.index.path: {index} lies in the input {given}; give a place outside, or a name that "
                "starts with '_'"
            )
