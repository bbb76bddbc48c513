"""Tokenizers: our own, whose vocabulary is public, and that of a local folder of Hugging Face.

Ours has words of ``public/`` over a fixed alphabet.  Nothing of the private side decides what is a token
(``docs/guarantees.md``, "Side channels", item 1).  There is no unknown token: what is no word is spelled in
characters, what is no character of the alphabet in the bytes of its UTF-8.  A number always falls into single
digits, so that a number that was learnt by heart can be measured (canary exposure).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from redactory.detectors.torch_reading import silence
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import MASK

PAD, BEGIN, END = "<PAD>", "<BEGIN>", "<END>"
_SPECIALS = (PAD, BEGIN, END, MASK)
_ALPHABET = tuple(chr(code) for code in (9, 10, 13, *range(32, 127)))
_FIXED = (*_SPECIALS, *_ALPHABET, *(f"<0x{value:02X}>" for value in range(256)))
_FIRST_BYTE = len(_SPECIALS) + len(_ALPHABET)
_FIRST_WORD = len(_FIXED)
_PIECES = re.compile(f"{re.escape(MASK)}| ?[^\\W\\d_]+|.", re.DOTALL)
_PIECES_IN_RUST = rf"{MASK}| ?[\p{{L}}\p{{Nl}}\p{{No}}]+|(?m:.)"
"""The same in the terms of the library ``tokenizers``."""
FORMAT = "redactory-tokenizer/1"


class TextCodec(Protocol):
    """Text to ids and back; ``<MASK>`` is one id, and every id lies in ``range(size)``.

    Padding and the begin token are never scored; the end token stands after every text.
    """

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

    def encode(self, text: str) -> list[int]:
        """The ids of ``text`` without begin and end."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; padding, begin and end are left out."""

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

    pad_id: ClassVar[int] = 0
    begin_id: ClassVar[int] = 1
    end_id: ClassVar[int] = 2
    mask_id: ClassVar[int] = 3

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

    @property
    def size(self) -> int:
        """Number of ids."""
        return _FIRST_WORD + len(self.words)

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
            if match.group() in self._ids:
                found.append(match.span())
                continue
            for place, character in enumerate(match.group(), match.start()):
                found += [(place, place + 1)] * len(self._spell(character))
        return found

    def _spell(self, character: str) -> list[int]:
        known = self._ids.get(character)
        if known is not None:
            return [known]
        if "\ud800" <= character <= "\udfff":
            raise ValueError("a lone surrogate has no UTF-8 and cannot be encoded")
        return [_FIRST_BYTE + octet for octet in character.encode()]

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
        head = {"format": FORMAT, "specials": list(_SPECIALS), "alphabet": list(_ALPHABET)}
        return {**head, "words": list(self.words)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """A tokenizer as :meth:`to_json` wrote it; ``InputError`` for another format."""
        if value.get("format") != FORMAT or value.get("alphabet") != list(_ALPHABET):
            raise InputError("the tokenizer file has another format than this version reads")
        return cls(tuple(value["words"]))

    def save_for_library(self, folder: Path, context: int | None, ends_too: bool) -> list[Path]:
        """Write the files from which ``AutoTokenizer`` reads the same ids to ``folder``; their paths.

        The begin token stands before a text where the network reads it, and with ``ends_too`` the end token
        after it.  Text that looks like a special token is text there too: only ``<MASK>`` becomes one.
        """
        from tokenizers import Regex, decoders, models, pre_tokenizers, processors
        from tokenizers import Tokenizer as Backend
        from transformers import PreTrainedTokenizerFast

        vocabulary = {piece: number for number, piece in enumerate((*_FIXED, *self.words))}
        backend = Backend(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, ignore_merges=True))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES_IN_RUST), "isolated")
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}" if ends_too else f"{BEGIN} $A",
            special_tokens=[(BEGIN, self.begin_id), (END, self.end_id)],
        )
        library: Any = PreTrainedTokenizerFast
        return _saved(
            library(
                tokenizer_object=backend,
                pad_token=PAD,
                bos_token=BEGIN,
                eos_token=END,
                mask_token=MASK,
                split_special_tokens=True,
                clean_up_tokenization_spaces=False,
                model_input_names=["input_ids", "attention_mask"],
                **({} if context is None else {"model_max_length": context}),
            ),
            folder,
        )

    @classmethod
    def of_library(cls, value: dict[str, Any]) -> Self | None:
        """The tokenizer in a ``tokenizer.json`` that :meth:`save_for_library` wrote; None in any other."""
        vocabulary = value["model"].get("vocab")
        if not isinstance(vocabulary, dict):
            return None
        pieces = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
        return cls(pieces[_FIRST_WORD:]) if pieces[:_FIRST_WORD] == _FIXED else None


def _is_word(piece: str) -> bool:
    """Letters only, with at most one space before; single characters of the alphabet are tokens anyway."""
    return piece.removeprefix(" ").isalpha() and piece not in _ALPHABET


def _saved(inner: Any, folder: Path) -> list[Path]:
    return sorted({Path(name) for name in inner.save_pretrained(folder) if Path(name).is_file()})


# The tokenizer of a folder of Hugging Face.


@dataclass(frozen=True)
class FolderTokenizer:
    """A fast tokenizer read from a folder, which must be public.

    Ids of text are the folder's own; begin and end are its special tokens, whichever it has.
    Text in the form of another special token is text here: it never becomes that token, ``<MASK>`` apart.
    """

    inner: Any
    begin_id: int
    end_id: int
    mask_id: int

    @classmethod
    def from_folder(cls, folder: Path, single_digits: bool = False) -> Self:
        """The tokenizer of ``folder``; ``ConfigurationError`` where there is no fast one to be read.

        With ``single_digits`` every digit of a number is cut off before what the tokenizer does itself.
        """
        require_transformers()
        from tokenizers import pre_tokenizers
        from transformers import AutoTokenizer

        try:
            with quiet():
                inner = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
        except (OSError, ValueError, ImportError) as error:
            raise ConfigurationError(
                f"model.folder: no tokenizer can be read from {folder.name} ({type(error).__name__})"
            ) from None
        if not inner.is_fast:
            raise ConfigurationError(f"model.folder: {folder.name} needs a fast tokenizer (tokenizer.json)")
        if len(inner.encode(MASK, add_special_tokens=False)) != 1:
            inner.add_special_tokens({"additional_special_tokens": [MASK]})
        if single_digits:
            backend, digits = inner.backend_tokenizer, pre_tokenizers.Digits(individual_digits=True)
            own = backend.pre_tokenizer
            backend.pre_tokenizer = digits if own is None else pre_tokenizers.Sequence([digits, own])
        ends = [i for i in (inner.eos_token_id, inner.sep_token_id) if i is not None]
        begins = [i for i in (inner.bos_token_id, inner.cls_token_id, *ends) if i is not None]
        if not ends:
            raise ConfigurationError("model.folder: the tokenizer has no token for the end of a text")
        return cls(inner, begins[0], ends[0], inner.encode(MASK, add_special_tokens=False)[0])

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return len(self.inner)

    @property
    def pad_id(self) -> int:
        """Fills up a batch; never scored, never read by a real place."""
        return self.end_id

    def encode(self, text: str) -> list[int]:
        """The ids of ``text`` without begin and end."""
        ids: list[int] = []
        for number, piece in enumerate(text.split(MASK)):
            if number:
                ids.append(self.mask_id)
            if piece:
                ids += self.inner.encode(piece, add_special_tokens=False, split_special_tokens=True)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, as far as the tokenizer keeps it; begin and end are left out."""
        kept = [number for number in ids if number not in (self.begin_id, self.end_id)]
        return str(self.inner.decode(kept, clean_up_tokenization_spaces=False))

    def spelled(self, number: int) -> str:
        r"""What one id stands for; octets that are no text by themselves as ``\xe2``."""
        text = self.decode([number])
        if "\ufffd" not in text:
            return text
        return _octets_of(str(self.inner.convert_ids_to_tokens(number))).decode("utf-8", "backslashreplace")

    def save(self, folder: Path) -> list[Path]:
        """Write the files that ``AutoTokenizer`` reads to ``folder``; their paths."""
        return _saved(self.inner, folder)


def _octets_of(piece: str) -> bytes:
    """The octets of a vocabulary's ``piece`` in either form of octets: GPT-2's letters, or ``<0xE2>``."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # these have the letters from U+0100 on, in their order
    others = [octet for octet in range(256) if octet not in plain]
    octets = {chr(octet): octet for octet in plain} | {chr(256 + n): octet for n, octet in enumerate(others)}
    return b"".join(bytes([octets[c]]) if c in octets else c.encode() for c in piece)


@contextmanager
def quiet() -> Iterator[None]:
    """No bar, no log record and no warning from ``transformers`` within."""
    from redactory.detectors.classifier.engine import without_progress_bar

    with silence(), without_progress_bar():
        yield


def require_transformers() -> None:
    """``ConfigurationError`` where ``transformers`` is not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "this model needs transformers, not installed here: pip install 'redactory[train]'"
        ) from None
