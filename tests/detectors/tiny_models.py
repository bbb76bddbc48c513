"""Tiny model folders, made on the spot: a Stanza tagger trained for a second, a random BERT."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

from redactory.detectors.torch_inference import silence_model_libraries

NAMES = ("Anna", "Robert", "Maria", "John", "Leatrice", "Omar")
PLACES = ("Paris", "Berlin", "Lima", "Oslo")
SENTENCES = (
    "P lives in L .",
    "I do n't know P .",
    "my friend P does n't like L",
    "the order for P is late",
    "hello P , how is L today ?",
    "we sent it on monday , thank you",
    "it is a good dog .",
)
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,?!'"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def stanza_folder(folder: Path, steps: int = 60) -> Path:
    """A Stanza folder with one ner package ``tiny`` (character and word LSTM, CRF) that knows a few names."""
    import torch
    from stanza.models import ner_tagger
    from stanza.models.common.doc import Document
    from stanza.models.ner.data import DataLoader
    from stanza.models.ner.trainer import Trainer

    sizes = "--word_emb_dim 16 --char_emb_dim 12 --char_hidden_dim 16 --hidden_dim 32 --dropout 0.1"
    options = f"--no_pretrain --shorthand en_tiny --cpu --optim adam --lr 0.01 {sizes}"
    args = ner_tagger.parse_args(options.split())
    state = random.getstate()
    with silence_model_libraries(), torch.random.fork_rng():
        random.seed(3)
        torch.manual_seed(3)
        batches = DataLoader(Document(list(_tagged())), 16, args, None, evaluation=False)
        trainer = Trainer(args=args, vocab=batches.vocab, pretrain=None, device="cpu")
        for batch in itertools.islice(itertools.cycle(batches), steps):
            trainer.update(batch)
        model = folder / "en" / "ner" / "tiny.pt"
        model.parent.mkdir(parents=True)
        trainer.save(str(model))
    random.setstate(state)
    resources = {"en": {"lang_name": "English", "ner": {"tiny": {"dependencies": []}}, "packages": {}}}
    (folder / "resources.json").write_text(json.dumps(resources))
    return folder


def _tagged() -> list[list[dict[str, Any]]]:
    """Every sentence with names and places drawn into it, as Stanza's data has it."""
    drawn = random.Random(5)
    rows = []
    for sentence in SENTENCES * 10:
        row = []
        for number, word in enumerate(sentence.split()):
            kind = {"P": "S-PER", "L": "S-LOC"}.get(word, "O")
            text = drawn.choice({"P": NAMES, "L": PLACES}.get(word, (word,)))
            row.append({"id": number + 1, "text": text, "ner": kind})
        rows.append(row)
    return rows


def bert_folder(folder: Path, *, bytes_: bool = False, **config: Any) -> Path:
    """A BERT token classifier with random weights and a tokenizer of a few words, for ``LABELS``."""
    import torch
    from transformers import BertConfig, BertForTokenClassification

    tokenizer = _byte_tokenizer() if bytes_ else _word_tokenizer()
    settings = BertConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 40,
            # large weights, so that the labels differ from token to token
            "initializer_range": 0.6,
            "id2label": dict(enumerate(LABELS)),
            "label2id": {label: column for column, label in enumerate(LABELS)},
        }
        | config
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForTokenClassification(settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def privacy_filter_folder(folder: Path) -> Path:
    """A model of the architecture and labels of OpenAI's Privacy Filter, with random weights."""
    import torch
    from transformers import OpenAIPrivacyFilterConfig, OpenAIPrivacyFilterForTokenClassification

    tokenizer = _byte_tokenizer()
    config = OpenAIPrivacyFilterConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        pad_token_id=0,
        eos_token_id=0,
        initializer_range=0.6,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        OpenAIPrivacyFilterForTokenClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _word_tokenizer() -> Any:
    """WordPiece over the words of the sentences; everything else falls into letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = sorted({word["text"] for row in _tagged() for word in row})
    letters = sorted({letter for word in words for letter in word} | set(LETTERS))
    pieces = dict.fromkeys([*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words])
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _fast(tokenizer)


def _byte_tokenizer() -> Any:
    """Byte-level BPE with a handful of merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    merges = [("n", "n"), ("A", "nn"), ("Ann", "a"), ("i", "n"), ("Ġ", "in")]
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _fast(tokenizer)


def _fast(tokenizer: Any) -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=40,
    )
