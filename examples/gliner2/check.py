"""Tries the engine, once it is installed, on a tiny GLiNER2 with random weights that is made on the spot."""

import json
import logging
import sys
import tempfile
from pathlib import Path

import torch
from gliner2 import ExtractorConfig, GLiNER2
from gliner2_engine import Gliner2
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, PreTrainedTokenizerFast

from redactory.detectors import Detector, DetectSettings, compute_policy_hashes
from redactory.foundation.errors import ConfigurationError

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:/"
LABELS = {"PERSON": "person", "CREW": "member of a crew", "CAPTAIN": "member of a crew"}
TEXTS = [
    "Anna lives in Paris.",
    "Robert of Oslo, see https://example.org/crew",
    "thank you",
    "",
    "Anna " * 500,
    "a" * 2_000,
]
MAX_WORDS = 24


def save_model(folder: Path) -> Path:
    """Save a GLiNER2 that takes 24 words, with entities of at most 4."""
    pieces = ["[PAD]", "[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    words = models.WordPiece(vocab={piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    words.max_input_chars_per_word = 10_000
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = BertConfig(vocab_size=len(fast), initializer_range=0.6, **sizes)
    torch.manual_seed(0)
    config = ExtractorConfig(model_name="tiny", max_len=MAX_WORDS, max_width=4)
    model = GLiNER2(config, encoder_config=encoder, tokenizer=fast)
    # the head that counts entities: never none
    model.count_pred[-1].bias.data[1] = 1_000
    model.save_pretrained(str(folder))
    return folder


def make_settings(folder: Path, threshold: float = 0.4) -> DetectSettings:
    options = {"folder": str(folder), "labels": LABELS, "threshold": threshold}
    off = {"tagger": None, "patterns": None, "conservative": {"rules": []}}
    return DetectSettings.model_validate({**off, "engines": {"gliner2": options}})


def main() -> None:
    logging.disable()
    with tempfile.TemporaryDirectory() as place:
        folder = save_model(Path(place) / "one")
        detector = Detector(make_settings(folder))
        results = [result for text in TEXTS for result in detector.detect([text])]
        assert list(detector.detect(reversed(TEXTS))) == results[::-1], "a text is read alike in any batch"
        assert [result.failure for result in results] == [None] * 5 + ["engine_error"], "too long a word fails"
        assert results[0].strict, "spans are masked"
        assert max(span.end for span in results[4].strict) > 2_000, "a long text is read to its end"

        engine = Gliner2("en", str(folder), LABELS, threshold=0.0)
        spans, many = engine.read([TEXTS[1], TEXTS[4]])
        assert max(end for _, end, _, _ in spans) == len(TEXTS[1]), "no span ends behind the text"
        assert max(end - start for start, end, _, _ in many) == len("Anna Anna Anna Anna"), "a span has four words"
        crew, captain = ({span[:2] for span in spans if span[2] == label} for label in ("CREW", "CAPTAIN"))
        assert crew == captain, "two labels may have one description"

        text = "some words of a text, " * 60
        words = list(engine._processor.word_splitter(text, lower=False))
        windows = list(engine._split(text, words))
        assert max(map(len, windows)) < MAX_WORDS, "windows have room for a full stop"
        runs = {tuple(window[at : at + 4]) for window in windows for at in range(len(window) - 3)}
        assert all(tuple(words[at : at + 4]) in runs for at in range(len(words) - 3)), "windows overlap"

        other = save_model(Path(place) / "two")
        hashes = compute_policy_hashes(make_settings(folder))
        assert compute_policy_hashes(make_settings(other)) == hashes, "models are known by content"
        (other / "config.json").write_text((other / "config.json").read_text() + "\n")
        assert compute_policy_hashes(make_settings(other)) != hashes

        encoder = other / "encoder_config" / "config.json"
        encoder.write_text(json.dumps({**json.loads(encoder.read_text()), "auto_map": {"AutoModel": "code.Model"}}))
        try:
            Detector(make_settings(other))
            message = ""
        except ConfigurationError as error:
            message = str(error)
        assert "ValueError" in message, "an encoder with code of its own is refused"
    sys.stdout.write("the engine works\n")


if __name__ == "__main__":
    main()
