"""Whole documents decide: what is masked once in one is masked in all of it, and no other one matters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redactory
from redactory.detectors import Detection, Span
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.pipelines.curation.policy import Policy, make_run_router
from redactory.pipelines.curation.stages import examples
from redactory.pipelines.modeling.train import collect_remarks
from redactory.pipelines.operations.checks import CheckContext
from redactory.pipelines.operations.verify import check_whole_documents
from redactory.redaction import PRIVATE, RoutingDecision, RunFolder, list_parts, merge_document_decisions, read_manifest
from redactory.redaction.known_values import KNOWN_VALUE, find_known_spans
from redactory.redaction.shards import read_values
from tests.pipelines.support import (
    LINE_CONFIG,
    BlindDetector,
    DigitDetector,
    list_failed_checks,
    read_rows,
    run_checks,
    write_rows,
)

BY_DOCUMENT: dict[str, Any] = {**LINE_CONFIG["release"], "unit": "document", "known_values": True}
CONFIG: dict[str, Any] = {**LINE_CONFIG, "release": BY_DOCUMENT, "dedup": {"mode": "none"}}
DOCUMENTS = {
    "a": ["I am Quirin Ozols.", "the will of ozols", "please ask Ozols", "nothing here"],
    "b": ["please ask Ozols", "thank you"],
    "c": ["call 5 now", "thank you", "broken"],
    "d": ["thank you", "good night"],
    "e": ["thank you", "broken"],
}
Decisions = dict[str, list[tuple[str, str | None]]]
pytestmark = pytest.mark.usefixtures("unsynced", "unreported", "few_hash_ranges")


class NameDetector(DigitDetector):
    """It knows a name by "I am" alone."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        given = list(texts)
        for text, found in zip(given, super().detect(given), strict=True):
            start, name = 5, "Quirin Ozols"
            told = text.startswith(f"I am {name}")
            hits = (Span(start, start + len(name), "PERSON", 0.9, "names"),) if told else ()
            yield Detection(found.strict + hits, (), found.failure)


def curated(folder: Path, documents: dict[str, list[str]], **more: Any) -> Path:
    folder.mkdir(parents=True)
    rows = [{"id": name, "user_id": name, "text": "\n".join(own)} for name, own in documents.items()]
    config = {**CONFIG, "input": str(write_rows(folder / "rows.jsonl", rows)), **more}
    redactory.curate(config, output=folder / "run", detector=NameDetector())
    return folder / "run"


def decisions(run: Path) -> Decisions:
    """Of each document its examples' splits and masked texts, None where one is in quarantine."""
    folder, found = RunFolder(run), defaultdict(list)
    texts = {row["example_id"]: row["text"] for split in (folder.public, folder.private) for row in read_rows(split)}
    for row in read_rows(folder.examples):
        found[row["document"]].append((row["decision"], texts.get(row["released_id"])))
    return dict(found)


@pytest.fixture(scope="module")
def run(unsynced: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curated(tmp_path_factory.mktemp("documents") / "job", DOCUMENTS)


def test_what_is_found_once_is_masked_wherever_it_stands_in_its_document(run: Path) -> None:
    a, b, c, d, e = decisions(run).values()
    assert [side for side, _ in a] == ["private"] * 4
    assert [text for _, text in a] == ["I am <MASK>.", "the will of <MASK>", "please ask <MASK>", "nothing here"]
    assert b == [("public", "please ask Ozols"), ("public", "thank you")]
    assert c == [("private", "call <MASK> now"), ("private", "thank you"), ("quarantined", None)]
    assert d == [("public", "thank you"), ("public", "good night")]
    assert e == [("private", "thank you"), ("quarantined", None)]
    spans = [s for s in read_rows(RunFolder(run).spans) if s["detector"] == KNOWN_VALUE]
    assert [(s["label"], s["policy"]) for s in spans] == [("PERSON", "strict")] * 2
    assert read_manifest(RunFolder(run))["reasons"]["document:PRIVATE"] == 3


def test_a_policy_and_a_run_say_the_same(run: Path) -> None:
    policy = Policy.load({**CONFIG, "input": "x"}, detector=NameDetector())
    for lines, expected in zip(DOCUMENTS.values(), decisions(run).values(), strict=True):
        own = [(p.split, p.redacted if p.failure is None else None) for p in policy.route("\n".join(lines))]
        assert own == expected
    alone = Policy.load({**CONFIG, "release": {}, "input": "x"}, detector=NameDetector())
    assert alone.hash != policy.hash


def test_verify_finds_a_divided_document(run: Path) -> None:
    assert run_checks(run)["whole documents"]["detail"] == "5 documents, none divided"
    assert list_failed_checks(run) == {"report"}  # none was written here
    first, *rows = read_values(RunFolder(run).examples, "document", "split")
    rows = [(first[0], "public"), *rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redactory.pipelines.operations.verify.read_values", lambda *_: iter(rows))
        with pytest.raises(CheckFailed, match="1 document is divided"):
            check_whole_documents(CheckContext(run))


LINE = st.sampled_from([*DOCUMENTS["a"], "I am Quirin Ozols", "call 5 now", "broken", "Ozols", "thank you"])
DOCUMENT = st.lists(LINE, min_size=1, max_size=3)


def check_others_stay(folder: Path, before: list[str], after: list[str], others: list[list[str]]) -> None:
    """Changing the first of several documents changes nothing of the others: sides, texts, reasons."""
    found = []
    for name, first in (("before", before), ("after", after)):
        documents = {str(n): own for n, own in enumerate([first, *others])}
        of_all = decisions(curated(folder / name, documents, partition={"documents": 2}))
        found.append([*of_all.values()][1:])
    assert found[0] == found[1]


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.tuples(DOCUMENT, DOCUMENT, st.lists(DOCUMENT, min_size=1, max_size=3)))
def test_one_document_changes_nothing_of_another(tmp_path_factory: pytest.TempPathFactory, documents: Any) -> None:
    check_others_stay(tmp_path_factory.mktemp("worlds"), *documents)


@pytest.mark.parametrize("stage", ["known", "splits"])
def test_dependence_on_another_document_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    both = (["thank you"], ["I am Quirin Ozols"], [["please ask Ozols"]])
    check_others_stay(tmp_path / "sound", *both)
    seen: dict[str, str] = {}

    def remembering(texts: Sequence[str], found: Sequence[Detection], *_: Any) -> list[tuple[Span, ...]]:
        """Values of earlier documents are known as well."""
        seen.update((t[s.start : s.end], s.label) for t, d in zip(texts, found, strict=True) for s in d.strict)
        return find_known_spans(texts, found, seen)

    def infected(decisions: Sequence[RoutingDecision]) -> list[RoutingDecision]:
        """What comes behind a private document is private."""
        own = merge_document_decisions(decisions)
        seen.update((decision.text, decision.split) for decision in own if decision.split == PRIVATE)
        return [replace(decision, split=PRIVATE) if seen else decision for decision in own]

    wrong = {"known": ("find_known_spans", remembering), "splits": ("merge_document_decisions", infected)}[stage]
    monkeypatch.setattr(examples, *wrong)
    with pytest.raises(AssertionError):
        check_others_stay(tmp_path / "unsound", *both)


@pytest.mark.parametrize("purged", [False, True])
def test_a_document_that_is_taken_down_leaves_the_others_as_they_were(tmp_path: Path, purged: bool) -> None:
    run = curated(tmp_path / "job", DOCUMENTS)
    before = decisions(run)
    if purged:
        # what was not processed still decides about the rest of its document
        redactory.purge(run, ["quarantine"])
    redactory.erase([run], user_ids=["b"])
    assert decisions(run) == {name: own for place, (name, own) in enumerate(before.items()) if place != 1}
    assert sum(span["detector"] == KNOWN_VALUE for span in read_rows(RunFolder(run).spans)) == 2


def test_no_point_is_tried_again_without_its_document(run: Path) -> None:
    result = redactory.quarantine_export(run)
    assert (result["out"], result["exported"]) == (None, 0)
    assert result["left"] == {"their document is decided as a whole: curate whole documents in a new run": 2}


def test_known_values_are_refused_where_examples_decide(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"text": "x"}])
    with pytest.raises(ConfigurationError, match=r"release\.unit: document.*no epsilon"):
        redactory.curate({"input": str(path), "release": {"known_values": True}}, output=tmp_path / "run")


def test_declared_values_are_known_in_their_own_row_alone(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "name": "Zeta Ozols", "tel": 5551234, "text": "ask Ozols\nor 5551234\nor zeta"},
        {"id": "b", "name": None, "tel": "", "text": "ask Ozols"},
        {"id": "a", "name": "Other", "text": "the same id again"},
        {"id": "c", "name": ["Ozols"], "text": "not a text"},
    ]
    columns = {"name": "PERSON", "tel": "PHONE_NUMBER"}
    given: dict[str, Any] = {**CONFIG, "detect": {**LINE_CONFIG["detect"]}}
    given["input"] = {"path": str(write_rows(tmp_path / "rows.jsonl", rows)), "known_value_columns": columns}
    redactory.curate(given, output=tmp_path / "run", detector=BlindDetector())
    a, b = decisions(tmp_path / "run").values()
    assert a == [("private", "ask <MASK>"), ("private", "or <MASK>"), ("private", "or zeta")]
    assert b == [("public", "ask Ozols")]
    assert read_manifest(RunFolder(tmp_path / "run"))["rejected"] == {"duplicate_id": 1, "known_not_string": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"release": LINE_CONFIG["release"]}, "input.known_value_columns needs release.known_values"),
        ({"input": {"metadata_columns": ["name"]}}, "'name' is to be masked, but is also read or kept"),
        ({"input": {"known_value_columns": {"name": "drop"}}}, "'name' needs a label"),
    ],
)
def test_what_is_declared_is_looked_for_and_goes_nowhere_else(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = str(write_rows(tmp_path / "rows.jsonl", [{"name": "x", "text": "x"}]))
    own = {"path": path, "known_value_columns": {"name": "PERSON"}, **changes.get("input", {})}
    with pytest.raises(ConfigurationError, match=message):
        redactory.curate({**CONFIG, **changes, "input": own}, output=tmp_path / "run")


def test_what_is_read_for_people_can_be_masked_by_document(tmp_path: Path) -> None:
    run = curated(tmp_path / "job", DOCUMENTS, release=LINE_CONFIG["release"], dedup={"mode": "exact"})
    before, after = (
        [one["turns"][0]["text"] for one in redactory.conversations(run, "private", known_values=known)]
        for known in (False, True)
    )
    assert before[0] == "I am <MASK>. the will of ozols please ask Ozols nothing here"
    assert after[0] == "I am <MASK>. the will of <MASK> please ask <MASK> nothing here"
    assert after[1:] == before[1:]
    with pytest.raises(ConfigurationError, match="split='private'"):
        redactory.conversations(run, known_values=True)


@pytest.mark.parametrize(("trainer", "told"), [("crt", True), ("redact-only", False)])
def test_that_no_figure_will_be_stated_is_said_before_the_training(run: Path, trainer: str, told: bool) -> None:
    remarks = collect_remarks({**CONFIG, "input": "x", "train": {"trainer": trainer}}, output=run)
    assert any("release.known_values" in remark for remark in remarks) is told


def test_where_an_example_is_a_document_misses_are_measured_with_what_is_known(tmp_path: Path) -> None:
    run = curated(tmp_path / "job", DOCUMENTS, segment={"mode": "document"})
    manifest = read_manifest(RunFolder(run))
    assert manifest["known_in"] == "example"
    assert len(list_parts(RunFolder(run).examples)) == 1
    detect = {"lists": {"deny": [{"label": "PERSON", "words": ["Quirin Ozols"]}]}}
    config = {**CONFIG, "detect": {**LINE_CONFIG["detect"], **detect}, "segment": {"mode": "document"}}
    redactory.curate({**config, "input": str(tmp_path / "job/rows.jsonl")}, output=tmp_path / "own")
    router = make_run_router(read_manifest(RunFolder(tmp_path / "own")))
    assert router(["Quirin Ozols, hi Ozols"]) == [("private", "<MASK>, hi <MASK>")]
