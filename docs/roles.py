"""A hook of mkdocs: references in docstrings are shown as the name that they lead to."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?([^<]*)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """The page with the name of each role taken away."""
    return _ROLE.sub(r"<code>\1</code>", html)
