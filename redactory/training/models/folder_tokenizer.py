"""Tokenizers of Hugging Face: a local folder's own with ``<MASK>`` as one id, and ours in their form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.mask import MASK
from redactory.training.models.hugging_face import quiet, require_transformers
from redactory.training.tokenizer import BEGIN, END, PAD, Tokenizer

_NO_TEXT = "\ufffd"
"""What stands in a decoded text for octets that are none."""


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
    def from_folder(cls, folder: Path, single_digits: bool = False) -> FolderTokenizer:
        """The tokenizer of ``folder``; ``ConfigurationError`` where there is no fast one to be read."""
        require_transformers()
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
            _cut_numbers(inner.backend_tokenizer)
        return cls._of(inner)

    @classmethod
    def _of(cls, inner: Any) -> FolderTokenizer:
        end = _first(inner.eos_token_id, inner.sep_token_id)
        begin = _first(inner.bos_token_id, inner.cls_token_id, end)
        if begin is None or end is None:
            raise ConfigurationError("model.folder: the tokenizer has no token for the end of a text")
        return cls(inner, begin, end, inner.encode(MASK, add_special_tokens=False)[0])

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
        if _NO_TEXT not in text:
            return text
        return _octets_of(str(self.inner.convert_ids_to_tokens(number))).decode("utf-8", "backslashreplace")

    def save(self, folder: Path) -> list[Path]:
        """Write the files that ``AutoTokenizer`` reads to ``folder``; their paths."""
        return sorted({Path(name) for name in self.inner.save_pretrained(folder) if Path(name).is_file()})


def _octets_of(piece: str) -> bytes:
    """The octets of a vocabulary's ``piece`` in either form of octets: GPT-2's letters, or ``<0xE2>``."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    # these have the letters from U+0100 on, in their order
    others = [octet for octet in range(256) if octet not in plain]
    octets = {chr(octet): octet for octet in plain} | {chr(256 + n): octet for n, octet in enumerate(others)}
    return b"".join(bytes([octets[c]]) if c in octets else c.encode() for c in piece)


def _first(*values: int | None) -> int | None:
    return next((int(value) for value in values if value is not None), None)


def _cut_numbers(backend: Any) -> None:
    """Put a cut around every digit before what the tokenizer does itself."""
    from tokenizers import pre_tokenizers

    own = backend.pre_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = digits if own is None else pre_tokenizers.Sequence([digits, own])


# Our vocabulary in the form of Hugging Face's ``tokenizers``, so that ``AutoTokenizer`` reads the same
# ids.


_LETTERS = r"[\p{L}\p{Nl}\p{No}]"
"""What Python's ``[^\\W\\d_]`` is in the terms of that library's regular expressions."""
_PIECES = rf"{MASK}| ?{_LETTERS}+|(?m:.)"
BEFORE, AROUND = f"{BEGIN} $A", f"{BEGIN} $A {END}"
"""What a language model reads of a text, which it goes on with; what a classifier reads."""


def save_for_library(tokenizer: Tokenizer, folder: Path, context: int | None, around: str) -> list[Path]:
    """Write the files that ``AutoTokenizer`` reads to ``folder``; their paths.

    ``around`` is what stands around a text where the network reads it (:data:`BEFORE`, :data:`AROUND`).  Text
    that looks like a special token is text there too: only ``<MASK>`` becomes one.
    """
    from transformers import PreTrainedTokenizerFast

    library: Any = PreTrainedTokenizerFast
    inner = library(
        tokenizer_object=_backend(tokenizer, around),
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        mask_token=MASK,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **({} if context is None else {"model_max_length": context}),
    )
    return sorted({Path(name) for name in inner.save_pretrained(folder) if Path(name).is_file()})


def read_of_library(value: dict[str, Any]) -> Tokenizer | None:
    """Our tokenizer in a ``tokenizer.json`` that :func:`save_for_library` wrote; None in any other."""
    vocabulary = value["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return None
    return Tokenizer.from_pieces(sorted(vocabulary, key=vocabulary.__getitem__))


def _backend(tokenizer: Tokenizer, around: str) -> Any:
    from tokenizers import Regex, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    vocabulary = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    found = Backend(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, ignore_merges=True))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), "isolated")
    found.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    special = [(BEGIN, tokenizer.begin_id), (END, tokenizer.end_id)]
    found.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    return found
