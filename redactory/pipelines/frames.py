"""Frames: a side of a finished run as a pandas frame, and a frame with its texts masked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from redactory.foundation.errors import ConfigurationError, InputError, listed
from redactory.pipelines.loading import Given
from redactory.pipelines.policy import Policy
from redactory.pipelines.release_log import check_released
from redactory.pipelines.sealed import sealed, wordless
from redactory.redaction import RunFolder, read_batches, read_manifest
from redactory.redaction.shards import PRIVATE, PUBLIC

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMAS = {"public": PUBLIC, "private": PRIVATE}


def read(run: str | Path, side: Literal["public", "private"] = "public") -> DataFrame:
    """One side of a finished run, an example a row: ``point_id`` and ``text``, and what the side has besides.

    Of an encrypted run the private side needs the encryption key.  ``RunStateError`` where the run is not
    finished, or is held or rejected.
    """
    if side not in SCHEMAS:
        raise ConfigurationError(f"side: one of {listed(SCHEMAS)}")
    folder = RunFolder(Path(run))
    read_manifest(folder)
    check_released(folder)
    return sealed(folder.state, _read, folder, side)


def _read(run: RunFolder, side: str) -> DataFrame:
    schema = SCHEMAS[side]
    batches = read_batches(getattr(run, side), schema.names)
    table = pa.concat_tables([schema.empty_table(), *(pa.Table.from_batches([one]) for one in batches)])
    frame: DataFrame = table.to_pandas()
    return frame


def redact_frame(
    frame: DataFrame, columns: Sequence[str] = ("text",), config: Given | Policy | None = None
) -> DataFrame:
    """A copy of ``frame`` with every hit of the strict policy in the texts of ``columns`` masked.

    ``config`` is a configuration or a :class:`redactory.Policy`, whose engines are then loaded once; the
    default configuration without one.  Each distinct text is looked at once; a missing value stays missing.
    ``ConfigurationError`` for a column that is missing or there twice, ``InputError`` for a value that is no
    text and for a text that cannot be processed: what nobody looked at is not handed on.
    """
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if list(frame.columns).count(name) != 1:
            raise ConfigurationError(
                f"columns: '{name}' must be a column of the frame, once; there are {listed(frame.columns)}"
            )
    policy = config if isinstance(config, Policy) else Policy.load(config)
    return wordless("a frame was redacted", _redacted, frame, names, policy)


def _redacted(frame: DataFrame, columns: Sequence[str], policy: Policy) -> DataFrame:
    texts: dict[str, str] = {}
    for name in columns:
        for row, (value, missing) in enumerate(zip(frame[name], frame[name].isna(), strict=True)):
            if not missing and not isinstance(value, str):
                raise InputError(f"column '{name}', row {row}: text is needed")
            if not missing:
                texts[value] = value
    texts = dict(zip(texts, policy.redact_many(texts), strict=True))

    def masked(value: Any) -> Any:
        return texts[value] if isinstance(value, str) else value

    return frame.assign(**{name: frame[name].map(masked) for name in columns})
