"""Models that plain ``transformers`` opens: the same ids and logits; what the other folders say."""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from redactory.foundation.files import read_json, write_json
from redactory.redaction import ModelFolder, RunFolder
from redactory.redaction.mask import MASK
from redactory.training import load_model, train_model
from redactory.training.data import TokenizedExamples
from redactory.training.model import TextClassifier, load_classifier, save_model
from redactory.training.models.hugging_face import SequenceClassifier
from redactory.training.tokenizer import Tokenizer
from tests.training.conftest import PUBLIC_TEXTS, make_small_settings, write_run
from tests.training.tiny_folders import build_bert_classifier

SIZES = {"layers": 1, "width": 8, "heads": 2, "context": 64}
NASTY = [
    "Hello, how can I help you?",
    f"my name is {MASK} and 1023",
    "<END> <PAD><BEGIN> <0x41> Helloé naïve ½ 😀\tHello\r\n  Hello x_y",
    "",
    " ",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a model of each kind, trained from nothing on the run's own vocabulary."""
    folder = write_run(tmp_path_factory.mktemp("plain") / "RUN")
    for kind in ("gpt2", "llama"):
        network = {"kind": kind, **SIZES}
        train_model(folder, make_small_settings(trainer="sgd", model=network, max_tokens=40, epochs=1, name=kind))
    train_model(folder, make_small_settings(trainer="sgd", epochs=1, name="lstm"))
    return folder


def test_what_the_library_wrote_is_its_owners_alone_too(run: RunFolder) -> None:
    files = [path for path in run.get_model_folder("gpt2").root.iterdir() if path.is_file()]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    assert "tokenizer_config.json" in modes
    assert set(modes.values()) == {0o600}


def _opened(folder: ModelFolder) -> tuple[Any, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder.root, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder.root, local_files_only=True)
    return tokenizer, model.eval()


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_text_has_the_same_logits_from_the_folder_alone(run: RunFolder, kind: str) -> None:
    tokenizer, theirs = _opened(run.get_model_folder(kind))
    ours = load_model(run.get_model_folder(kind))
    assert isinstance(ours.tokenizer, Tokenizer)
    # the third has more pieces than the networks read
    for text in (*NASTY[:2], NASTY[2][:24]):
        read = tokenizer(text, return_tensors="pt")
        assert read["input_ids"][0].tolist() == [ours.tokenizer.begin_id, *ours.tokenizer.encode(text)]
        batch = TokenizedExamples.from_texts([text], ours.tokenizer, None).make_batch([0])
        with torch.no_grad():
            mine = ours.network.head(ours.network.hidden_states(batch))
            torch.testing.assert_close(theirs(**read).logits, mine, rtol=1e-5, atol=1e-5)
    written = theirs.generate(**tokenizer("Hello", return_tensors="pt"), max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(written[0], skip_special_tokens=True).startswith("Hello")
    assert "AutoModelForCausalLM.from_pretrained" in run.get_model_folder(kind).card.read_text()


@pytest.fixture(scope="module")
def pair(run: RunFolder) -> tuple[Tokenizer, Any]:
    """Our tokenizer, and what AutoTokenizer reads of it."""
    own = load_model(run.get_model_folder("gpt2")).tokenizer
    assert isinstance(own, Tokenizer)
    return own, AutoTokenizer.from_pretrained(run.get_model_folder("gpt2").root, local_files_only=True)


def _same(pair: tuple[Tokenizer, Any], text: str) -> None:
    own, theirs = pair
    ids = own.encode(text)
    assert theirs.encode(text, add_special_tokens=False) == ids
    kept = theirs.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert kept == own.decode(ids) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["Hello", "help ", MASK, "<END>", "you", "\n"]) | st.text()).map("".join))
@example(NASTY[2])
def test_every_text_has_the_same_ids_and_comes_back(pair: tuple[Tokenizer, Any], text: str) -> None:
    _same(pair, text)


def test_every_character_beside_a_word_has_the_same_ids(pair: tuple[Tokenizer, Any]) -> None:
    """Where a word ends is decided alike by Python's table of letters and by theirs."""
    own, theirs = pair
    known = [n for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) not in ("Cn", "Co", "Cs")]
    # of the long stretches of ideographs and syllables every sixteenth, and both ends of each
    kept = [n for n in known if n < 0x3400 or n % 16 == 0 or _is_letter(n) != _is_letter(n - 1)]
    assert len(kept) > 20_000
    for start in range(0, len(kept), 5000):
        text = "".join(f"Hello{chr(n)} " for n in kept[start : start + 5000])
        assert theirs.encode(text, add_special_tokens=False) == own.encode(text)


def _is_letter(number: int) -> bool:
    return re.fullmatch(r"[^\W\d_]", chr(number)) is not None


def test_a_folder_of_an_earlier_version_is_read_too(run: RunFolder) -> None:
    own = load_model(run.get_model_folder("gpt2"))
    assert isinstance(own.tokenizer, Tokenizer)
    tokenizer = run.get_model_folder("gpt2").tokenizer
    kept = tokenizer.read_bytes()
    try:
        write_json(tokenizer, own.tokenizer.to_json())
        assert load_model(run.get_model_folder("gpt2")).tokenizer == own.tokenizer
    finally:
        tokenizer.write_bytes(kept)
    assert load_model(run.get_model_folder("gpt2")).tokenizer == own.tokenizer


def test_an_lstm_is_none_of_theirs_and_its_folder_says_so(run: RunFolder) -> None:
    folder = run.get_model_folder("lstm")
    with pytest.raises(ValueError, match="model_type"):
        AutoConfig.from_pretrained(folder.root, local_files_only=True)
    assert read_json(folder.config)["format"] == "redactory-lstm/3"
    assert "Plain `transformers` cannot open this network" in folder.card.read_text()
    assert "library_name: redactory" in folder.card.read_text()
    assert "library_name: transformers" in run.get_model_folder("gpt2").card.read_text()


def test_a_classifier_tells_the_same_classes(tmp_path: Path) -> None:
    words = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    folder = RunFolder(tmp_path).get_model_folder("bert")
    save_model(folder, TextClassifier(words, SequenceClassifier(build_bert_classifier(3, words.size))))
    theirs = AutoModelForSequenceClassification.from_pretrained(folder.root, local_files_only=True).eval()
    read = AutoTokenizer.from_pretrained(folder.root, local_files_only=True)(NASTY[1], return_tensors="pt")
    with torch.no_grad():
        found = theirs(**read).logits.double().log_softmax(-1)[0].numpy()
    np.testing.assert_allclose(found, load_classifier(folder).compute_class_log_probs([NASTY[1]])[0], rtol=1e-5)
