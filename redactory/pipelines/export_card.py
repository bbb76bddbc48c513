"""The dataset card of an export: how to load it, what was done to it, and how to check it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from redactory.foundation.errors import some
from redactory.pipelines.release import MISSED, blind_note
from redactory.redaction import PUBLIC


def export_card(said: dict[str, Any]) -> str:
    """Markdown with the YAML front matter that ``datasets`` reads; ``said`` is the export's manifest."""
    front = {
        "pretty_name": said["run"],
        "task_categories": ["text-generation"],
        "configs": [{"config_name": "public", "data_files": "public/part-*.parquet", "default": True}],
    }
    policies, models = said["policies"], said["models"]
    of_models = "".join(
        f"- `models/{name}/`: a model under a guarantee of its own, which its `README.md` says in words, "
        "with the\n"
        "  confidence of what rests on labels.\n"
        for name in models
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {said["run"]}
{blind_note(said.get("blind"))}
The public side of a run of Redactory {said["versions"]["redactory"]} of {said["date"]}, release
{said["release"]}: {some(said["counts"]["public"], "point")}.

- `public/`: `point_id`, `text`. No policy marked anything in these points. {MISSED}
- Strict policy `{policies["strict"][:16]}`, conservative policy `{policies["conservative"][:16]}`.
- Deduplication: {said["dedup"]["mode"]}.
{of_models}
```python
import pandas
public = pandas.read_parquet("public")
```

`sha256sum -c SHA256SUMS` checks the files; `redactory verify` checks more, and names what cannot be checked
without the run.
"""


# Croissant (https://mlcommons.org/croissant), version 1.1: a data set described for other programs.


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
_FIELDS: Final = {"point_id": "The point's released id.", "text": "The point's text, as it was written."}


def croissant_text(said: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> str:
    """The document of an export: ``said`` as its manifest says it, ``files`` as the run's lists them."""
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": said["run"],
        "description": f"Public shards of a run of Redactory, release {said['release']}: texts for training "
        "language models, redacted and deduplicated.",
        "version": f"{said['release']}.0.0",
        "datePublished": said["date"],
        "rai:personalSensitiveInformation": "Points in which one of the policies found anything are not part "
        "of it. What detection misses, it can hold.",
        "distribution": [*_shards(files), _TOGETHER],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": PUBLIC,
                "name": PUBLIC,
                "key": {"@id": f"{PUBLIC}/point_id"},
                "field": [_field(column, means) for column, means in _FIELDS.items()],
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


_TOGETHER: Final = {
    "@type": "cr:FileSet",
    "@id": f"{PUBLIC}-shards",
    "name": f"{PUBLIC}-shards",
    "encodingFormat": _PARQUET,
    "includes": f"{PUBLIC}/part-*.parquet",
}
"""All shards.  It is not said to be contained in the file objects, which the format allows: Croissant's own
library takes them for archives then, and finds no columns."""


def _shards(files: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": name,
            "contentSize": f"{files[name]['bytes']} B",
            "encodingFormat": _PARQUET,
            "sha256": files[name]["sha256"],
        }
        for name in sorted(files)
        if name.startswith(f"{PUBLIC}/part-")
    ]


def _field(column: str, means: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{PUBLIC}/{column}",
        "name": column,
        "description": means,
        "dataType": "sc:Text",
        "source": {"fileSet": {"@id": f"{PUBLIC}-shards"}, "extract": {"column": column}},
    }
