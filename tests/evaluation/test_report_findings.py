"""What the report says of measurements and attacks: in order, and alarmed where it should be."""

from __future__ import annotations

from typing import Any

import pytest

from redactory.evaluation.report import Finding, model_report, render_model, render_report, said, write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import write_json
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import seal
from tests.evaluation.report_run import add_models, write_run


def attacks(results: dict[str, Any]) -> list[Finding]:
    return said("attacks", results)


def _result(run: RunFolder, model: str, evaluation: str, result: dict[str, Any]) -> None:
    folder = run.model(model).result(evaluation)
    folder.root.mkdir(exist_ok=True)
    write_json(folder.root / "result.json", result)
    seal(folder, {"parent": file_sha256(run.model(model).manifest)}, [folder.root / "result.json"])


def _membership(low: float) -> dict[str, Any]:
    accuracy = {"value": low + 0.05, "low": low, "high": low + 0.1}
    return {"individual": {"accuracy": accuracy}, "group": {"accuracy": accuracy}}


@pytest.fixture
def run(tmp_path: Any) -> RunFolder:
    run = write_run(tmp_path / "run")
    add_models(run)
    _result(run, "crt", "membership", _membership(0.45))
    _result(run, "sgd", "membership", _membership(0.7))
    _result(run, "crt", "audit", {"epsilon_lower": 0.4, "epsilon_upper": 3.02, "holds": True})
    _result(run, "sgd", "audit", {"epsilon_lower": 9.0, "epsilon_upper": None, "holds": None})
    return run


def test_each_model_has_utility_promise_and_attacks_in_this_order(run: RunFolder) -> None:
    page = render_report(run)
    for name in ("crt", "sgd"):
        article = page[page.index(f"Model “{name}”") :]
        article = article[: article.index("</article>")]
        places = [article.index(f"<h4>{h}") for h in ("How good", "What is promised", "What attacks found")]
        assert places == sorted(places)
    crt, sgd = (model_report(run.model(name)) for name in ("crt", "sgd"))
    assert not any(one.alarming for one in crt.attacks)
    assert [one.alarming for one in sgd.attacks if one.title.startswith("membership")] == [True, True]


def test_a_page_of_one_model_is_written_beside_it(run: RunFolder) -> None:
    write_report(run)
    for name in run.model_names():
        folder = run.model(name)
        page, told = folder.report.read_text("utf-8"), folder.measured.read_text("utf-8")
        assert "<script" not in page
        assert "://" not in page
        heads = ["## How good it is", "## What is promised", "## What attacks found"]
        assert [line for line in told.splitlines() if line.startswith("##")] == heads
        for finding in model_report(folder).attacks:
            assert finding.sentence in told


def test_exposure_is_set_beside_chance() -> None:
    inserted = [{"inserted": True}] * 10
    (low,) = attacks({"canary": {"highest_exposure": 6.9, "candidates": 10**6, "canaries": inserted}})
    (high,) = attacks({"canary": {"highest_exposure": 9.0, "candidates": 10**6, "canaries": inserted}})
    assert (low.alarming, high.alarming) == (False, True)
    assert "no more than chance" in low.sentence
    assert "7.61 bits: this is more than chance" in high.sentence


def test_a_broken_promise_is_said_aloud() -> None:
    (broken,) = attacks({"audit": {"epsilon_lower": 5.0, "epsilon_upper": 1.0, "holds": False}})
    (kept,) = attacks({"audit": {"epsilon_lower": 0.5, "epsilon_upper": 1.0, "holds": True}})
    assert broken.alarming
    assert "do not release" in broken.sentence
    assert not kept.alarming
    assert "does not contradict" in kept.sentence


def test_what_was_not_measured_is_said(tmp_path: Any) -> None:
    assert said("utility", {}) == attacks({}) == []
    run = write_run(tmp_path / "other")
    add_models(run)
    for evaluation in ("perplexity", "canary"):
        run.model("crt").result(evaluation).success.unlink()
    page = render_model(model_report(run.model("crt")))
    assert "was not measured" in page
    assert "No attack on this model was tried" in page


def test_attacks_on_the_shards_are_told(run: RunFolder) -> None:
    assert 'id="shards"' not in render_report(run)
    three = {"value": 0.4, "low": 0.3, "high": 0.5}
    linked = {
        "claimed": 50,
        "private": 100,
        "share": three,
        "chance": {**three, "value": 0.01},
        "excess": three,
    }
    side = {"looked_at": 90, "held": 9, "share": {"value": 0.1, "low": 0.05, "high": 0.2}}
    result = {
        "linkage": {"document": linked, "user": None},
        "residual": {"engine": "spacy", "public": side, "private": side},
        "across": None,
    }
    run.redaction.root.mkdir(parents=True)
    write_json(run.redaction.root / "result.json", result)
    seal(run.redaction, {}, [run.redaction.root / "result.json"])
    page = render_report(run)
    assert 'id="shards"' in page
    assert "40.0% of these cases" in page
    assert "had no part in masking, was shown 90 public" in page
