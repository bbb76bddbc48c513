"""Secrets in the forms that people write, and plain sentences that look like them: ``pattern_texts.yaml``."""

from __future__ import annotations

from pathlib import Path

import yaml

_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
FOUND: dict[str, list[str]] = _TEXTS["found"]
PLAIN: list[str] = _TEXTS["plain"]
"""Texts of which π masks nothing."""
UNTOLD: list[str] = _TEXTS["untold"]
"""Texts about passwords and codes in which nothing is suspected."""
ANNOUNCED: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("announced_secrets.yaml").read_text(encoding="utf-8")
)
"""By language, texts with a password, a code, an answer or a recovery phrase made of words."""


def unmarked(marked: str) -> tuple[str, int, int]:
    """The text without its brackets, and the place of the secret in it."""
    before, _, rest = marked.partition("[[")
    secret, _, after = rest.rpartition("]]")
    return before + secret + after, len(before), len(before) + len(secret)
