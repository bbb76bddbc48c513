"""A vocabulary is made of what is public, by a rule, and its record is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.redaction import RunFolder
from redactory.training import guarantee_card, train_model
from redactory.training.settings import TrainSettings
from redactory.training.vocabulary import fit_of, fit_remarks, is_public, vocabulary_of
from tests.training.conftest import small

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
    assert is_public(["public_text", "shipped"])
    assert not any(is_public(made_of) for made_of in ([], ["public", "shipped"], ["somewhere"]))


def test_the_shipped_list_serves_alone() -> None:
    found = vocabulary_of(None, settings(tokenizer="shipped", vocabulary_size=8_000), None)
    fit = fit_of(found, lambda: ["The other children have found what they were looking for."], 128)
    assert fit["tokens_per_word"] < 1.3
    assert fit["spelled_out"] == fit["cut"] == 0.0
    assert fit_remarks(fit) == []


def test_a_vocabulary_that_does_not_fit_is_told() -> None:
    found = vocabulary_of(None, settings(tokenizer="shipped", vocabulary_size=50), None)
    fit = fit_of(found, lambda: ["zyzzyva qoph " * 9], 8)
    spelled, cut = fit_remarks(fit)
    assert "give text of the same kind as train.public_text" in spelled
    assert "train." not in fit_remarks(fit, of_folder=True)[0]
    assert "100% of the public texts are longer" in cut


def test_a_model_of_a_run_lends_no_tokenizer(fresh_run: MakeRun, tmp_path: Path) -> None:
    run = fresh_run()
    train_model(run, small(epochs=1))
    model = run.model("crt")
    inside = settings(tokenizer=str(model.tokenizer))
    with pytest.raises(ConfigurationError, match="of a model of a run"):
        vocabulary_of(run, inside, None)
    with pytest.raises(ConfigurationError, match="of a model of a run"):
        vocabulary_of(RunFolder(tmp_path / "another"), inside, None)
    (tmp_path / "linked.json").symlink_to(model.tokenizer)
    with pytest.raises(ConfigurationError, match="of a model of a run"):
        vocabulary_of(None, settings(tokenizer=str(tmp_path / "linked.json")), None)
    copied = tmp_path / "tokenizer.json"
    copied.write_bytes(model.tokenizer.read_bytes())
    again = vocabulary_of(run, settings(tokenizer=str(copied)), None)
    assert again.tokenizer.digest == guarantee_card(run, "crt")["vocabulary"]["sha256"]


def test_another_tokenizer_has_no_card(fresh_run: MakeRun) -> None:
    run = fresh_run()
    told = train_model(run, small(epochs=1))["guarantee"]
    assert list(told["vocabulary"]["made_of"]) == ["public", "shipped"]
    assert any("the words of public/" in line for line in told["assumptions"])
    file = run.model("crt").tokenizer
    value = json.loads(file.read_text(encoding="utf-8"))
    value["merges"].pop()
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(GuaranteeError, match="another tokenizer"):
        guarantee_card(run, "crt")
