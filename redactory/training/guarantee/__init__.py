"""What may be promised of a training: one spec, one accountant, one card.

``spec`` says what of a training decides its figures; ``figures`` computes them; ``plan`` reads them before a training,
``budget`` before it may begin, ``metrics.make_epsilon_remark`` while it runs, ``card`` once it is over (from what its
ledger proves), and ``compose`` of several.  The words are in ``words.toml``.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
