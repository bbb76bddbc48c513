"""Croissant (https://mlcommons.org/croissant), version 1.1: a data set described for other programs.

Each shard with its sha256, each side as a record set.  The document is a function of the manifest alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redactory.redaction import PRIVATE, PUBLIC

CONFORMS_TO = "http://mlcommons.org/croissant/1.1"
_PARQUET = "application/x-parquet"
_TERMS = (
    *(
        "annotation",
        "arrayShape",
        "citeAs",
        "column",
        "containedIn",
        "data",
        "dataType",
        "equivalentProperty",
    ),
    *("examples", "excludes", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "readLines"),
    *("recordSet", "references", "regex", "repeated", "replace", "samplingRate", "sdVersion", "separator"),
    *("source", "subField", "transform", "unArchive", "value"),
)
"""The terms of Croissant, which documents write without its prefix."""
_CONTEXT: Final[dict[str, Any]] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    **{term: f"cr:{term}" for term in _TERMS},
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
_FIELDS: Final = {
    PUBLIC: {"point_id": "The point's released id.", "text": "The point's text, as it was written."},
    PRIVATE: {
        "point_id": "The point's released id.",
        "user": "A keyed pseudonym of the user.",
        "text": "The point's text, each hit of the strict policy replaced by <MASK>.",
        "reasons": "Why the point is private.",
    },
}
_SENSITIVE: Final = {
    PUBLIC: "Points in which one of the policies found anything are not part of it. What detection misses, "
    "it can hold.",
    PRIVATE: "The record set private holds the points in which a policy found something, masked. What "
    "detection misses, it can hold.",
}


def croissant_document(
    said: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
    sides: Sequence[str] = (PUBLIC,),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON-LD of the ``sides``: ``said`` as an export's manifest says it, ``files`` as it lists them.

    ``more`` are properties of the data set that only its publisher knows: license, url, creator.
    """
    shards = {side: _shards(files, side) for side in sides}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": said["run"],
        "description": f"{' and '.join(sides).capitalize()} shards of a run of Redactory, release "
        f"{said['release']}: texts for training language models, redacted and deduplicated.",
        "version": f"{said['release']}.0.0",
        "datePublished": said["date"],
        **(more or {}),
        "rai:personalSensitiveInformation": " ".join(_SENSITIVE[side] for side in sides),
        "distribution": [entry for side in sides for entry in _distribution(side, shards[side])],
        "recordSet": [_record_set(side) for side in sides],
    }


def croissant_text(said: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> str:
    """The document of an export as it lies in it."""
    return json.dumps(croissant_document(said, files), indent=2, ensure_ascii=False) + "\n"


def _shards(files: Mapping[str, Mapping[str, Any]], side: str) -> dict[str, Mapping[str, Any]]:
    return {name: files[name] for name in sorted(files) if name.startswith(f"{side}/part-")}


def _distribution(side: str, shards: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A file object for each shard, and the set of them.

    The set is not said to be contained in the file objects, which the format allows: its own library takes
    them for archives then, and finds no columns.
    """
    objects: list[dict[str, Any]] = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": name,
            "contentSize": f"{entry['bytes']} B",
            "encodingFormat": _PARQUET,
            "sha256": entry["sha256"],
        }
        for name, entry in shards.items()
    ]
    together = {
        "@type": "cr:FileSet",
        "@id": f"{side}-shards",
        "name": f"{side}-shards",
        "encodingFormat": _PARQUET,
        "includes": f"{side}/part-*.parquet",
    }
    return [*objects, together]


def _record_set(side: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": side,
        "name": side,
        "key": {"@id": f"{side}/point_id"},
        "field": [_field(side, column, means) for column, means in _FIELDS[side].items()],
    }


def _field(side: str, column: str, means: str) -> dict[str, Any]:
    several = {"isArray": True, "arrayShape": "-1"} if column == "reasons" else {}
    return {
        "@type": "cr:Field",
        "@id": f"{side}/{column}",
        "name": column,
        "description": means,
        "dataType": "sc:Text",
        **several,
        "source": {"fileSet": {"@id": f"{side}-shards"}, "extract": {"column": column}},
    }
