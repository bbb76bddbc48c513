"""Hostile input: nothing crashes a run, nothing of it leaks, and every row and character is accounted for."""

from __future__ import annotations

import errno
import json
import pickle
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from redactory.detectors import Detection, Span
from redactory.foundation.errors import (
    CheckFailed,
    ConfigurationError,
    InputError,
    RedactoryError,
    RunStateError,
    SealedError,
)
from redactory.pipelines.curation.config import SegmentSettings
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text, run_with_sealed_traceback
from redactory.pipelines.curation.segment import make_segmenter
from redactory.redaction import MASK, RunFolder, read_batches, route_example
from tests.pipelines.faults import FewRanges, curated
from tests.pipelines.oracles import is_masked_as_marked
from tests.pipelines.support import DIGITS

NASTY = [
    *["\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\xad", "é́", "́", "ﬁ", "İ", "ß", "🇩🇪", "👍🏽"],
    *["\U000e0041", "а", "Ⅷ", "１", "٣", "𝟗", "👩\u200d👩\u200d👧"],
    *["<MASK>", "<MA", "SK>", "<mask>", "a@", "word", "Anna", "broken", "12"],
    *["\n", "\r", "\r\n", "\u2028", "\x85", "\x0b", "\x1c", "\t", "\xa0", "\u3000", "\x7f"],
    *["\\", '"', "'", ",", "?!", "...", "[", "{", "}", "-", ".", "((", "%s", "{0}", "$(x)"],
]
TEXTS = st.lists(st.sampled_from(NASTY) | st.text(max_size=3), max_size=25).map("".join)
IDS = [
    *("../../escape", "/etc/passwd", "..", ".", "a/b/c", "part-00000.parquet", ".tmp-1-x", "_SUCCESS"),
    *("C:\\x", "{id}", "%00", "<MASK>"),
    *("\u202egpj.exe", "a\nb", "\x1b[2J", "'; drop table points; --", "x" * 1_024, "🙂"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def _strings(run: Path) -> Iterator[tuple[str, str]]:
    """Every string in every file that may not hold the original text, and the file's name."""
    folder = RunFolder(run)
    for path in run.rglob("*"):
        if not path.is_file() or path.parent in (folder.vault, folder.quarantine):
            continue
        name = path.relative_to(run).as_posix()
        yield path.read_bytes().decode("latin-1"), name
        if path.suffix == ".parquet":
            yield str(pq.read_table(path).to_pydict()), name


ROWS = st.lists(st.tuples(TEXTS, st.sampled_from(IDS) | st.none() | st.integers()), min_size=1, max_size=12)
JUNK = st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=4)


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, JUNK)
@example([(text * 3, None) for text in NASTY], [b"\xff", b"[" * 3000, b'{"text": "\\ud800"}'])
@example([("number 1", i) for i in IDS], [])
def test_a_run_of_anything_loses_nothing_and_shows_nothing(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[tuple[str, Any]], junk: list[bytes]
) -> None:
    nothing_is_lost_or_shown(tmp_path_factory.mktemp("run"), given_rows, junk)


def nothing_is_lost_or_shown(base: Path, given_rows: list[tuple[str, Any]], junk: list[bytes]) -> None:
    """Curate rows of these texts and ids, and lines of junk; check every row, character and secret."""
    secrets = [f"{n:03}{'7' * 9}{n:03}" for n in range(len(given_rows))]
    # a line of its own for each secret: what a detector cannot process is not redacted but quarantined
    texts = [f"{text}\n it is {secret}" for (text, _), secret in zip(given_rows, secrets, strict=True)]
    ids = [doc_id if doc_id is None else str(doc_id) for _, doc_id in given_rows]
    rows = [{"id": i, "text": text} for text, (_, i) in zip(texts, given_rows, strict=True)]
    lines = [json.dumps(row, ensure_ascii=n % 2 == 0).encode() for n, row in enumerate(rows)]
    (base / "rows.jsonl").write_bytes(b"\n".join([*lines, *junk]) + b"\n")
    assert curated(base / "rows.jsonl", base / "run") == 0
    run = RunFolder(base / "run")

    # every row and every point is somewhere
    counts = json.loads(run.manifest.read_bytes())["counts"]
    assert counts["rows"] == len(lines) + sum(1 for line in junk if line.strip())
    assert counts["rows"] == counts["documents"] + counts["rejected"]
    decisions = Counter(f for b in read_batches(run.examples, ["decision"]) for f in b["decision"].to_pylist())
    assert decisions == {k: counts[k] for k in ("public", "private", "duplicate", "quarantined") if counts[k]}

    # a document is put together again from the vault, but for the points that were quarantined
    vault = [row for batch in read_batches(run.vault) for row in batch.to_pylist()]
    aside = [row for batch in read_batches(run.quarantine) for row in batch.to_pylist()]
    rejected = {row["row"] for row in aside if row["kind"] == "row"}
    for number, (text, doc_id) in enumerate(zip(texts, ids, strict=True)):
        earlier = {i for i, t in zip(ids[:number], texts, strict=False) if "\0" not in t}
        unusable = "\0" in text or (doc_id is not None and doc_id in earlier)
        assert (number + 1 in rejected) == unusable
        if not unusable:
            name = doc_id or f"rows.jsonl:{number + 1}"
            kept = "".join(p["prefix"] + p["text"] + p["suffix"] for p in vault if p["doc_id"] == name)
            kept += "".join(p["content"].decode() for p in aside if p["source"] == name)
            lost = Counter(text) - Counter(kept)
            assert not any(letter.strip() for letter in lost), name
            assert not lost or "broken" in text

    # what was masked, or is private, stands nowhere else
    for content, name in _strings(run.root):
        assert not [secret for secret in secrets if secret in content], name
    public = [text for batch in read_batches(run.public, ["text"]) for text in batch["text"].to_pylist()]
    assert not [text for text in public if DIGITS.search(text) or MASK in text]


class OddLabels(FewRanges):
    """The detector of the tests, with labels that a configuration may give but paths are made of."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        for found in super().detect(texts):
            strict = tuple(span._replace(label="a/b/7") for span in found.strict)
            yield Detection(strict, found.conservative, found.failure)


def test_ids_and_labels_are_never_paths_and_ten_thousand_hits_are_masked(tmp_path: Path) -> None:
    rows = [{"id": i, "user_id": i, "text": f"a text {n}"} for n, i in enumerate(IDS)]
    lines = [json.dumps(row) + "\n" for row in [*rows, {"text": "1a" * 10_000}]]
    (tmp_path / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    run = RunFolder(tmp_path / "some" / "where" / "deep" / "run")
    assert curated(tmp_path / "rows.jsonl", run.root, detector=OddLabels()) == 0
    outside = {p for p in tmp_path.rglob("*") if p.is_file() and run.root not in p.parents}
    assert outside == {tmp_path / "rows.jsonl"}
    assert {p.name for p in run.public.iterdir()} == {f"part-{n:05}.parquet" for n in range(3)}
    manifest = json.loads(run.manifest.read_bytes())
    assert manifest["counts"]["documents"] == len(lines)
    points = [row for batch in read_batches(run.examples) for row in batch.to_pylist()]
    names = {row[column] for row in points for column in ("released_id", "document", "user")}
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
    private = [text for batch in read_batches(run.private, ["text"]) for text in batch["text"].to_pylist()]
    assert f"{MASK}a" * 10_000 in private
    assert manifest["masks"] == len(IDS) + 10_000
    [hit] = manifest["spans"]
    assert (hit["policy"], hit["detector"], hit["label"]) == ("strict", "digits", "a/b/7")


@settings(max_examples=150, deadline=None)
@given(TEXTS.filter(lambda text: text and "\0" not in text), st.data())
def test_no_character_of_a_hit_and_no_standing_mask_survives_alone(text: str, data: st.DataObject) -> None:
    ends = st.integers(0, len(text))
    pairs = data.draw(st.lists(st.tuples(ends, ends).filter(lambda p: p[0] < p[1]), max_size=6))
    spans = tuple(Span(start, end, "L", 1.0, "d") for start, end in pairs)
    decision = route_example(text, Detection(spans))
    assert (decision.split == "private") == (bool(spans) or MASK in text)
    assert is_masked_as_marked(text, spans, decision)


@pytest.mark.parametrize("mode", ["sentence", "line", "turn", "document"])
@pytest.mark.parametrize("piece", ["?!", '?"', "\n", "a\n", "USR: \n", "1. ", "\u200b.", "Mr. ", "e\u0301.", "…"])
def test_a_document_of_one_sign_comes_to_an_end_and_back(mode: str, piece: str) -> None:
    """A quadratic cut of the longest text allowed would take twenty minutes for the first of these."""
    text = "a" + piece * (50_000 // len(piece))
    segments = make_segmenter(SegmentSettings.model_validate({"mode": mode}))(text)
    assert "".join(s.prefix + s.text + s.suffix for s in segments) == text
    assert all(s.text for s in segments)


def test_a_long_word_changes_nothing_around_it() -> None:
    cut = make_segmenter(SegmentSettings())
    link = "https://example.org/?" + "a=b&c.d?e!" * 100
    text = f"See {link}. It is long. Dr. Smith said so! Did he? Yes."
    assert [s.text for s in cut(text)] == [f"See {link}.", "It is long.", "Dr. Smith said so!", "Did he?", "Yes."]


@settings(max_examples=50, deadline=None)
@given(TEXTS)
@example("\ud800 secret words")
@example("\x00")
def test_whatever_an_error_quotes_is_sealed(folder: Path, text: str) -> None:
    def fail() -> None:
        raise KeyError(text, "secret words")

    with pytest.raises(RedactoryError, match="unexpected KeyError") as error:
        run_with_sealed_traceback(folder / "state", fail)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None
    (sealed_file,) = (folder / "state").glob("traceback-*.txt")
    assert b"secret words" in sealed_file.read_bytes()
    sealed_file.unlink()


class _Talkative(Exception):
    """Quotes a text in each place that an error has."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.filename, self.errno, self.doc = text, None, text
        self.add_note(text)


def _raise_it(how: str, text: str) -> None:
    ours = [RedactoryError, ConfigurationError, InputError, RunStateError, CheckFailed, SealedError]
    if how == "plain":
        raise _Talkative(text)
    if how == "exit":
        raise SystemExit(text)
    if how == "group":
        raise ExceptionGroup(text, [_Talkative(text), ValueError(text)])
    if how == "decoding":
        raise UnicodeDecodeError("utf-8", text.encode("utf-8", "replace"), 0, 1, text)
    if how == "system":
        raise OSError(errno.EIO, text, text)
    try:
        raise _Talkative(text)
    except _Talkative as error:
        if how == "during":
            raise KeyError(text)  # noqa: B904
        if how == "because":
            raise KeyError(text) from error
        kind = ours[int(how[-1])]
        if how.startswith("ours during"):
            raise kind("a file is wrong")  # noqa: B904
        raise kind("a file is wrong") from error


_HOWS = ["plain", "exit", "group", "decoding", "system", "during", "because"]


@pytest.mark.parametrize("way", [run_with_sealed_traceback, run_with_hidden_error_text])
@pytest.mark.parametrize("how", [*_HOWS, *(f"ours {how} {n}" for how in ("during", "because") for n in range(6))])
def test_nothing_of_an_error_is_left_but_our_words(tmp_path: Path, way: Any, how: str) -> None:
    text = "Rosalind Marlowe of 12 Quiet Lane"
    first: Any = "something was done" if way is run_with_hidden_error_text else tmp_path / "state"
    with pytest.raises(RedactoryError) as caught:
        way(first, lambda: _raise_it(how, text))
    error: Any = caught.value
    assert error.__cause__ is error.__context__ is None
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    # this very function knows it
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert "_raise_it" not in names
    assert text not in repr([one for one in frames if one.get("text") != text])
    assert text not in repr((str(error), error.args, vars(error)))
    quoted = "".join(traceback.format_exception(error))
    assert text not in quoted
    assert text not in pickle.dumps(error.with_traceback(None)).decode("latin-1")
    assert isinstance(error, SealedError) != how.startswith("ours") or how[-1] == "5"


def test_only_what_lies_in_the_run_folder_is_called_it(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def fail(place: Path) -> None:
        raise PermissionError(errno.EACCES, "no", str(place))

    for place, told in (
        (run / "vault" / "part", r"the run folder cannot be written \(Permission denied: vault/part\)"),
        (tmp_path / "tagger" / "Anna", r"unexpected PermissionError \(Permission denied\)"),
    ):
        with pytest.raises(SealedError, match=told) as caught:
            run_with_sealed_traceback(run / "state", fail, place)
        assert "Anna" not in str(caught.value)
