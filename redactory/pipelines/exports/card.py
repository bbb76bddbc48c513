"""The dataset card of an export: how to load it, what was done to it, and how to check it."""

from __future__ import annotations

from typing import Any

import yaml

from redactory.foundation.wording import some
from redactory.pipelines.card import MISSED, blind_note


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
