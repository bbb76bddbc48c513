"""Our vocabulary in the form of Hugging Face's ``tokenizers``, so that ``AutoTokenizer`` reads the same ids.

A piece that is a word is one token, any other falls into its characters, a character outside of the alphabet
into the bytes of its UTF-8: that is byte-pair encoding without a single merge that looks words up whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.redaction.mask import MASK
from redactory.training.tokenizer import BEGIN, END, PAD, Tokenizer

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
