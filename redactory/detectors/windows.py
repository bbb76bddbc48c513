"""Long texts in windows cut at the ends of sentences, with overlap, so that memory stays bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’)\]]*|\n)\s+")
_SPACE = re.compile(r"\s+")


def windows(text: str, chars: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Places [start, end) in code points, at most ``chars`` long, that cover ``text``.

    Neighbours share at least ``overlap`` code points, so that whatever is no longer than that lies whole
    in one of them.  Cuts fall after a sentence where there is one, else at white space, else anywhere:
    a function of the text alone.  Needs 2 * ``overlap`` < ``chars``.
    """
    start = 0
    while len(text) - start > chars:
        end = _cut(text, start + chars // 2 + overlap, start + chars)
        yield start, end
        start = _cut(text, max(start + 1, end - 2 * overlap), end - overlap)
    yield start, len(text)


def _cut(text: str, least: int, most: int) -> int:
    """The last good place to cut in [least, most]."""
    for boundary in (_SENTENCE_END, _SPACE):
        found = [match.end() for match in boundary.finditer(text, least, most)]
        if found:
            return found[-1]
    return most
