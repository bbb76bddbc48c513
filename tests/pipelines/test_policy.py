"""Policy and scan: what a curation would do to a text, asked of the text alone."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redactory
from redactory.detectors import DetectSettings, build_policy_records
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.processes import ENGINE_LOCK
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.policy import _COPIES, _MAX_COPIES, Policy, make_run_router
from redactory.pipelines.documents.detection_options import load_detection_options
from redactory.pipelines.modeling.describe import explain
from redactory.redaction import MASK
from tests.pipelines.support import DigitDetector, write_rows

OFF: dict[str, Any] = {"spacy": None, "tagger": None, "patterns": None}
LISTS = {"deny": [{"words": ["Zaphod"], "label": "CLIENT"}]}
LISTED: dict[str, Any] = {"detect": {**OFF, "lists": LISTS, "max_chars": 60, "conservative": {"rules": ["digit"]}}}
WHOLE: dict[str, Any] = {"segment": {"mode": "document"}, "detect": OFF}
PIECES = ["call 555-1234", " ", "\n", "We met Anna. ", "USER: ", "broken", "<MASK>", "Ünï 7 ", ".", "ok\r\n", "  x"]
DOCUMENTS = st.lists(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join).filter(str.strip), min_size=5, max_size=25
)
_NUMBERS = count()


@settings(max_examples=3, deadline=None)
@given(documents=DOCUMENTS, mode=st.sampled_from(["sentence", "turn", "line", "document"]))
def test_a_policy_matches_a_curation(documents: list[str], mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / f"curation-{next(_NUMBERS)}"
    folder.mkdir()
    config = {"segment": {"mode": mode}, "dedup": {"mode": "none"}, "detect": OFF}
    source = write_rows(folder / "rows.jsonl", [{"text": text} for text in documents])
    curate({**config, "input": str(source)}, output=folder / "run", detector=DigitDetector())
    policy = Policy.load(config, detector=DigitDetector())
    told = [point for points in policy.route_many(documents) for point in points]
    assert [_of_policy(point) for point in told] == _of_run(folder / "run")
    for text, points in zip(documents, policy.route_many(documents), strict=True):
        if all(point.failure is None for point in points):
            assert policy.redact(text) == _replaced(text, points)
        else:
            with pytest.raises(InputError, match="engine_error"):
                policy.redact(text)


def _of_policy(point: redactory.Example) -> tuple[Any, ...]:
    hits = [(h.start - point.start, h.end - point.start, h.label, h.detector, h.policy) for h in point.spans]
    return point.split, point.redacted, list(point.reasons), sorted(hits)


def _of_run(run: Path) -> list[tuple[Any, ...]]:
    """Every point of a run in order: side, released text, reasons, hits as a policy tells them."""
    released = {
        row["example_id"]: row for side in ("public", "private") for row in pq.read_table(run / side).to_pylist()
    }
    spans: dict[tuple[int, str], set[tuple[Any, ...]]] = {}
    for row in pq.read_table(run / "audit" / "spans").to_pylist():
        place = row["start"], row["end"], row["label"], row["detector"]
        spans.setdefault((row["example_id"], row["policy"]), set()).add(place)
    found = []
    for row in sorted(pq.read_table(run / "audit" / "examples").to_pylist(), key=lambda row: row["example_id"]):
        if row["decision"] == "quarantined":
            found.append(("quarantined", "", [], []))
            continue
        strict = spans.get((row["example_id"], "strict"), set())
        rest = spans.get((row["example_id"], "conservative"), set()) - strict
        hits = [(*place, "strict") for place in strict] + [(*place, "conservative") for place in rest]
        text = released[row["released_id"]]["text"]
        found.append((row["split"], text, row["reasons"], sorted(hits)))
    return found


def _replaced(text: str, points: list[redactory.Example]) -> str:
    for point in reversed(points):
        text = text[: point.start] + point.redacted + text[point.end :]
    return text


def test_engines_lists_and_rules_are_those_of_the_configuration(tmp_path: Path) -> None:
    policy = Policy.load({**LISTED, "segment": {"mode": "line"}})
    text = "all is well\n  we saw Zaphod\ncall 5"
    hits = policy.scan(text)
    assert [(text[h.start : h.end], h.label, h.detector, h.policy) for h in hits] == [
        ("Zaphod", "CLIENT", "list", "strict"),
        ("5", "DIGIT", "rule", "conservative"),
    ]
    assert policy.redact(text) == "all is well\n  we saw <MASK>\ncall 5"
    assert [point.split for point in policy.route(text)] == ["public", "private", "private"]
    assert [policy.decide_split(t) for t in ("all is well", text, "Zaphod " * 10)] == [
        "public",
        "private",
        "quarantined",
    ]
    assert (policy.scan(""), policy.redact(" \n"), policy.route("")) == ([], " \n", [])
    with pytest.raises(dataclasses.FrozenInstanceError):
        hits[0].label = "X"  # type: ignore[misc]
    (point,) = policy.route("we saw Zaphod 5")
    told = explain("we saw Zaphod 5", {**LISTED, "input": "-"})
    assert (point.split, point.redacted, list(point.reasons)) == (told["split"], told["masked"], told["reasons"])
    assert [(h.start, h.end, h.policy == "strict") for h in point.spans] == [
        (mark["start"], mark["end"], mark["masks"]) for mark in told["marks"]
    ]


def test_many_texts_are_one_pass_of_the_engines_and_fail_as_one_would() -> None:
    class Passes(DigitDetector):
        passes = 0

        def detect(self, texts: Any) -> Any:
            Passes.passes += 1
            return super().detect(texts)

    policy = Policy.load(WHOLE, detector=Passes())
    texts = [f"number {n}" for n in range(50)]
    assert list(policy.redact_many(texts)) == ["number <MASK>"] * 50
    assert Passes.passes == 1
    assert list(policy.scan_many(texts)) == [policy.scan(text) for text in texts]
    with pytest.raises(InputError, match=r"text 2 cannot be processed completely \(engine_error\)"):
        list(policy.scan_many(["fine", "broken", "fine"]))


def test_the_hashes_are_those_of_a_run(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [{"text": "all is well"}])
    policy = Policy.load(LISTED)
    assert policy.hashes == curate({**LISTED, "input": str(source)}, output=tmp_path / "run")["policies"]
    assert policy.hash == Policy.load({**LISTED, "input": "elsewhere", "workers": 3}).hash
    others = [{**LISTED, "segment": {"mode": "line"}}, {"detect": {**LISTED["detect"], "lists": None}}]
    assert len({policy.hash, *(Policy.load(other).hash for other in others)}) == 3


def test_a_configuration_needs_no_input_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    (tmp_path / "clients.txt").write_text("Zaphod\n")
    engines = "spacy: null, tagger: null, patterns: null, conservative: {rules: []}"
    file.write_text(f"detect: {{{engines}, lists: {{deny: [{{file: clients.txt}}]}}}}\n")
    assert Policy.load(file).redact("we saw Zaphod") == "we saw <MASK>"
    with pytest.raises(ConfigurationError, match="detect"):
        Policy.load({"detect": {"spaci": None}})
    with pytest.raises(ConfigurationError, match="is not a configuration"):
        Policy.load(tmp_path / "clients.txt")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a file of every format, each with numbers in it."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder / "a.jsonl", [{"text": "one\nand 22"}, {"text": ["x"]}, {"text": ""}, {"text": "broken"}])
    (folder / "b.csv").write_text('id,text\n1,"two\nlines 333"\n2,one,too many\n3,\n')
    pq.write_table(pa.table({"text": ["none", None, "4444"]}), folder / "c.parquet")
    (folder / "d.txt").write_text("plain\n  5 and 66\n")
    return folder


def test_a_folder_is_looked_through_and_every_place_is_told(files: Path) -> None:
    result = redactory.scan([str(files)], detector=DigitDetector(), config=WHOLE)
    places = [(Path(h["file"]).name, h["row"], h["line"], h["column"]) for h in result["spans"]]
    assert places == [
        ("a.jsonl", 1, 2, 5),
        ("b.csv", 2, 2, 7),
        ("c.parquet", 3, 1, 1),
        ("d.txt", None, 2, 3),
        ("d.txt", None, 2, 9),
    ]
    line = (files / "d.txt").read_text().splitlines()[1]
    assert [line[h["column"] - 1] for h in result["spans"][-2:]] == ["5", "6"]
    told = {Path(file["file"]).name: (file["texts"], file["found"]) for file in result["files"]}
    assert told == {"a.jsonl": (2, 1), "b.csv": (1, 1), "c.parquet": (2, 1), "d.txt": (1, 2)}
    assert result["files"][0]["rejected"] == {"text_is_list": 1, "empty_text": 1}
    assert result["files"][0]["quarantined"] == {"engine_error": 1}
    # the list in place of a text, the broken row and the point; an empty cell and a null hold nothing
    assert (result["found"], result["unread"], result["clean"]) == (5, 3, False)
    assert result["by_label"] == {"NUMBER": 5}
    assert "333" not in json.dumps(result["spans"])


def test_policies_limits_and_what_is_shown(files: Path) -> None:
    seen: list[tuple[int, str]] = []
    result = redactory.scan(
        [str(files / "d.txt"), str(files / "d.txt")],
        texts=["so we met Anna 7"],
        config=WHOLE,
        detector=DigitDetector(),
        policy="conservative",
        limit=3,
        on_span=lambda hit, line: seen.append((hit["column"], line)),
    )
    assert (result["found"], len(result["spans"]), result["texts"]) == (4, 3, 2)
    assert seen == [(3, "  5 and 66"), (9, "  5 and 66"), (11, "so we met Anna 7")]
    assert [hit["policy"] for hit in result["spans"]] == ["strict", "strict", "conservative"]


def test_other_columns_endings_and_allowed_terms(files: Path, tmp_path: Path) -> None:
    write_rows(files / "e.jsonl", [{"body": "Zaphod"}])
    (files / "f.log").write_text("so Zaphod said")
    with pytest.raises(InputError, match=r"no column 'text' in .*its columns are body"):
        redactory.scan([str(files / "e.jsonl")], config=LISTED)
    paths = [str(files / name) for name in ("e.jsonl", "f.log")]
    assert redactory.scan(paths, config=LISTED, text_column="body")["by_label"] == {"CLIENT": 2}
    allowed = {**LISTED, "detect": {**LISTED["detect"], "lists": None, "conservative": {"rules": ["capital"]}}}
    (tmp_path / "known.txt").write_text("Anna\n")
    for allow, found in (((), 1), ((tmp_path / "known.txt",), 0)):
        config = load_detection_options(allowed, allow=allow)
        told = redactory.scan(texts=["so Anna said"], config=config, policy="conservative")
        assert (told["found"], told["clean"]) == (found, not found)
    with pytest.raises(InputError, match="no column 'body'"):
        redactory.scan([str(files / "b.csv")], config=LISTED, text_column="body")
    with pytest.raises(ConfigurationError, match="nothing"):
        redactory.scan([str(files / "absent.csv")], config=LISTED)


@pytest.mark.parametrize(
    ("texts", "said"),
    [(["ok", None], "text 2: expected a string, got NoneType"), ("call 55", "expected a list of texts")],
)
def test_what_is_no_text_or_not_several_is_refused(texts: Any, said: str) -> None:
    policy = Policy(WHOLE, detector=DigitDetector())
    for method in (policy.scan_many, policy.redact_many, policy.route_many):
        with pytest.raises(InputError, match=said):
            list(method(texts))


def test_a_data_set_is_masked_in_batches() -> None:
    import datasets

    policy = Policy(WHOLE, detector=DigitDetector())
    data = datasets.Dataset.from_dict({"id": [1, 2], "text": ["call 55", "hello"]})
    masked = data.map(lambda rows: {"text": list(policy.redact_many(rows["text"]))}, batched=True)
    assert masked.to_list() == [{"id": 1, "text": "call <MASK>"}, {"id": 2, "text": "hello"}]


SPOKEN = [
    f"{name} lives at {number} High Street and asked about order {number + 1000}. It is late."
    for number, name in enumerate(["Quirin Ozols", "Anna Kern", "Zebedee Quark", "Priya Raman", "Søren Holm"])
]
TOO_LONG = "so it is " * 40


@pytest.fixture(scope="module")
def spoken() -> Policy:
    """The default policy, whose engines are models."""
    return Policy({"detect": {"max_chars": len(TOO_LONG) - 1}, "segment": {"mode": "sentence"}})


@pytest.mark.usefixtures("many_switches")
def test_threads_share_a_policy(spoken: Policy) -> None:
    """Whatever each of them asks, or has refused, and with a second policy beside it."""
    other = Policy({"segment": {"mode": "document"}, "detect": {"patterns": None}})
    frame = pd.DataFrame({"note": SPOKEN})

    def interleaved(policy: Policy) -> Any:
        masked, hits = policy.redact_many(SPOKEN), policy.scan_many(reversed(SPOKEN))
        return [(next(masked), next(hits)) for _ in SPOKEN]

    def refused(policy: Policy) -> Any:
        with pytest.raises(InputError, match="too_long"):
            policy.redact(TOO_LONG + TOO_LONG)
        return policy.route(SPOKEN[0])

    asked: list[Callable[[Policy], Any]] = [
        lambda policy: [policy.redact(text) for text in SPOKEN],
        lambda policy: policy.scan(" ".join(SPOKEN)),
        lambda policy: redactory.redact_frame(frame, ["note"], policy)["note"].to_list(),
        interleaved,
        refused,
    ]
    work = [(one, policy) for policy in (spoken, other) for one in asked if (one, policy) != (refused, other)]
    expected = [one(policy) for one, policy in work]
    assert all(MASK in text for text in expected[0])

    async def together() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(one, policy) for one, policy in work * 3))

    assert asyncio.run(together()) == expected * 3
    assert [one(policy) for one, policy in work] == expected


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        copy.copy,
        *(lambda one, module=module: pickle.loads(module.dumps(one)) for module in (pickle, cloudpickle)),
    ],
)
def test_a_policy_can_be_copied_and_loads_nothing_until_it_is_used(copied: Callable[[Any], Any]) -> None:
    config = {**LISTED, "segment": {"mode": "turn", "speaker": "[A-Z]+:"}, "release": {"unit": "document"}}
    policy = Policy(config)
    text = "CAPTAIN: Zaphod is here\nCREW: who?"
    expected, hash_ = policy.route(text), policy.hash
    other = copied(policy)
    assert other is not policy
    assert other._detector is None
    assert (other.route(text), other.hash) == (expected, hash_)
    # a pool sends the policy along with each task: its engines are loaded for the first of them alone
    assert copied(policy) is other
    assert copied(Policy(config)).redact(text) == policy.redact(text)


def test_a_policy_with_a_detector_of_its_own_takes_it_along() -> None:
    copied = pickle.loads(pickle.dumps(Policy(WHOLE, detector=DigitDetector())))
    assert copied.redact("call 55") == "call <MASK>"


def test_a_process_holds_few_copies() -> None:
    policies = [Policy(LISTED) for _ in range(_MAX_COPIES + 2)]
    copies = [copy.copy(policy) for policy in policies]
    assert len({*map(id, copies)}) == len(policies)
    assert list(_COPIES.values()) == copies[2:]
    assert copy.copy(policies[2]) is copies[2]
    assert list(_COPIES.values()) == [*copies[3:], copies[2]]


def test_a_child_that_is_forked_while_a_thread_reads_can_read() -> None:
    policy, held = Policy(LISTED), threading.Event()

    def hold() -> None:
        with ENGINE_LOCK:
            held.set()
            time.sleep(0.2)

    reader = threading.Thread(target=hold)
    reader.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: this is what is tried here
        child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if policy.redact("Zaphod") == "<MASK>" else 1)
    reader.join()
    assert os.waitpid(child, 0)[1] == 0
    assert policy.redact("Zaphod") == "<MASK>"


def test_the_decisions_of_a_run_quarantine_a_text_that_cannot_be_processed() -> None:
    detect = DetectSettings.model_validate(LISTED["detect"])
    manifest = {"configuration": {"detect": detect.model_dump(mode="json")}, "policies": build_policy_records(detect)}
    decide = make_run_router(manifest)
    sides = [side for side, _ in decide(["all is well", "call 5", "Zaphod " * 10])]
    assert sides == ["public", "private", "quarantined"]


PEOPLE: dict[str, Any] = {
    "detect": {
        **OFF,
        "lists": {
            "deny": [
                {"words": ["Quirin Ozols", "Ozols", "Mary Smith"], "label": "PERSON"},
                {"words": ["Berlin", "Riga", "Oslo"], "label": "LOCATION"},
                {"words": ["Acme", "Initech"], "label": "ORGANIZATION"},
                {"words": ["4 May 1990", "5 May 1990"], "label": "DATE"},
            ]
        },
    },
    "segment": {"mode": "line"},
}
MEETING = "Quirin Ozols met\nMary Smith in Berlin. Ozols left."


@pytest.fixture
def permanent_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "a key of the tests")


@pytest.mark.parametrize(
    ("replace", "expected"),
    [
        ("mask", "<MASK> met\n<MASK> in <MASK>. <MASK> left."),
        ("label", "<PERSON> met\n<PERSON> in <LOCATION>. <PERSON> left."),
        ("number", "<PERSON_1> met\n<PERSON_2> in <LOCATION_1>. <PERSON_1> left."),
        (lambda label, value: f"[{label[0]}{len(value)}]", "[P12] met\n[P10] in [L6]. [P5] left."),
        (lambda label, value: value, MEETING),
    ],
)
def test_a_text_is_one_document_with_the_replacement_of_the_caller(replace: Any, expected: str) -> None:
    policy = Policy(PEOPLE)
    assert policy.redact(MEETING, replace) == expected
    assert list(policy.redact_many([MEETING, "hello", MEETING], replace)) == [expected, "hello", expected]
    frame = redactory.redact_frame(pd.DataFrame({"text": [MEETING, None]}), "text", policy, replace)
    assert frame["text"].to_list()[0] == expected


@pytest.mark.usefixtures("permanent_key")
def test_pseudonyms_and_surrogates_are_equal_wherever_the_value_is() -> None:
    policy = Policy(PEOPLE)
    first, second = (policy.redact(text, "pseudonym") for text in (MEETING, "Quirin Ozols, 5 May 1990"))
    name = first.split()[0]
    assert name.startswith("<PERSON_")
    assert (first.count(name), second.split(",")[0]) == (2, name)
    surrogate = policy.redact(f"{MEETING} 4 May 1990, 5 May 1990", "surrogate")
    assert not {"Quirin", "Ozols", "Mary", "Smith", "Berlin", "1990,"} & {*surrogate.replace(".", " ").split()}
    days = [pd.Timestamp(day) for day in surrogate.split(" left. ")[1].split(", ")]
    assert (days[1] - days[0]).days == 1
    assert policy.redact(MEETING, "surrogate") == Policy(PEOPLE).redact(MEETING, "surrogate")


def test_a_replacement_without_a_key_or_a_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDACTORY_KEY", raising=False)
    monkeypatch.delenv("REDACTORY_KEY_FILE", raising=False)
    for name, message in (
        ("pseudonym", "set REDACTORY_KEY"),
        ("surrogate", "set REDACTORY_KEY"),
        ("blur", "mask, label"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Policy(PEOPLE).redact_many(["hello"], name)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected str"):
        Policy(PEOPLE).redact(MEETING, lambda label, value: None)  # type: ignore[arg-type, return-value]


def test_no_replacement_passes_on_what_cannot_be_processed() -> None:
    policy = Policy(WHOLE, detector=DigitDetector())
    for replace in ("label", lambda label, value: value):
        with pytest.raises(InputError, match="engine_error"):
            policy.redact("broken 5", replace)  # type: ignore[arg-type]


@pytest.mark.usefixtures("many_switches", "permanent_key")
def test_threads_and_copies_replace_as_one_thread_does() -> None:
    policy = Policy(PEOPLE)
    texts = [
        f"{person} of {firm} in {place}"
        for person in ("Ozols", "Mary Smith")
        for firm in ("Acme", "Initech")
        for place in ("Berlin", "Riga", "Oslo")
    ]
    work = [(text, replace) for text in texts for replace in ("surrogate", "number", "pseudonym", "label")] * 5
    expected = [policy.redact(text, replace) for text, replace in work]  # type: ignore[arg-type]
    assert len({*expected}) > 20
    copied = pickle.loads(pickle.dumps(policy))
    for other in (policy, copied):
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda one, other=other: other.redact(*one), work)) == expected  # type: ignore[misc]


TURN_CONFIG = {"segment": {"mode": "turn"}}
SIGNED = "5551234: call me at 5559876.\nJo: ok"


def test_a_copy_has_its_speakers_masked_and_a_curation_leaves_them_in_the_vault(tmp_path: Path) -> None:
    policy = Policy(TURN_CONFIG, DigitDetector())
    assert policy.redact(SIGNED) == f"{MASK}: call me at {MASK}.\nJo: ok"
    assert [span.start for span in policy.scan(SIGNED) if span.policy == "strict"] == [0, 20]
    assert [example.redacted for example in policy.route(SIGNED)] == [f"call me at {MASK}.", "ok"]
    copied = redactory.redact_frame(pd.DataFrame({"text": [SIGNED]}), "text", policy)
    assert copied.text[0] == f"{MASK}: call me at {MASK}.\nJo: ok"
    path = write_rows(tmp_path / "rows.jsonl", [{"text": SIGNED}])
    found = redactory.scan([path], config=TURN_CONFIG, detector=DigitDetector())
    assert found["by_label"] == {"NUMBER": 2}
    chats = write_rows(tmp_path / "chats.jsonl", [{"messages": [{"role": "user", "content": SIGNED}]}])
    of_chats = {**TURN_CONFIG, "input": {"text": "messages"}}
    found = redactory.scan([chats], config=of_chats, detector=DigitDetector())
    assert found["by_label"] == {"NUMBER": 2}


@pytest.mark.parametrize("mark", ["\x1f", "\x1e", "\x1e12\x1f"])
def test_a_separator_of_documents_hides_nothing_in_a_text(mark: str) -> None:
    """A curation refuses such a text in a document of several; a copy holds whatever a person wrote."""
    policy = Policy({"input": {"text": ["question", "answer"]}}, DigitDetector())
    text = f"my number is 5551234{mark} bye"
    assert "5551234" not in policy.redact(text)
    assert policy.scan(text)[0].label == "NUMBER"
    assert policy.decide_split(text) == "private"
