"""``evaluate errors``: groups of errors without text, and lists that fix them and unmask no labelled secret."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import redactory
from redactory.detectors import Detection, Span
from redactory.evaluation.labelled import CHOSEN_KEY
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.measure.evaluate_detection import find_labelled_errors
from tests.pipelines.support import NO_ENGINES, DigitDetector, invoke_command, write_rows

BADGES = {"name": "BadgeRecognizer", "label": "BADGE", "patterns": {r"\b[A-Z]{2}\d{3}\b": 0.9}}
ENGINES = {**NO_ENGINES, "patterns": {"recognizers": ["EmailRecognizer"], "custom": [BADGES]}}


def make_row(text: str, **labels: str) -> dict[str, Any]:
    """A row with each value labelled at its first occurrence."""
    places = [(text.index(value), value, label) for label, value in labels.items()]
    return {"text": text, "spans": [{"start": i, "end": i + len(v), "label": label} for i, v, label in places]}


def write_config(path: Path, detect: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"segment": {"mode": "document"}, "detect": detect}))
    return path


def test_errors_are_grouped_by_kind_and_source(tmp_path: Path) -> None:
    rows = [
        make_row("ask ann about room 12", NAME="ann", ROOM="room 12"),
        make_row("the code 77 and Bob", NAME="Bob"),
        make_row("ask bea, or 4 others", NAME="bea"),
        make_row("just cid", NAME="cid"),
        make_row("broken dan", NAME="dan"),
        make_row("5555", CARD="5555"),
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = {"segment": {"mode": "document"}, "detect": NO_ENGINES}
    result = redactory.evaluate_errors(path, config, detector=DigitDetector())
    groups = [{**group, "sources": ", ".join(group["sources"])} for group in result["errors"]]
    # by hand: numbers are masked, capitals make private, a quarantined row is not released
    assert groups == [
        {"problem": problem, "label": label, "sources": sources, "count": count, "public": public, "rows": numbers}
        for problem, label, sources, count, public, numbers in [
            ("covered in part", "ROOM", "digits:NUMBER", 1, 0, [1]),
            ("missed", "NAME", "", 3, 1, [1, 3, 4]),
            ("missed", "NAME", "capitals:CAPITAL", 1, 0, [2]),
            ("wrongly masked", "NUMBER", "digits:NUMBER", 2, 0, [2, 3]),
        ]
    ]
    assert (result["rows"], result["examples"], result["quarantined"], result["lists"]) == (6, 6, 1, None)
    assert (result["deny"], result["allow"], result["withheld"]) == (5, 2, 0)


def test_the_lists_fix_every_error_and_unmask_no_labelled_secret(tmp_path: Path) -> None:
    rows = [
        make_row("Zanele wrote from ops@example.com with badge AB123.", NAME="Zanele", BADGE="AB123"),
        # the same address is a secret here, and so is a part of another
        make_row("zanele, or ZANELE: ann@example.com", NAME="zanele", MAIL="ann@example.com"),
        make_row("The part XY999 is sold out; so is AB123."),
        make_row("Write to info@example.com, Ōba  Kenji", name="Ōba  Kenji"),
        make_row("info@example.com again, and XY999, and ops@example.com", MAIL="ops@example.com"),
    ]
    rows[1]["spans"].append({"start": 11, "end": 17, "label": "NAME"})
    path, lists = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "lists.yaml"
    config = write_config(tmp_path / "config.yaml", ENGINES)
    before = redactory.evaluate_errors(path, config, lists=lists)
    assert {(group["problem"], *group["sources"]) for group in before["errors"]} == {
        ("missed",),
        ("wrongly masked", "presidio:EmailRecognizer", "presidio:RedactoryEmail"),
        ("wrongly masked", "presidio:BadgeRecognizer"),
    }
    assert stat.S_IMODE(lists.stat().st_mode) == 0o600
    written = yaml.safe_load(lists.read_text(encoding="utf-8"))["detect"]["lists"]
    # most frequent first; a label of another form is not one of a list
    assert written["deny"] == [{"label": "NAME", "words": ["Zanele"]}, {"label": "LISTED", "words": ["Ōba Kenji"]}]
    assert written["allow"] == [{"words": ["XY999", "info@example.com"]}]
    # ops@example.com in row 1 and AB123 in row 3 are labelled secrets elsewhere
    assert (before["deny"], before["allow"], before["withheld"]) == (2, 2, 2)
    fixed = write_config(tmp_path / "fixed.yaml", {**ENGINES, "lists": written})
    after = redactory.evaluate_errors(path, fixed)
    assert [(group["problem"], group["rows"]) for group in after["errors"]] == [
        ("wrongly masked", [3]),
        ("wrongly masked", [1]),
    ]


class _WordDetector:
    """Masks the words that begin with m."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for text in texts:
            words = [(text.index(word), word) for word in text.split() if word.startswith("m")]
            yield Detection(tuple(Span(i, i + len(word), "WORD", 1.0, "m") for i, word in words))


@pytest.mark.parametrize(
    ("secret", "is_allowed"), [("mole", False), ("MOLE hill", False), ("mo", False), ("hill", True)]
)
def test_a_term_is_not_allowed_if_it_shares_its_text_with_a_secret(
    tmp_path: Path, secret: str, is_allowed: bool
) -> None:
    rows = [make_row("a mole digs"), make_row(f"it is {secret} here", SECRET=secret)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = {"segment": {"mode": "document"}, "detect": NO_ENGINES}
    _, _, suggestions = find_labelled_errors(path, config, detector=_WordDetector())
    assert ("mole" in suggestions.allow, suggestions.withheld) == (is_allowed, not is_allowed)


def test_no_text_leaves_the_private_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [make_row("Zanele had CD456", NAME="Zanele"), {**make_row("Qwertz", NAME="Qwertz"), CHOSEN_KEY: "doubt"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = write_config(tmp_path / "config.yaml", ENGINES)
    options = ("--config", config, "--log-json", tmp_path / "log")
    outputs = [
        invoke_command("--log-json", tmp_path / "log", "evaluate", "errors", path, *options[:2], *more).stdout
        for more in (
            (),
            ("--json",),
            ("--lists", tmp_path / "lists.yaml"),
            ("--json", "--lists", tmp_path / "more.yaml"),
        )
    ]
    assert "--lists FILE writes 2 lines to deny and 1 line to allow" in outputs[0]
    assert json.loads(outputs[1])["errors"][0]["label"] == "NAME"
    assert f"to {tmp_path / 'lists.yaml'}." in outputs[2]
    assert "Zanele" in (tmp_path / "lists.yaml").read_text()
    result, errors, suggestions = find_labelled_errors(path, config)
    shown = [*outputs, (tmp_path / "log").read_text(), caplog.text, repr(result), repr(errors), repr(suggestions)]
    for word in ("Zanele", "CD456", "Qwertz"):
        assert [word in text for text in shown] == [False] * len(shown)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [make_row("ann", NAME="ann")])
    config = write_config(tmp_path / "config.yaml", NO_ENGINES)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    for taken in (config, tmp_path / "link.yaml"):
        with pytest.raises(ConfigurationError, match="exists, and may be a configuration"):
            redactory.evaluate_errors(path, config, lists=taken, detector=DigitDetector())
    masked = write_rows(tmp_path / "masked.jsonl", [make_row("55", CARD="55")])
    result = redactory.evaluate_errors(masked, config, lists=tmp_path / "none.yaml", detector=DigitDetector())
    assert (result["errors"], result["lists"], (tmp_path / "none.yaml").exists()) == ([], None, False)
