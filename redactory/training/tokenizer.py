"""A tokenizer whose vocabulary is public: words of ``public/`` over a fixed alphabet.

Nothing of the private side decides what is a token (``docs/guarantees.md``, "Side channels", item 1).
There is no unknown token: what is no word is spelled in characters, what is no character of the
alphabet in the bytes of its UTF-8.  A number always falls into single digits, so that a number that
was learnt by heart can be measured (canary exposure).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from redactory.foundation.errors import InputError
from redactory.redaction.mask import MASK

PAD, BEGIN, END = "<PAD>", "<BEGIN>", "<END>"
_SPECIALS = (PAD, BEGIN, END, MASK)
_ALPHABET = tuple(chr(code) for code in (9, 10, 13, *range(32, 127)))
_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
_FIXED = (*_SPECIALS, *_ALPHABET, *_BYTES)
_FIRST_BYTE = len(_SPECIALS) + len(_ALPHABET)
_FIRST_WORD = len(_FIXED)
_PIECES = re.compile(f"{re.escape(MASK)}| ?[^\\W\\d_]+|.", re.DOTALL)
FORMAT = "redactory-tokenizer/1"


class TextCodec(Protocol):
    """Text to ids and back; ``<MASK>`` is one id, and every id lies in ``range(size)``."""

    @property
    def size(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def begin_id(self) -> int: ...

    @property
    def end_id(self) -> int: ...

    @property
    def mask_id(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def spelled(self, number: int) -> str:
        r"""What one id stands for; an octet that is no text by itself as ``\xe2``, and so each of several."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back, exactly.

    Ids: padding, begin, end and ``<MASK>`` first, then the printable ASCII characters with tab and
    line ends, the 256 bytes, and last ``words``, each of letters only with at most one space before.
    """

    words: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pieces = {piece: number for number, piece in enumerate((*_SPECIALS, *_ALPHABET))}
        pieces.update({word: number for number, word in enumerate(self.words, _FIRST_WORD)})
        object.__setattr__(self, "_ids", pieces)

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int, minimum_count: int = 1) -> Self:
        """The tokenizer of the public ``texts``: their ``size`` most frequent words.

        A word needs ``minimum_count`` occurrences; words of equal count stand in code point order,
        so the vocabulary is a function of the multiset of texts alone.
        """
        counts = Counter(piece for text in texts for piece in _PIECES.findall(text) if _is_word(piece))
        frequent = (item for item in counts.items() if item[1] >= minimum_count)
        ordered = sorted(frequent, key=lambda item: (-item[1], item[0]))
        return cls(tuple(word for word, _ in ordered[:size]))

    @classmethod
    def from_pieces(cls, pieces: Sequence[str]) -> Self | None:
        """The tokenizer whose ``pieces`` these are; None where they are not one's."""
        return cls(tuple(pieces[_FIRST_WORD:])) if tuple(pieces[:_FIRST_WORD]) == _FIXED else None

    @property
    def pieces(self) -> tuple[str, ...]:
        """What every id stands for, by id; a byte is written ``<0x2A>``."""
        return (*_FIXED, *self.words)

    @property
    def size(self) -> int:
        """Number of ids; an id lies in ``range(size)``."""
        return _FIRST_WORD + len(self.words)

    @property
    def pad_id(self) -> int:
        """Fills up a batch; never scored."""
        return 0

    @property
    def begin_id(self) -> int:
        """Stands before every text; never scored."""
        return 1

    @property
    def end_id(self) -> int:
        """Stands after every text."""
        return 2

    @property
    def mask_id(self) -> int:
        """The one id of ``<MASK>``."""
        return 3

    def encode(self, text: str) -> list[int]:
        """The ids of ``text`` without begin and end; ``ValueError`` (free of text) on a lone surrogate."""
        ids: list[int] = []
        for piece in _PIECES.findall(text):
            known = self._ids.get(piece)
            if known is None:
                for character in piece:
                    ids += self._spell(character)
            else:
                ids.append(known)
        return ids

    def places(self, text: str) -> list[tuple[int, int]]:
        """The part [start, end) of ``text`` (code points) that each id of :meth:`encode` stands for."""
        found: list[tuple[int, int]] = []
        for match in _PIECES.finditer(text):
            start, piece = match.start(), match.group()
            if piece in self._ids:
                found.append((start, match.end()))
                continue
            for place, character in enumerate(piece, start):
                found += [(place, place + 1)] * len(self._spell(character))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``: the exact inverse of :meth:`encode`; padding, begin and end are left out.

        Bytes that are no UTF-8 (a model may write such) become U+FFFD.
        """
        octets = bytearray()
        for number in ids:
            if number >= _FIRST_WORD:
                octets += self.words[number - _FIRST_WORD].encode()
            elif number >= _FIRST_BYTE:
                octets.append(number - _FIRST_BYTE)
            elif number >= self.mask_id:
                octets += _FIXED[number].encode()
        return octets.decode("utf-8", errors="replace")

    def spelled(self, number: int) -> str:
        r"""What one id stands for; an octet that is no text by itself as ``\xe2``."""
        octet = number - _FIRST_BYTE
        return f"\\x{octet:02x}" if 128 <= octet < 256 else self.decode([number])

    def to_json(self) -> dict[str, Any]:
        """The tokenizer as JSON; :meth:`from_json` reads it back."""
        return {
            "format": FORMAT,
            "specials": list(_SPECIALS),
            "alphabet": list(_ALPHABET),
            "words": list(self.words),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """A tokenizer as :meth:`to_json` wrote it; ``InputError`` for another format."""
        if value.get("format") != FORMAT or value.get("alphabet") != list(_ALPHABET):
            raise InputError("the tokenizer file has another format than this version reads")
        return cls(tuple(value["words"]))

    def _spell(self, character: str) -> list[int]:
        known = self._ids.get(character)
        if known is not None:
            return [known]
        if "\ud800" <= character <= "\udfff":
            raise ValueError("a lone surrogate has no UTF-8 and cannot be encoded")
        return [_FIRST_BYTE + octet for octet in character.encode()]


def _is_word(piece: str) -> bool:
    """Letters only, with at most one space before; single characters of the alphabet are tokens anyway."""
    return piece.removeprefix(" ").isalpha() and piece not in _ALPHABET
