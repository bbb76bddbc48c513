"""Labels that are public: counted, said wherever the shards go, and no secrets that could be missed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.detectors import DetectSettings
from redactory.detectors.settings import format_public_label_note
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.measure.fit_policy import _find_public_steps, build_policy_sequence, read_labelled_secrets
from redactory.pipelines.measure.label import label_random, label_score
from redactory.redaction import RunFolder, read_batches, read_manifest
from redactory.training.settings import RecallMeasurement
from tests.pipelines.support import invoke_command, run_checks, write_rows

PUBLIC = ("ORGANIZATION", "DATE")
DETECT = {"public_labels": list(PUBLIC)}
WORDS = format_public_label_note(PUBLIC)
TEXTS = {
    "The meeting is on Tuesday, March 14, 2019.": {"Tuesday": "DATE", "March 14, 2019": "DATE_TIME"},
    "Acme Corporation reported higher sales on Tuesday.": {"Acme Corporation": "ORG", "Tuesday": "DATE"},
    "Mary Smith works for Acme Corporation.": {"Mary Smith": "PERSON", "Acme Corporation": "ORG"},
    "We thank you for the good work.": {},
}


def _labelled(text: str, found: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"start": text.index(value), "end": text.index(value) + len(value), "label": label}
        for value, label in found.items()
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    rows = [{"id": str(n), "text": t, "spans": _labelled(t, found)} for n, (t, found) in enumerate(TEXTS.items())]
    corpus = str(write_rows(folder / "rows.jsonl", rows))
    given = {"input": corpus, "output": "run", "detect": DETECT, "evaluate": {"labelled": corpus}}
    (folder / "open.yaml").write_text(json.dumps(given))
    redactory.curate(folder / "open.yaml")
    return folder / "open.yaml"


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    return config.parent / "run"


def test_what_is_public_is_counted_and_neither_masked_nor_a_reason(run: Path) -> None:
    manifest = read_manifest(RunFolder(run))
    assert (manifest["counts"]["public"], manifest["counts"]["private"]) == (3, 1)
    counts = Counter[tuple[str, str]]()
    for hit in manifest["spans"]:
        counts[hit["policy"], hit["label"]] += hit["count"]
    assert {label for policy, label in counts if policy == "strict"} == {"PERSON"}
    assert {label for policy, label in counts if policy == "public"} >= {"ORGANIZATION"}
    digests = [
        (policy, digest is None)
        for batch in read_batches(RunFolder(run).spans, ["policy", "value_digest"])
        for policy, digest in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    assert {empty for policy, empty in digests if policy == "public"} == {True}
    points = redactory.Policy.load({"detect": DETECT}).route("Mary Smith works for Acme Corporation.")
    assert [(hit.start, hit.end, hit.policy) for point in points for hit in point.public] == [(21, 37, "public")]


def test_it_is_said_wherever_the_shards_go(config: Path, run: Path, tmp_path: Path) -> None:
    assert WORDS is not None
    assert (run / "README.md").read_text(encoding="utf-8").partition("# run\n\n")[2].startswith(f"> {WORDS}")
    assert WORDS in (run / "report.html").read_text(encoding="utf-8")
    checks = run_checks(run)
    assert all(check["ok"] for check in checks.values())
    assert checks["public labels"]["detail"] == WORDS
    exported = tmp_path / "out"
    done = invoke_command("export", run, "--to", exported)
    assert done.exit_code == 0
    assert WORDS in done.stdout
    assert json.loads((exported / "manifest.json").read_text())["public_labels"] == list(PUBLIC)
    assert WORDS in (exported / "README.md").read_text(encoding="utf-8")
    assert WORDS in (exported / "croissant.json").read_text(encoding="utf-8")
    there = run_checks(exported)
    assert all(check["ok"] for check in there.values())
    assert there["public labels"]["detail"] == WORDS
    again = invoke_command("curate", config, "--resume")
    assert again.stdout.startswith(WORDS)


def test_a_public_label_is_no_secret_wherever_misses_are_counted(config: Path, run: Path, tmp_path: Path) -> None:
    recall = redactory.evaluate_recall(config)
    assert (recall["secrets"], recall["misses"]["n"], recall["left"]["secrets"]) == (1, 1, 1)
    assert recall["misses"]["delta_2"]["misses"] == 0
    # none of one missed: at most 95 % are
    assert "PERSON" in (shown := invoke_command("evaluate", "detection", config).stdout)
    assert shown.count("0 of 1, up to 95%") == (run / "report.html").read_text().count("0 of 1, up to 95%") == 4
    sample = label_random(run, 20, seed=1)
    drawn = [json.loads(line) for line in Path(sample["files"]["rows"]).read_text().splitlines()]
    rows = [{**row, "spans": _labelled(row["text"], TEXTS[row["text"]])} for row in drawn]
    score = label_score(run, write_rows(tmp_path / "l.jsonl", rows))
    assert (score["secrets"], score["left"]["left_public"]) == (1, 0)
    assert score["misses"]["labels"].keys() == {"PERSON"}
    labelled = config.parent / "rows.jsonl"
    measured = redactory.evaluate_detect(labelled, config)
    assert (measured["secrets"], measured["miss_rate"]["misses"]) == (1, 0)
    assert measured["public"]["ORG"] == {"n": 2, "open": 2}
    assert measured["public_share"]["of_clean"]["examples"] == 3
    own = read_labelled_secrets(labelled, SegmentSettings(), PUBLIC)
    assert [len(secrets) for secrets in own.secrets.values()] == [1]


def test_a_fit_sees_what_the_fitted_policy_will_make_public() -> None:
    """Before, a fit read texts as if nothing were public, and bounded the misses of another policy."""
    text = "Acme Corporation reported higher sales on Tuesday."
    for detect, opens in ((DetectSettings(), False), (DetectSettings.model_validate(DETECT), True)):
        path = build_policy_sequence(detect)
        levels = _find_public_steps(Counter([text]), detect, path, lambda *_: None)
        assert (levels[text] < len(path)) is opens


def test_a_measurement_under_other_public_labels_is_refused(config: Path) -> None:
    numbers = {"labels": 900, "missed_by_strict": 9, "missed_by_both": 0}
    for made in (redactory.train, redactory.plan):
        with pytest.raises(ConfigurationError, match=r"other public labels \(none\) than .*ORGANIZATION and"):
            made(config, detector_recall_file=numbers)
    RecallMeasurement.model_validate({**numbers, "public_labels": ["DATE_TIME", "ORG"]}).require_public_labels(PUBLIC)
    redactory.evaluate_recall(config)
    written = RunFolder(config.parent / "run").recall.root / "result.json"
    assert RecallMeasurement.model_validate(str(written)).public_labels == PUBLIC


def test_a_page_shows_what_is_public(config: Path) -> None:
    explained = invoke_command("scan", "--explain", "--config", config, "Mary Smith works for Acme Corporation.")
    rows = [line for line in explained.stdout.splitlines() if line.rstrip().endswith(("masked", "public"))]
    assert [line.split()[-1] for line in rows] == ["masked", "public"]
    described = invoke_command("curate", config, "--dry-run")
    assert "What stays public because of its label" in described.stdout
    measured = invoke_command("evaluate", "detection", config, "--labelled", config.parent / "rows.jsonl")
    assert "Public labels: not counted as secrets or misses" in measured.stdout


def test_a_night_that_is_approved_says_it(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{broken\n")
    config = tmp_path / "night.yaml"
    config.write_text(json.dumps({"input": "rows.jsonl", "output": "job", "detect": DETECT}))
    [night] = redactory.nightly(config)["nights"]
    assert night["state"] == "held"
    done = invoke_command("release", "approve", night["run"], "--by", "Ann", "--reason", "fine", "--empty")
    assert done.exit_code == 0, done.output
    assert WORDS in done.stdout
