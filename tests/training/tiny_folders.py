"""Pretrained folders of Hugging Face, made on the spot: random weights, a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_BERT_SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}


def causal_folder(folder: Path, kind: str, **config: Any) -> Path:
    """A ``gpt2`` or ``llama`` folder with a tokenizer; 64 tokens of context, a few thousand weights."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    tokenizer = build_byte_tokenizer()
    shared: dict[str, Any] = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        own: Any = GPT2Config(**{"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, **shared, **config})
    else:
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
        }
        own = LlamaConfig(**{**sizes, **shared, **config})
    task: Any = AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task.from_config(own).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_bert_folder(folder: Path, positions: int) -> Path:
    """A BERT as it is pretrained: without a pooler, and with no head for our classes."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = build_byte_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=1, max_position_embeddings=positions, **_BERT_SIZES
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build_byte_tokenizer() -> Any:
    """Byte-level BPE; numbers of two digits are one token unless somebody cuts them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges = [("e", "l"), ("el", "l"), ("1", "0"), ("2", "3"), ("Ġ", "h")]
    pieces = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    inner = Tokenizer(models.BPE(vocab={piece: n for n, piece in enumerate(pieces)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=end, eos_token=end)


def build_bert_classifier(labels: int, vocabulary: int) -> Any:
    """A BERT for sequence classification with random weights and no dropout, of ``transformers``."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from redactory.training.models.hugging_face import disable_dropout

    sizes = {"vocab_size": vocabulary, "num_hidden_layers": 2, "max_position_embeddings": 64, **_BERT_SIZES}
    config = BertConfig(num_labels=labels, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return disable_dropout(BertForSequenceClassification(config))
