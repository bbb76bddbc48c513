"""Tries the engine, once it is installed, on a tiny GLiNER with random weights that is made on the spot."""

import logging
import sys
import tempfile
from pathlib import Path

import torch
from gliner.model import UniEncoderSpanGLiNER
from gliner_engine import Gliner
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from redactory.detectors import Detector, DetectSettings, compute_policy_hashes

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,"
LABELS = {"PERSON": "person", "CREW": "member of a crew"}
TEXTS = ["Anna lives in Paris.", "Robert of Oslo, and his crew", "thank you", "", "Anna " * 500, "a" * 2_000]
MOST_WORDS = 24


def folder_of(place: Path) -> Path:
    """A GLiNER that takes 24 words, with entities of at most 4."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    words = models.WordPiece(vocab={piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    words.max_input_chars_per_word = 10_000
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = BertConfig(vocab_size=len(fast), initializer_range=0.6, **sizes)
    torch.manual_seed(0)
    config = UniEncoderSpanGLiNER.config_class(
        model_name="tiny", encoder_config=encoder.to_dict(), hidden_size=32, max_len=MOST_WORDS, max_width=4
    )
    model = UniEncoderSpanGLiNER(config, tokenizer=fast, backbone_from_pretrained=False)
    model._resize_token_embeddings(model, config, fast)
    model.save_pretrained(place, safe_serialization=True)
    return place


def settings_of(folder: Path, threshold: float = 0.4) -> DetectSettings:
    options = {"folder": str(folder), "labels": LABELS, "threshold": threshold}
    off = {"tagger": None, "patterns": None, "conservative": {"rules": []}}
    return DetectSettings.model_validate({**off, "engines": {"gliner": options}})


def main() -> None:
    logging.disable()
    with tempfile.TemporaryDirectory() as place:
        folder = folder_of(Path(place) / "one")
        detector = Detector(settings_of(folder))
        alone = [found for text in TEXTS for found in detector.detect([text])]
        assert list(detector.detect(reversed(TEXTS))) == alone[::-1], "a text is read alike in any batch"
        assert [found.failure for found in alone] == [None] * 5 + ["engine_error"], "too long a word fails"
        assert alone[0].strict, "hits are masked"
        assert max(span.end for span in alone[4].strict) > 2_000, "a long text is read to its end"

        engine = Gliner("en", str(folder), LABELS)
        words = list(engine._split("some words of a text, " * 60))
        windows = list(engine._windows(words))
        assert max(map(len, windows)) <= MOST_WORDS
        runs = {tuple(window[at : at + 4]) for window in windows for at in range(len(window) - 3)}
        assert all(tuple(words[at : at + 4]) in runs for at in range(len(words) - 3)), "windows overlap"

        other = folder_of(Path(place) / "two")
        assert compute_policy_hashes(settings_of(other)) == compute_policy_hashes(settings_of(folder)), (
            "known by content"
        )
        (other / "gliner_config.json").write_text((other / "gliner_config.json").read_text() + "\n")
        assert compute_policy_hashes(settings_of(other)) != compute_policy_hashes(settings_of(folder))
    sys.stdout.write("the engine works\n")


if __name__ == "__main__":
    main()
