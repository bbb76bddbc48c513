"""Find values that were masked in one place and are unmasked in another, by keyed digests alone.

A policy sometimes masks "the" and "city centre", which occur unmasked everywhere, so only values that identify
something by themselves count.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

from redactory.detectors.lists import split_tokens
from redactory.detectors.rules import iter_unlisted_words, load_optional_words
from redactory.detectors.settings import get_kind
from redactory.foundation.keys import DigestKey
from redactory.redaction.folder import RunFolder
from redactory.redaction.shards import read_values

_PART = re.compile(r"[^\W\d_]+")
_LONG_NUMBER = 4
LONGEST = 12
"""Maximum tokens of a value to look up: longer n-grams would cost more than they find."""


class ValueDigests:
    """Keyed digests of values in any spelling (:func:`redactory.detectors.lists.fold_text`)."""

    def __init__(self, key: DigestKey) -> None:
        self._key = key
        self._purpose = key.derive_subkey("value")

    def digest_value(self, value: str) -> tuple[bytes, int]:
        """Return the 16-byte digest of ``value`` and its number of tokens."""
        tokens = [token for token, *_ in split_tokens(value)]
        return self._key.compute_text_digest(self._purpose, "\x1f".join(tokens).encode("utf-8")), len(tokens)

    def iter_ngrams(self, text: str, lengths: frozenset[int]) -> Iterator[tuple[bytes, str]]:
        """Yield the digest and the original spelling of every n-gram of ``text`` with n in ``lengths``."""
        tokens = split_tokens(text)
        for length in lengths:
            for ngram in zip(*(tokens[start:] for start in range(length)), strict=False):
                joined = "\x1f".join(token for token, *_ in ngram)
                digest = self._key.compute_text_digest(self._purpose, joined.encode("utf-8"))
                yield digest, text[ngram[0][1] : ngram[-1][2]]


def find_unmasked_labels(
    digests: ValueDigests,
    masked: Mapping[bytes, str],
    lengths: frozenset[int],
    text: str,
    words: Set[str] | None = None,
) -> set[str]:
    """Return the labels of masked values that are unmasked in ``text``; with ``words``, of identifying ones only."""
    matches = ((digest, value) for digest, value in digests.iter_ngrams(text, lengths) if digest in masked)
    return {masked[digest] for digest, value in matches if words is None or is_identifying(value, words)}


def is_identifying(value: str, words: Set[str]) -> bool:
    """Return whether ``value`` can identify somebody: a long number, a word not in ``words``, several capitals.

    ``words`` are the common words of a language (``detectors/rules.py``). Without them every value of two words or more
    counts.
    """
    parts = _PART.findall(value)
    if sum(map(str.isdigit, value)) >= _LONG_NUMBER:
        return True
    if not words:
        return len(parts) > 1
    # the rest of "it's" is not a word
    unknown = any(end - start > 1 for start, end in iter_unlisted_words(value, words))
    return unknown or (len(parts) > 1 and all(part[0].isupper() for part in parts))


def find_unmasked_values(
    run: RunFolder, key: DigestKey, language: str, public: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return ``[{"example_id", "labels"}]`` of public examples that contain a masked value, in shard order.

    Skips values of kinds in ``public``, which were masked because of a doubt in one place, and values made of common
    words of ``language`` ("the", "city centre"), which occur unmasked everywhere.
    """
    masked: dict[bytes, str] = {}
    lengths = set()
    for label, digest, tokens in read_values(run.spans, "label", "value_digest", "tokens"):
        if digest is not None and 0 < tokens <= LONGEST and get_kind(label) not in public:
            masked[digest] = label
            lengths.add(tokens)
    words = load_optional_words(language)
    digests, chosen = ValueDigests(key), frozenset(lengths)
    return [
        {"example_id": point, "labels": sorted(labels)}
        for point, text in read_values(run.public, "example_id", "text")
        if (labels := find_unmasked_labels(digests, masked, chosen, text, words))
    ]
