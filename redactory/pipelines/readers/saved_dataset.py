"""Folders that ``save_to_disk`` of Hugging Face's ``datasets`` wrote: Arrow files, and notes beside them.

The notes are JSON, but no rows: they are passed over.  They say which files there are, so that a copy that
lost one is noticed.  So are the files in which the library keeps what it once made of the rows, beside them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from redactory.foundation.errors import ConfigurationError

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_NAME = re.compile(r"[\w.-]{1,100}")
_MADE_OF_IT = re.compile(r"cache-\w+\.arrow")
"""What ``map``, ``filter`` and ``shuffle`` leave there: the rows once more, changed, or their numbers."""


def without_notes(names: Sequence[str], read: Callable[[str], bytes]) -> list[str]:
    """The files ``names`` without the notes of data sets, and what was made of these.

    ``read`` gives what stands in a file.  ``ConfigurationError`` names the file or the split that a note
    speaks of and that is not there.
    """
    paths = {name: PurePosixPath(name) for name in names}
    there = set(paths.values())
    kept, made = [], set[PurePosixPath]()
    for name, path in paths.items():
        told = _told(path.name, read(name)) if path.name in (_STATE, _INFO, _SPLITS) else None
        if told is None:
            kept.append(name)
            continue
        if path.name == _STATE:
            made |= {own for own in there if own.parent == path.parent and _MADE_OF_IT.fullmatch(own.name)}
            made -= {path.parent / below for below in told}
        gone = [below for below in told if path.parent / below not in there]
        if gone:
            raise ConfigurationError(
                f"input.path: '{gone[0]}' is missing from the data set in '{path.parent.name}': copy the "
                "whole folder that save_to_disk wrote, or name the .arrow files themselves"
            )
    return [name for name in kept if paths[name] not in made]


def _told(kind: str, content: bytes) -> list[str] | None:
    """The files that a note says there are; None where it is somebody else's file of that name."""
    try:
        note = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(note, dict):
        return None
    if kind == _INFO:
        return [] if "features" in note else None
    listed = note.get("splits" if kind == _SPLITS else "_data_files")
    if not isinstance(listed, list):
        return None
    if kind == _SPLITS:
        return [f"{split}/{_STATE}" for split in _names(listed)]
    return _names([file.get("filename") for file in listed if isinstance(file, dict)])


def _names(listed: list[Any]) -> list[str]:
    """Those of ``listed`` that can be the name of a file in the folder."""
    return [name for name in listed if isinstance(name, str) and _NAME.fullmatch(name)]
