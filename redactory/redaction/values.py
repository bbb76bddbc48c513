"""Values that were masked in one place and stand open in another, found by keyed digests alone.

A policy masks "the" and "city centre" somewhere too, and they stand open everywhere: only a value that tells
something by itself is counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

from redactory.detectors.rules import load_optional_words, unlisted_words
from redactory.detectors.settings import get_kind
from redactory.foundation.keys import DigestKey
from redactory.redaction.folder import RunFolder
from redactory.redaction.shards import read_batches

_TOKEN = re.compile(r"\w+|[^\w\s]")
_PART = re.compile(r"[^\W\d_]+")
_LONG_NUMBER = 4
LONGEST = 12
"""Values of more tokens than this are not looked up: their n-grams would cost more than they find."""


class ValueDigests:
    """Keyed digests of values; case and white space do not tell two values apart."""

    def __init__(self, key: DigestKey) -> None:
        self._key = key
        self._purpose = key.derive("value")

    def digest(self, value: str) -> tuple[bytes, int]:
        """The 16-byte digest of ``value`` and its number of tokens."""
        tokens = _TOKEN.findall(value.casefold())
        return self._key.text_digest(self._purpose, "\x1f".join(tokens).encode("utf-8")), len(tokens)

    def ngrams(self, text: str, lengths: frozenset[int]) -> Iterator[tuple[bytes, str]]:
        """The digest of every run of tokens of ``text`` of one of the ``lengths``, and what is written."""
        tokens, written = _TOKEN.findall(text.casefold()), _TOKEN.findall(text)
        if len(written) != len(tokens):
            written = tokens  # a letter that folds to more than one
        for length in lengths:
            for start in range(len(tokens) - length + 1):
                joined = "\x1f".join(tokens[start : start + length])
                digest = self._key.text_digest(self._purpose, joined.encode("utf-8"))
                yield digest, " ".join(written[start : start + length])


def unmasked_labels(
    digests: ValueDigests,
    masked: Mapping[bytes, str],
    lengths: frozenset[int],
    text: str,
    words: Set[str] | None = None,
) -> set[str]:
    """The labels of the masked values that stand open in ``text``; with ``words``, of those that tell."""
    matches = ((digest, value) for digest, value in digests.ngrams(text, lengths) if digest in masked)
    return {masked[digest] for digest, value in matches if words is None or is_identifying(value, words)}


def is_identifying(value: str, words: Set[str]) -> bool:
    """Whether ``value`` can point at somebody: a long number, a word not in ``words``, several capitals.

    ``words`` are the ordinary ones of a language (``detectors/words.py``).  Without them every value of two
    words or more does.
    """
    parts = _PART.findall(value)
    if sum(map(str.isdigit, value)) >= _LONG_NUMBER:
        return True
    if not words:
        return len(parts) > 1
    # what is left of "it's" is no word
    unknown = any(end - start > 1 for start, end in unlisted_words(value, words))
    return unknown or (len(parts) > 1 and all(part[0].isupper() for part in parts))


# Public points that show a value which was masked elsewhere, found without the value being known.


def find_unmasked_values(
    run: RunFolder, key: DigestKey, language: str, public: Collection[str] = ()
) -> list[dict[str, Any]]:
    """``[{"point_id", "labels"}]`` of the public points that hold a masked value, in shard order.

    A value of a kind that is ``public`` was masked for some doubt in one place, and is no secret in another.
    Of a value of ordinary words of ``language`` ("the", "city centre") nothing is told: masked in one place,
    it stands open in a thousand others.
    """
    masked: dict[bytes, str] = {}
    lengths = set()
    for batch in read_batches(run.spans, ["label", "value_digest", "tokens"]):
        for label, digest, tokens in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if digest is not None and 0 < tokens <= LONGEST and get_kind(label) not in public:
                masked[digest] = label
                lengths.add(tokens)
    words = load_optional_words(language)
    digests, chosen = ValueDigests(key), frozenset(lengths)
    return [
        {"point_id": point, "labels": sorted(labels)}
        for batch in read_batches(run.public)
        for point, text in zip(batch["point_id"].to_pylist(), batch["text"].to_pylist(), strict=True)
        if (labels := unmasked_labels(digests, masked, chosen, text, words))
    ]
