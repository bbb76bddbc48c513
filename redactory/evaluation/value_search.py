"""Where known values stand in texts: one automaton for all of them (Aho and Corasick), in memory only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import ahocorasick


class ValueSearch:
    """Finds whole occurrences of ``values`` whatever their case; a value is named by its index.

    An occurrence is whole where no letter or digit that touches it on either side would continue a letter
    or digit of it.  Equal values (but for their case) are one, under the first one's index.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._automaton = ahocorasick.Automaton()
        self._lengths: list[int] = []
        for index, value in enumerate(values):
            folded = value.casefold()
            self._lengths.append(len(folded))
            if folded and folded not in self._automaton:
                self._automaton.add_word(folded, index)
        if len(self._automaton):
            self._automaton.make_automaton()

    def __repr__(self) -> str:
        return f"ValueSearch({len(self._automaton)} values)"

    def in_text(self, text: str) -> Iterator[int]:
        """The index of each occurrence in ``text``, overlapping ones too."""
        if not len(self._automaton):
            return
        folded = text.casefold()
        for last, index in self._automaton.iter(folded):
            start, end = last + 1 - self._lengths[index], last + 1
            if not (
                _joined(folded[start - 1 : start], folded[start])
                or _joined(folded[last], folded[end : end + 1])
            ):
                yield index

    def count(self, texts: Iterable[str]) -> Counter[int]:
        """How often each value stands in all of ``texts``."""
        found: Counter[int] = Counter()
        for text in texts:
            found.update(self.in_text(text))
        return found


def _joined(left: str, right: str) -> bool:
    return left.isalnum() and right.isalnum()
