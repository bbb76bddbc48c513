"""Words of a text, as near-duplicates are compared: case, signs and white space are not part of them."""

from __future__ import annotations

import re
import unicodedata

# Thai to Lao, kana, Han: written without spaces, so that each character counts as a word
_ALONE = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_DIGITS = re.compile(r"\d+")


class Words:
    """Cuts texts into words; ``token`` (the mask) is one word wherever it stands."""

    def __init__(self, token: str) -> None:
        self._pattern = re.compile(rf"{re.escape(token.casefold())}|[{_ALONE}]|[^\W{_ALONE}]+")

    def of(self, text: str) -> list[str]:
        """The words of ``text`` in order, case folded; a text of signs alone has none."""
        return self._pattern.findall(text.casefold())

    def folded(self, text: str) -> str:
        """The local key of rule S2: compatible characters, case, signs, white space, digits are folded.

        A function of ``text`` alone; each run of digits becomes ``#``.  A text of signs alone is its own.
        """
        words = self.of(unicodedata.normalize("NFKC", text))
        return " ".join(_DIGITS.sub("#", word) for word in words) if words else f"\x00{text}"
