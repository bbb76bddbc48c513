"""The dataset card: what a reader of the shards needs to know, and how to load them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from redactory.detectors import blind_of, blind_words
from redactory.detectors.fitted import side_channel

MISSED = """What both policies
  missed stands here in the open. How much that can be is only known where it was measured on labelled
  secrets: a model's card and the run's report then state a bound, and the confidence with which it holds
  (95 % by default, and two such bounds together 90 %)."""


def dataset_card(name: str, manifest: dict[str, Any]) -> str:
    """Markdown with the YAML front matter by which ``datasets.load_dataset`` finds the two sides."""
    front = {
        "pretty_name": name,
        "task_categories": ["text-generation"],
        "configs": [
            {"config_name": side, "data_files": f"{side}/part-*.parquet", "default": side == "public"}
            for side in ("public", "private")
        ],
    }
    counts, policies = manifest["counts"], manifest["policies"]
    told = side_channel(policies)
    tuned = f"- {told}\n" if told else ""
    release = manifest.get("release", 1)
    anew = f"\nRelease {release}: {_anew(manifest['changes'])}.\n" if release > 1 else ""
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {name}
{blind_note(blind_of(manifest))}
Training shards written by Redactory {manifest["versions"]["redactory"]}. **Only `public/` may leave this
folder**; everything else in it is private.
{anew}
| | points |
|---|---:|
| public | {counts["public"]:,} |
| private | {counts["private"]:,} |
| duplicates, dropped | {counts["duplicate"]:,} |
| quarantined | {counts["quarantined"]:,} |
| **all** | **{counts["points"]:,}** |

A model trained on these shards leaves under its own guarantee: `models/NAME/README.md` says which.

- `public/`: `point_id`, `text`. No policy marked anything in these points. {MISSED}
- `private/`: `point_id`, `user` (a keyed pseudonym), `text` with every hit of the strict policy replaced
  by `<MASK>`, `reasons`.
- Strict policy `{policies["strict"]["hash"][:16]}`, conservative policy
  `{policies["conservative"]["hash"][:16]}`.
- Deduplication, after masking and within each side: {_modes(manifest["dedup"]["sides"])}.
{tuned}
```python
import pandas
public = pandas.read_parquet("public")
```

`public` and `private` are two data sets: read one folder or the other, never their parent. `manifest.json`
holds the sha256 of every file; `redactory verify` checks them all.
"""


def blind_note(blind: Mapping[str, Any] | None) -> str:
    """What nothing looked for, as a paragraph of its own; empty where there is nothing to say."""
    words = blind_words(blind) if blind else None
    return f"\n> **{words}**\n" if words else ""


def _anew(changes: list[dict[str, Any]]) -> str:
    """Why a run was written anew, each reason with its day."""
    return ", ".join(f"{change['why']} on {change['time'][:10]}" for change in changes)


def _modes(sides: dict[str, dict[str, str]]) -> str:
    return ", ".join(f"{own['mode']} on the {side} one" for side, own in sides.items())
