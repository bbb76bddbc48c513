"""The sentences of a membership attack: a thousand with their own secrets, a thousand with others.

CRT, appendix A.5: half are protected secrets that were trained on, half "of similar format" that were not.
Here both halves are sentences of the corpus, drawn alike; in one half the secret is replaced by a value that
stands nowhere in the corpus.  What tells the halves apart is the value, not the sentence around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from redactory.foundation.errors import InputError
from redactory.foundation.stream import RandomStream


@dataclass(frozen=True)
class SecretSentence:
    """A point and the one secret in it that the attack is about, ``text[start:end]``."""

    text: str = field(repr=False)
    start: int
    end: int
    label: str

    @property
    def value(self) -> str:
        """The secret."""
        return self.text[self.start : self.end]

    def with_value(self, value: str) -> str:
        """The sentence with another secret."""
        return self.text[: self.start] + value + self.text[self.end :]


def commonest_label(sentences: Iterable[SecretSentence]) -> str:
    """The label with the most different values, of equal ones the first; ``InputError`` without any."""
    values = {(one.label, one.value) for one in sentences}
    counts = Counter(label for label, _ in values)
    if not counts:
        raise InputError("membership: no labelled secret lies whole in a point of the corpus")
    return min(counts, key=lambda label: (-counts[label], label))


def member_texts(
    sentences: Iterable[SecretSentence],
    fresh: Callable[[Sequence[SecretSentence]], Sequence[str | None]],
    count: int = 1_000,
    seed: int = 0,
) -> tuple[list[str], list[str]]:
    """``count`` sentences as they are and ``count`` with another value, or as many of each as there are.

    No two of the sentences have the same secret.  ``fresh`` gives for each sentence a value of the same form
    that stands nowhere in the corpus, or None; a sentence without one is left out.

    Returns (members, others), of equal number.
    """
    of_value: dict[str, SecretSentence] = {}
    for one in sentences:
        of_value.setdefault(one.value, one)
    apart = list(of_value.values())
    order = RandomStream.from_seed(seed).permutation("members", 0, len(apart))
    drawn = [apart[i] for i in order[: 2 * count]]
    # alternately, so that both halves are as large where there are few
    kept, exchanged = drawn[0::2], drawn[1::2]
    given = fresh(exchanged)
    others = [one.with_value(v) for one, v in zip(exchanged, given, strict=True) if v is not None]
    number = min(len(kept), len(others))
    return [one.text for one in kept[:number]], others[:number]
