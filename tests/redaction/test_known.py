"""Known values: what was found once, wherever it stands in the same document."""

from __future__ import annotations

from redactory.redaction.known import with_known
from redactory.redaction.replacements import Found


def test_known_values_are_whole_words_that_tell() -> None:
    texts = ["Quirin Ozols, the will of Ozols, OzolsX", "ozols"]
    found = [[Found(0, 12, "PERSON")], []]
    marked = [
        {text[one.start : one.end] for one in own}
        for text, own in zip(texts, with_known(texts, found, {}), strict=True)
    ]
    assert marked == [{"Quirin Ozols", "Quirin", "Ozols"}, set()]
    starts = [one.start for one in with_known(texts, found, {})[0]]
    assert texts[0].index("OzolsX") not in starts
