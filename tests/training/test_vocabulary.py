"""A vocabulary is made of what is public, by a rule, and its record is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.redaction import RunFolder
from redactory.redaction.mask import MASK
from redactory.training import make_guarantee_card, train_model
from redactory.training.data import open_public_text
from redactory.training.guarantee.spec import has_only_public_sources
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.tokenizer import Tokenizer
from redactory.training.vocabulary import (
    build_vocabulary,
    describe_fit_problems,
    measure_vocabulary_fit,
    read_public_sources,
)
from tests.training.conftest import PRIVATE_TEXTS, PUBLIC_TEXTS, make_small_settings, write_run

MakeRun = Callable[[], RunFolder]


def settings(**given: Any) -> TrainSettings:
    return TrainSettings.model_validate({"noise_multiplier": 1.0, **given})


@pytest.mark.parametrize(
    ("given", "sources"),
    [
        ({}, ("public", "shipped")),
        ({"public_text": "donated.txt"}, ("public_text", "shipped")),
        ({"trainer": "uedp-bounded", "bounding": {"k_user": 1, "k_entity": 1}}, ("shipped",)),
        ({"tokenizer": "public"}, ("public",)),
        ({"tokenizer": "elsewhere.json"}, ("file",)),
    ],
)
def test_the_rule(given: dict[str, Any], sources: tuple[str, ...]) -> None:
    assert settings(**given).vocabulary_sources == sources


def test_nothing_of_the_corpus_for_who_hides_users() -> None:
    with pytest.raises(ValueError, match="not even the vocabulary may come from the corpus"):
        settings(trainer="uedp-bounded", bounding={"k_user": 1, "k_entity": 1}, tokenizer="public")
    assert has_only_public_sources(["public_text", "shipped"])
    assert not any(has_only_public_sources(made_of) for made_of in ([], ["public", "shipped"], ["somewhere"]))


OTHER = [f"Zyzzyva qoph {MASK} {number} Xanadu's quixotry, whoever wrote that" for number in range(700, 790)]


UNITS: dict[str, Any] = {"bounding": {"k_user": 1, "k_entity": 1}, "federated": {"users": 9}}
NEEDED = {"uedp-bounded": ("bounding",), "uedp-alg1": ("federated",), "user-level": ("federated",)}


@pytest.mark.parametrize(
    "given",
    [
        *({"trainer": name} for name in TRAINERS),
        {"tokenizer": "public"},
        {"tokenizer": "shipped"},
        {"public_text": "donated.txt"},
        {"vocabulary_size": 40},
        {"vocabulary_size": 8_000},
    ],
    ids=lambda given: " ".join(map(str, given.values())),
)
def test_no_private_word_decides_what_is_a_token(given: dict[str, Any], tmp_path: Path) -> None:
    """Two runs with the same public side: neither the pieces, nor a figure on record, nor a word's tokens."""
    (tmp_path / "donated.txt").write_text("\n".join(PUBLIC_TEXTS[:30]) + "\n", encoding="utf-8")
    if "public_text" in given:
        given = {**given, "public_text": str(tmp_path / "donated.txt")}
    given = {"vocabulary_size": 300, **given}
    own = settings(**given, **{key: UNITS[key] for key in NEEDED.get(given.get("trainer", ""), ())})
    found = []
    for name, private in (("few", PRIVATE_TEXTS), ("many", OTHER), ("none", [])):
        run = write_run(tmp_path / name, PUBLIC_TEXTS[:30], private)
        public = open_public_text(run, own.public_text, "train.public_text")
        vocabulary = build_vocabulary(run, own, public)
        fit = measure_vocabulary_fit(vocabulary, read_public_sources(run, own, public), own.max_tokens)
        pieces = [vocabulary.tokenizer.decode_token(number) for number in range(vocabulary.tokenizer.size)]
        words = [vocabulary.tokenizer.encode(text) for text in (*PRIVATE_TEXTS, *OTHER)]
        found.append((pieces, vocabulary.to_record(), fit, words))
    assert found[0] == found[1] == found[2]
    # a word of the public side does decide, where it may
    other = write_run(tmp_path / "other", [text.replace(MASK, "nobody") for text in OTHER], [])
    changed = build_vocabulary(other, own, open_public_text(other, own.public_text, "train.public_text"))
    assert (changed.to_record() != found[0][1]) is ("public" in own.vocabulary_sources)


def test_a_training_on_other_private_text_saves_the_same_tokenizer(tmp_path: Path) -> None:
    files = []
    for name, private in (("few", PRIVATE_TEXTS), ("many", OTHER)):
        run = write_run(tmp_path / name, PUBLIC_TEXTS, private)
        train_model(run, make_small_settings(epochs=1, seed=None))
        files.append(run.get_model_folder("crt").tokenizer.read_bytes())
    assert files[0] == files[1]


def test_the_shipped_list_serves_alone() -> None:
    found = build_vocabulary(None, settings(tokenizer="shipped", vocabulary_size=8_000), None)
    fit = measure_vocabulary_fit(found, ["The other children have found what they were looking for."], 128)
    assert fit["tokens_per_word"] < 1.3
    assert fit["spelled_out"] == fit["cut"] == 0.0
    assert describe_fit_problems(fit) == []


def test_the_same_words_are_trained_on_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    train = Tokenizer.from_counts
    monkeypatch.setattr(Tokenizer, "from_counts", lambda counts, size: calls.append(size) or train(counts, size))
    run, other = write_run(tmp_path / "a"), write_run(tmp_path / "b", public=[*PUBLIC_TEXTS, *["Zyzzyva qoph"] * 3])
    sources = settings(tokenizer="public", vocabulary_size=301), settings(tokenizer="public", vocabulary_size=302)
    digests = [build_vocabulary(one, sources[0], None).tokenizer.digest for one in (run, run, other, run)]
    assert len(calls) == 3
    assert digests[0] == digests[1] == digests[3] != digests[2]
    build_vocabulary(run, sources[1], None)
    assert calls == [301, 301, 301, 302]


def test_a_vocabulary_that_does_not_fit_is_told() -> None:
    found = build_vocabulary(None, settings(tokenizer="shipped", vocabulary_size=50), None)
    fit = measure_vocabulary_fit(found, ["zyzzyva qoph " * 9], 8)
    spelled, cut = describe_fit_problems(fit)
    assert "give text of the same kind as train.public_text" in spelled
    assert "train." not in describe_fit_problems(fit, is_from_folder=True)[0]
    assert "100% of the public texts are longer" in cut


def test_a_model_of_a_run_lends_no_tokenizer(fresh_run: MakeRun, tmp_path: Path) -> None:
    run = fresh_run()
    train_model(run, make_small_settings(epochs=1))
    model = run.get_model_folder("crt")
    inside = settings(tokenizer=str(model.tokenizer))
    (tmp_path / "linked.json").symlink_to(model.tokenizer)
    linked = settings(tokenizer=str(tmp_path / "linked.json"))
    for asking, own in ((run, inside), (RunFolder(tmp_path / "another"), inside), (None, linked)):
        with pytest.raises(ConfigurationError, match="belongs to a model of a run"):
            build_vocabulary(asking, own, None)
    copied = tmp_path / "tokenizer.json"
    copied.write_bytes(model.tokenizer.read_bytes())
    again = build_vocabulary(run, settings(tokenizer=str(copied)), None)
    assert again.tokenizer.digest == make_guarantee_card(run, "crt")["vocabulary"]["sha256"]


def test_another_tokenizer_has_no_card(fresh_run: MakeRun) -> None:
    run = fresh_run()
    told = train_model(run, make_small_settings(epochs=1))["guarantee"]
    assert list(told["vocabulary"]["made_of"]) == ["public", "shipped"]
    assert any("the words of public/" in line for line in told["assumptions"])
    file = run.get_model_folder("crt").tokenizer
    value = json.loads(file.read_text(encoding="utf-8"))
    value["model"]["merges"].pop()
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(GuaranteeError, match="another tokenizer"):
        make_guarantee_card(run, "crt")
