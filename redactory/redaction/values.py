"""Values that were masked in one place and stand open in another, found by keyed digests alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from redactory.foundation.keys import DigestKey

_TOKEN = re.compile(r"\w+|[^\w\s]")
LONGEST = 12
"""Values of more tokens than this are not looked up: their n-grams would cost more than they find."""


class ValueDigests:
    """Keyed digests of values; case and white space do not tell two values apart."""

    def __init__(self, key: DigestKey) -> None:
        self._key = key
        self._purpose = key.purpose("value")

    def digest(self, value: str) -> tuple[bytes, int]:
        """The 16-byte digest of ``value`` and its number of tokens."""
        tokens = _TOKEN.findall(value.casefold())
        return self._key.text_digest(self._purpose, "\x1f".join(tokens).encode("utf-8")), len(tokens)

    def ngrams(self, text: str, lengths: frozenset[int]) -> Iterator[bytes]:
        """The digests of every run of tokens of ``text`` whose length is in ``lengths``."""
        tokens = _TOKEN.findall(text.casefold())
        for length in lengths:
            for start in range(len(tokens) - length + 1):
                joined = "\x1f".join(tokens[start : start + length])
                yield self._key.text_digest(self._purpose, joined.encode("utf-8"))


def open_values(
    digests: ValueDigests, masked: Mapping[bytes, str], lengths: frozenset[int], text: str
) -> set[str]:
    """The labels of the masked values that stand open in ``text``."""
    return {masked[d] for d in digests.ngrams(text, lengths) if d in masked}
