"""What an export says of itself: its dataset card, and its description for other programs (Croissant)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

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


@cache
def _template() -> dict[str, Any]:
    """Croissant (https://mlcommons.org/croissant), version 1.1: what is the same in every document.

    The set of all shards is not said to be contained in the file objects, which the format allows:
    Croissant's own library takes them for archives then, and finds no columns.
    """
    template: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("croissant.yaml").read_text(encoding="utf-8")
    )
    return template


def croissant_text(said: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> str:
    """The document of an export: ``said`` as its manifest says it, ``files`` as the run's lists them."""
    template, together = _template(), f"{PUBLIC}-shards"
    context = template["@context"]
    terms = {term: f"cr:{term}" for term in template["terms"]}
    shards = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": name,
            "contentSize": f"{files[name]['bytes']} B",
            "encodingFormat": "application/x-parquet",
            "sha256": files[name]["sha256"],
        }
        for name in sorted(files)
        if name.startswith(f"{PUBLIC}/part-")
    ]
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{PUBLIC}/{column}",
            "name": column,
            "description": means,
            "dataType": "sc:Text",
            "source": {"fileSet": {"@id": together}, "extract": {"column": column}},
        }
        for column, means in template["fields"].items()
    ]
    document = {
        "@context": {**context, **terms, **template["typed"]},
        **template["head"],
        "name": said["run"],
        "description": template["description"].format(release=said["release"]),
        "version": f"{said['release']}.0.0",
        "datePublished": said["date"],
        "rai:personalSensitiveInformation": template["sensitive"],
        "distribution": [*shards, template["together"]],
        "recordSet": [{**template["records"], "field": fields}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
