"""Builds a training's vocabulary by a fixed rule from public sources, which the ledger records.

Private text never decides what a token is (``docs/guarantees.md``, "Side channels", item 1).
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import regex

from redactory.foundation.canonical import file_sha256, folder_sha256, json_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.training.chat import format_turns
from redactory.training.data import PublicText, read_public_texts
from redactory.training.models.adapted_encoder import AdaptableEncoder
from redactory.training.models.frozen_encoder import AnyCodec, FrozenEncoder, open_encoder, read_json_or_empty
from redactory.training.models.settings import FrozenEncoderSettings
from redactory.training.settings import ENCODER_SOURCE, VOCABULARY_SOURCES, TrainSettings
from redactory.training.tokenizer import (
    FolderTokenizer,
    TextCodec,
    Tokenizer,
    count_words,
    parse_redactory_tokenizer,
    require_model_folder,
)
from redactory.training.trainers import get_trainer

PUBLIC_SPLIT, PUBLIC_TEXT, SHIPPED, FILE, FOLDER, MODEL_FOLDER = VOCABULARY_SOURCES[:-1]
MIN_WORD_COUNT = 2
"""Minimum count of a word in a text source to influence the pieces."""
MAX_TOKENS_PER_WORD, MAX_CUT_SHARE = 1.6, 0.05
"""Values above these cause a warning."""
_MAX_FIT_TEXTS = 2_000
_COMMON_WORDS_FILE = files("redactory.detectors") / "words" / "common" / "en.txt.gz"
_WORD_REGEX = regex.compile(r"\p{L}[\p{L}\p{M}]*")


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and its sources with digests of their content.

    The digest is None for ``public/`` and a pretrained ``model.folder``: the ledger holds it as ``parent`` or ``base``.
    ``added_rows`` is the number of embeddings that the folder's network lacks
    (:func:`redactory.training.models.hugging_face.extend_vocabulary`).
    """

    tokenizer: AnyCodec
    sources: Mapping[str, str | None]
    added_rows: int = 0

    def to_record(self) -> dict[str, Any]:
        """Return the vocabulary's entry in a ledger's head."""
        if isinstance(self.tokenizer, FrozenEncoder):
            entries = {"entries": self.tokenizer.width, "lora_rank": self.tokenizer.lora_rank}
            return {"made_of": dict(self.sources), "sha256": self.tokenizer.sha256, **entries}
        record = {"made_of": dict(self.sources), "sha256": self.tokenizer.digest, "entries": self.tokenizer.size}
        return record | ({"added_rows": self.added_rows} if self.added_rows else {})


def build_vocabulary(
    run: RunFolder | None, settings: TrainSettings, public_text: PublicText | None, lora_rank: int = 0
) -> Vocabulary:
    """Build or load the tokenizer, reading no private text; ``ConfigurationError`` for an unusable file or folder.

    ``lora_rank`` is the rank of adapters in the encoder of ``model.kind: encoder``.
    """
    sources, path = settings.vocabulary_sources, settings.tokenizer
    if isinstance(settings.model, FrozenEncoderSettings):
        cache_path = None if run is None else run.text_vectors
        encoder = (
            AdaptableEncoder(lora_rank, settings.threads)
            if lora_rank
            else open_encoder(settings.model, cache_path, settings.threads)
        )
        return Vocabulary(encoder, {ENCODER_SOURCE: None})
    folder = getattr(settings.model, "folder", None)
    if folder is not None:
        require_model_folder(folder)
        tokenizer = FolderTokenizer.from_folder(folder, single_digits=True)
        config = read_json_or_empty(folder / "config.json")
        rows = (config.get("text_config") or config).get("vocab_size", tokenizer.size)
        return Vocabulary(tokenizer, {MODEL_FOLDER: None}, max(0, tokenizer.size - rows))
    if isinstance(path, Path):
        return Vocabulary(*_load_tokenizer(run, path))
    counts: Counter[str] = Counter()
    digests: dict[str, str | None] = {}
    for source in sources:
        if source == SHIPPED:
            counts.update(_load_common_word_counts())
            digests[source] = file_sha256(Path(str(_COMMON_WORDS_FILE)))
        elif source == PUBLIC_TEXT:
            assert public_text is not None
            counts.update(count_words(map(format_turns, public_text.read_texts()), MIN_WORD_COUNT))
            digests[source] = public_text.sha256
        else:
            assert run is not None
            counts.update(
                count_words(map(format_turns, read_public_texts(run, settings.example_format)), MIN_WORD_COUNT)
            )
            digests[source] = None
    return Vocabulary(_train_tokenizer(counts, settings.vocabulary_size), digests)


_trained_tokenizers: dict[str, Tokenizer] = {}
"""The last tokenizer by the digest of its input: the warnings before a training need the one that it trains with."""


def _train_tokenizer(counts: Mapping[str, int], size: int) -> Tokenizer:
    digest = json_sha256([sorted(counts.items()), size])
    if digest not in _trained_tokenizers:
        _trained_tokenizers.clear()
        _trained_tokenizers[digest] = Tokenizer.from_counts(counts, size)
    return _trained_tokenizers[digest]


def _load_tokenizer(run: RunFolder | None, path: Path) -> tuple[TextCodec, dict[str, str | None]]:
    """Load the tokenizer of a public file or folder, with its digest."""
    key, file = "train.tokenizer", path / "tokenizer.json" if path.is_dir() else path
    if not path.exists():
        raise ConfigurationError(f"{key}: there is no file or folder {path.name}; nothing is downloaded")
    # a link to a model's file counts as that file
    resolved = file.resolve()
    if any((folder / "ledger.jsonl").exists() for folder in (file.parent, resolved.parent)) or (
        run is not None and resolved.is_relative_to(run.root.resolve())
    ):
        raise ConfigurationError(
            f"{key}: {path.name} belongs to a model of a run, made from its text; give a public one"
        )
    if path.is_dir():
        return FolderTokenizer.from_folder(path, single_digits=True, key=key), {FOLDER: folder_sha256(path)}
    try:
        redactory_tokenizer = parse_redactory_tokenizer(read_json(path))
    except (InputError, ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{key}: {path.name} is not a readable tokenizer file") from None
    loaded = redactory_tokenizer or FolderTokenizer.from_folder(path, single_digits=True, key=key)
    return loaded, {FILE: file_sha256(path)}


@cache
def _load_common_word_counts() -> Mapping[str, int]:
    """Load the shipped word list with counts that are small beside a text's, so that it fills up the vocabulary.

    The more common half counts 2, and 1 capitalised; the other half counts 1.
    """
    common_words, _, other_words = gzip.decompress(_COMMON_WORDS_FILE.read_bytes()).decode().partition("\n\n")
    counts = Counter({f" {word}": 2 for word in common_words.split()})
    counts.update({f" {word.capitalize()}": 1 for word in common_words.split()})
    counts.update({f" {word}": 1 for word in other_words.split()})
    return counts


# Fit is measured on public text alone: a metric of private text would be a release.


def measure_vocabulary_fit(vocabulary: Vocabulary, texts: Iterable[str], max_tokens: int) -> dict[str, Any]:
    """Measure how the vocabulary fits the first of public ``texts``; nulls if there are none.

    Returns {texts, tokens_per_word, spelled_out, cut}: tokens per word (a run of letters), the share of words with at
    least one token per letter, and the share of texts longer than ``max_tokens``.
    """
    if isinstance(vocabulary.tokenizer, FrozenEncoder):
        return {"texts": 0, "tokens_per_word": None, "spelled_out": None, "cut": None}
    encode = vocabulary.tokenizer.encode
    words: Counter[str] = Counter()
    text_count = truncated_count = 0
    for text in islice(texts, _MAX_FIT_TEXTS):
        words.update(_WORD_REGEX.findall(text.replace(MASK, " ")))
        text_count, truncated_count = text_count + 1, truncated_count + (len(encode(text)) + 1 > max_tokens)
    context_tokens, total = len(encode("a")), sum(words.values())
    tokens_by_word = {word: len(encode(f"a {word}")) - context_tokens for word in words}
    spelled_out_count = sum(count for word, count in words.items() if tokens_by_word[word] >= max(2, len(word)))
    return {
        "texts": text_count,
        "tokens_per_word": sum(count * tokens_by_word[word] for word, count in words.items()) / total
        if total
        else None,
        "spelled_out": spelled_out_count / total if total else None,
        "cut": truncated_count / text_count if text_count else None,
    }


def read_public_sources(
    run: RunFolder | None, settings: TrainSettings, public_text: PublicText | None
) -> Iterable[str]:
    """Return the texts of ``public_text``, otherwise of the public split if the trainer may read it, or none."""
    if public_text is not None:
        return public_text.read_texts()
    if run is None or get_trainer(settings).hides_units:
        return ()
    return map(format_turns, read_public_texts(run, settings.example_format))


def describe_fit_problems(fit: Mapping[str, Any], is_from_folder: bool = False) -> list[str]:
    """Describe problems in a fit of :func:`measure_vocabulary_fit`, one sentence each.

    ``is_from_folder``: the tokenizer is a model's.
    """
    tokens_per_word, truncated_share = fit.get("tokens_per_word"), fit.get("cut")
    problems = []
    if tokens_per_word is not None and tokens_per_word > MAX_TOKENS_PER_WORD:
        fix = (
            "a folder whose tokenizer was made for such text would need fewer"
            if is_from_folder
            else "give text of the same kind as train.public_text, a tokenizer of its language as "
            "train.tokenizer, or raise train.vocabulary_size"
        )
        problems.append(
            f"a word of public text takes {tokens_per_word:.2f} tokens, and {fit['spelled_out']:.0%} of the words are "
            f"spelled out: {fix}"
        )
    if truncated_share is not None and truncated_share > MAX_CUT_SHARE:
        problems.append(
            f"{truncated_share:.0%} of the public texts are longer than train.max_tokens and are truncated: raise it, "
            "or split documents into smaller examples (segment.mode)"
        )
    return problems
