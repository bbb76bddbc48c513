"""Tokenizers: our own of word pieces over a fixed alphabet, and that of a local Hugging Face folder.

Ours splits words by byte-pair encoding (Sennrich et al. 2016), trained on counts of public words alone
(``redactory.training.vocabulary``). There is no unknown token: the rest is spelled in characters of the alphabet or
UTF-8 bytes. Numbers are split into single digits, so that memorised numbers can be measured (canary exposure).

An entry for a word includes the space before it. Where a word has none (at the beginning, on a new line, after an
opening bracket, a slash or a hyphen), encoding inserts one and decoding removes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import regex

from redactory.detectors.torch_inference import silence_model_libraries
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.redaction.mask import MASK

PAD, BEGIN, END = "<PAD>", "<BEGIN>", "<END>"
_SPECIALS = (PAD, BEGIN, END, MASK)
_ALPHABET = tuple(chr(code) for code in (9, 10, 13, *range(32, 127)))
_FIXED_VOCABULARY = (*_SPECIALS, *_ALPHABET, *(f"<0x{value:02X}>" for value in range(256)))
_FIXED_BYTES = (b"", b"", b"", *(text.encode() for text in (MASK, *_ALPHABET)), *(bytes([n]) for n in range(256)))
"""What each of :data:`_FIXED_VOCABULARY` is decoded to."""
FIXED_SIZE = len(_FIXED_VOCABULARY)
"""Entries of every vocabulary before its word pieces."""
FORMAT = "redactory-tokenizer/2"
"""Version of the rules around the pieces: part of the digest."""
_WORD_PATTERN = r"\p{L}[\p{L}\p{M}]*"
_SPLIT_PATTERN = rf"{MASK}| ?{_WORD_PATTERN}|(?m:.)"
_NO_SPACE_BEFORE = r"(?:\A|(?<=[\n\r\t(\[{/\-]))"
_MISSING_SPACE, _ADDED_SPACE = rf"{_NO_SPACE_BEFORE}(?= *\p{{L}})", rf"{_NO_SPACE_BEFORE} (?= *\p{{L}})"
"""Where encoding inserts a space, and that space for removal; the two patterns are exact inverses."""
_MAX_COUNTED_WORDS = 2_000_000
"""Maximum number of words that pieces are trained on: larger counts are scaled down."""


class TextCodec(Protocol):
    """Text to ids and back; ``<MASK>`` is one id, and every id is in ``range(size)``.

    Padding and the begin token are never scored; the end token follows every text.
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
        """Encode ``text`` without begin and end tokens."""

    def token_offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the range [start, end) of ``text`` (code points) of each id of :meth:`encode`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ``ids``; padding, begin and end are omitted."""

    def decode_token(self, token_id: int) -> str:
        r"""Decode one id; bytes that are not UTF-8 by themselves become escapes such as ``\xe2``."""

    @property
    def digest(self) -> str:
        """:func:`compute_tokenizer_digest` of the file that it is saved to."""


@dataclass(frozen=True)
class Tokenizer:
    """An exactly invertible tokenizer of word pieces.

    Ids: padding, begin, end and ``<MASK>``, then the printable ASCII characters with tab and line ends, the 256 bytes,
    and last ``words``: further letters, and the results of ``merges`` in their order.
    """

    words: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    _backend: Any = field(init=False, repr=False, compare=False)

    pad_id: ClassVar[int] = 0
    begin_id: ClassVar[int] = 1
    end_id: ClassVar[int] = 2
    mask_id: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "_backend", self._build_backend())

    @classmethod
    def from_texts(cls, texts: Iterable[str], size: int, minimum_count: int = 1) -> Self:
        """Train on public ``texts``: at most ``size`` pieces of words with at least ``minimum_count`` occurrences."""
        return cls.from_counts(count_words(texts, minimum_count), size)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], size: int) -> Self:
        """Train at most ``size`` pieces on counts of public words, as :func:`count_words` returns them."""
        from tokenizers import Regex, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Backend

        letters: Counter[str] = Counter()
        for word, count in counts.items():
            letters.update(dict.fromkeys(set(word).difference(_ALPHABET), count))
        kept_letters = sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[: size // 2])
        allowed_characters = {*_ALPHABET, *kept_letters}
        scale = min(1.0, _MAX_COUNTED_WORDS / max(1, sum(counts.values())))
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("\n"), "removed")
        backend.train_from_iterator(
            (
                f"{word}\n" * max(1, int(n * scale))
                for word, n in sorted(counts.items())
                if allowed_characters >= set(word)
            ),
            trainers.BpeTrainer(
                vocab_size=len(_ALPHABET) + size,
                min_frequency=1,
                show_progress=False,
                initial_alphabet=[*_ALPHABET, *kept_letters],
            ),
        )
        merges = tuple((left, right) for left, right in json.loads(backend.to_str())["model"]["merges"])
        return cls(tuple(dict.fromkeys([*kept_letters, *(left + right for left, right in merges)])), merges)

    @property
    def size(self) -> int:
        """Number of ids."""
        return FIXED_SIZE + len(self.words)

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` without begin and end; ``ValueError`` (without the text) on a lone surrogate."""
        return list(self._encode_with_backend(text).ids)

    def token_offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the range [start, end) of ``text`` (code points) of each id of :meth:`encode`."""
        return list(self._encode_with_backend(text).offsets)

    def _encode_with_backend(self, text: str) -> Any:
        if _SURROGATE.search(text):
            raise ValueError("a lone surrogate cannot be encoded in UTF-8")
        return self._backend.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Invert :meth:`encode` exactly; omits padding, begin and end; invalid UTF-8 (from a model) becomes U+FFFD."""
        text: str = _make_regex_normalizer(_ADDED_SPACE, "").normalize_str(
            self._ids_to_bytes(ids).decode("utf-8", errors="replace")
        )
        return text

    def _ids_to_bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(_FIXED_BYTES[i] if i < FIXED_SIZE else self.words[i - FIXED_SIZE].encode() for i in ids)

    def decode_token(self, token_id: int) -> str:
        r"""Decode one id; a byte that is not UTF-8 by itself becomes an escape such as ``\xe2``."""
        return self._ids_to_bytes([token_id]).decode("utf-8", "backslashreplace")

    @property
    def digest(self) -> str:
        """Hex sha256 of the tokenizer's whole definition."""
        return json_sha256([FORMAT, [*_FIXED_VOCABULARY, *self.words], [list(pair) for pair in self.merges]])

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON of the library ``tokenizers``; :func:`parse_redactory_tokenizer` reads it back."""
        value: dict[str, Any] = json.loads(self._backend.to_str())
        return value

    def _build_backend(self) -> Any:
        """Build the equivalent tokenizer of the library ``tokenizers``."""
        from tokenizers import Regex, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend

        vocabulary = {piece: number for number, piece in enumerate((*_FIXED_VOCABULARY, *self.words))}
        merges = list(self.merges)
        backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, ignore_merges=True))
        backend.normalizer = _make_regex_normalizer(_MISSING_SPACE, " ")
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(_SPLIT_PATTERN), "isolated")
        backend.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(Regex(_ADDED_SPACE), "")]
        )
        return backend

    def save_for_library(
        self, folder: Path, context: int | None, add_end_token: bool, template: str | None = None
    ) -> list[Path]:
        """Write the files from which ``AutoTokenizer`` reads the same ids to ``folder``; return their paths.

        The begin token precedes a text, as the network reads it; with ``add_end_token`` the end token follows it. Text
        that looks like a special token stays text; only ``<MASK>`` becomes a token. A chat ``template`` writes the end
        token as text, so with one that text becomes the token.
        """
        from tokenizers import processors
        from transformers import PreTrainedTokenizerFast

        backend = self._build_backend()
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}" if add_end_token else f"{BEGIN} $A",
            special_tokens=[(BEGIN, self.begin_id), (END, self.end_id)],
        )
        library: Any = PreTrainedTokenizerFast
        return _save_pretrained_tokenizer(
            library(
                tokenizer_object=backend,
                pad_token=PAD,
                bos_token=BEGIN,
                eos_token=END,
                mask_token=MASK,
                split_special_tokens=template is None,
                **({} if template is None else {"chat_template": template}),
                clean_up_tokenization_spaces=False,
                model_input_names=["input_ids", "attention_mask"],
                **({} if context is None else {"model_max_length": context}),
            ),
            folder,
        )


_SURROGATE = re.compile("[\ud800-\udfff]")


def _make_regex_normalizer(pattern: str, content: str) -> Any:
    from tokenizers import Regex, normalizers

    return normalizers.Replace(Regex(pattern), content)


def count_words(texts: Iterable[str], minimum_count: int = 1) -> dict[str, int]:
    """Count words of at least ``minimum_count`` occurrences with the space before them, present or inserted."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_WORD_REGEX.findall(_MISSING_SPACE_REGEX.sub(" ", text)))
    return {word: count for word, count in counts.items() if count >= minimum_count and word not in _ALPHABET}


_WORD_REGEX, _MISSING_SPACE_REGEX = regex.compile(f" ?{_WORD_PATTERN}"), regex.compile(_MISSING_SPACE)


def parse_redactory_tokenizer(value: Mapping[str, Any]) -> Tokenizer | None:
    """Parse our tokenizer from the JSON of the library ``tokenizers``; None for another, ``InputError`` otherwise."""
    if "model" not in value:
        raise InputError("the tokenizer file has a format that this version cannot read")
    vocabulary, merges = value["model"].get("vocab"), value["model"].get("merges")
    if not isinstance(vocabulary, dict):
        return None
    pieces = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
    if pieces[:FIXED_SIZE] != _FIXED_VOCABULARY:
        return None
    return Tokenizer(pieces[FIXED_SIZE:], tuple((left, right) for left, right in merges))


def compute_tokenizer_digest(value: Mapping[str, Any]) -> str:
    """Hash (hex sha256) the parts of a tokenizer file's JSON that determine encoding and decoding."""
    tokenizer = parse_redactory_tokenizer(value)
    return tokenizer.digest if tokenizer else json_sha256({key: value.get(key) for key in _DIGEST_KEYS})


_DIGEST_KEYS = ("model", "normalizer", "pre_tokenizer", "decoder", "added_tokens")


def _save_pretrained_tokenizer(inner: Any, folder: Path) -> list[Path]:
    return sorted({Path(name) for name in inner.save_pretrained(folder) if Path(name).is_file()})


@dataclass(frozen=True)
class FolderTokenizer:
    """A fast tokenizer read from a folder, which must be public.

    Ids are the folder's; begin and end are its available special tokens. Text that looks like another special token
    stays text, except ``<MASK>``.
    """

    inner: Any
    begin_id: int
    end_id: int
    mask_id: int

    @classmethod
    def from_folder(cls, folder: Path, single_digits: bool = False, key: str = "model.folder") -> Self:
        """Load the tokenizer of ``folder`` or of a ``tokenizer.json``; ``ConfigurationError`` if it is not fast.

        ``key`` is the setting that names it. A file alone does not define an end token, so one is added. With
        ``single_digits`` digits are split before the tokenizer's own splitting.
        """
        require_transformers()
        from tokenizers import pre_tokenizers
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        library: Any = PreTrainedTokenizerFast
        try:
            with silence_transformers():
                if folder.is_file():
                    inner = library(tokenizer_file=str(folder), eos_token=END)
                else:
                    inner = AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
        # the library raises a bare Exception if the file is not a tokenizer's
        except Exception as error:
            advice = "save the model and its tokenizer there (save_pretrained)" if folder.exists() else "does it exist?"
            raise ConfigurationError(
                f"{key}: no tokenizer can be read from {folder.name} ({type(error).__name__}); {advice}"
            ) from None
        if not inner.is_fast:
            raise ConfigurationError(f"{key}: {folder.name} needs a fast tokenizer (tokenizer.json)")
        # for a folder with only a model the library silently makes an empty one
        if set(inner.get_vocab()) <= set(inner.all_special_tokens):
            raise ConfigurationError(
                f"{key}: {folder.name} has no tokenizer, or an empty one; save the model's tokenizer there "
                "(save_pretrained)"
            )
        if len(inner.encode(MASK, add_special_tokens=False)) != 1:
            inner.add_special_tokens({"additional_special_tokens": [MASK]})
        if single_digits:
            backend, digits = inner.backend_tokenizer, pre_tokenizers.Digits(individual_digits=True)
            pre_tokenizer = backend.pre_tokenizer
            backend.pre_tokenizer = (
                digits if pre_tokenizer is None else pre_tokenizers.Sequence([digits, pre_tokenizer])
            )
        end_ids = [i for i in (inner.eos_token_id, inner.sep_token_id) if i is not None]
        begin_ids = [i for i in (inner.bos_token_id, inner.cls_token_id, *end_ids) if i is not None]
        if not end_ids:
            raise ConfigurationError(f"{key}: the tokenizer has no end-of-text token")
        return cls(inner, begin_ids[0], end_ids[0], inner.encode(MASK, add_special_tokens=False)[0])

    @property
    def size(self) -> int:
        """Number of ids, including added tokens."""
        return len(self.inner)

    @property
    def pad_id(self) -> int:
        """The end token pads batches; padding is never scored and no real position reads it."""
        return self.end_id

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` without begin and end tokens."""
        return [token_id for token_id, _ in self._encode_with_offsets(text)]

    def token_offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the range [start, end) of ``text`` (code points) of each id of :meth:`encode`."""
        return [offsets for _, offsets in self._encode_with_offsets(text)]

    def _encode_with_offsets(self, text: str) -> Iterator[tuple[int, tuple[int, int]]]:
        piece_start = 0
        for number, piece in enumerate(text.split(MASK)):
            if number:
                yield self.mask_id, (piece_start, piece_start + len(MASK))
                piece_start += len(MASK)
            if piece:
                encoding = self.inner(
                    piece, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
                )
                for token_id, (start, end) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
                    yield token_id, (piece_start + start, piece_start + end)
            piece_start += len(piece)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ``ids`` as exactly as the tokenizer allows; begin and end are omitted."""
        text_ids = [token_id for token_id in ids if token_id not in (self.begin_id, self.end_id)]
        return str(self.inner.decode(text_ids, clean_up_tokenization_spaces=False))

    def decode_token(self, token_id: int) -> str:
        r"""Decode one id; bytes that are not UTF-8 by themselves become escapes such as ``\xe2``."""
        text = self.decode([token_id])
        if "\ufffd" not in text:
            return text
        return _piece_to_bytes(str(self.inner.convert_ids_to_tokens(token_id))).decode("utf-8", "backslashreplace")

    @property
    def digest(self) -> str:
        """Hex sha256 of everything that determines encoding and decoding."""
        return compute_tokenizer_digest(json.loads(self.inner.backend_tokenizer.to_str()))

    def save(self, folder: Path) -> list[Path]:
        """Write the files that ``AutoTokenizer`` reads to ``folder``; return their paths."""
        return _save_pretrained_tokenizer(self.inner, folder)


def _piece_to_bytes(piece: str) -> bytes:
    """Convert a vocabulary ``piece`` to bytes from either notation: GPT-2's letters, or ``<0xE2>``."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if re.fullmatch(r"<0x[0-9A-F]{2}>", piece):
        return bytes([int(piece[3:5], 16)])
    characters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    byte_by_character = {character: octet for octet, character in characters.items()}
    return b"".join(bytes([byte_by_character[c]]) if c in byte_by_character else c.encode() for c in piece)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Suppress progress bars, log records and warnings of ``transformers``."""
    from redactory.detectors.transformers_ner import hide_progress_bar

    with silence_model_libraries(), hide_progress_bar():
        yield


def require_transformers() -> None:
    """Raise ``ConfigurationError`` if ``transformers`` is not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "this model needs transformers, which is not installed: pip install 'redactory[train]'"
        ) from None


def require_model_folder(folder: Path) -> None:
    """Raise ``ConfigurationError`` if ``folder``, a path or a name of the Hugging Face Hub, is not on this machine."""
    if not folder.is_dir():
        raise ConfigurationError(
            f"train.model.folder: there is no folder {folder.name}, and nothing is downloaded; for a model of the "
            "Hugging Face Hub run hf download NAME --local-dir FOLDER and give FOLDER"
        )
