"""Public by count through a whole run: what is public, in which order, once, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import redactory
from redactory.dedup import plan as ranges
from redactory.dedup.plan import DIGEST, read_range, write_entries
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.finish import render_dataset_card
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.stage_context import CurationJob
from redactory.pipelines.curation.stages import counting, examples
from redactory.pipelines.curation_hints import list_curation_hints
from redactory.pipelines.operations.export import select_public_fields
from redactory.redaction import RunFolder, list_parts, read_manifest, write_secret
from redactory.training import RecallMeasurement
from redactory.training.count_selection import CountSelection
from redactory.training.data import count_public_occurrences
from redactory.training.guarantee.spec import MissRates
from tests.draws import require_unique_draws
from tests.pipelines.support import LINE_CONFIG, DigitDetector, list_failed_checks, read_rows, write_rows

pytestmark = pytest.mark.usefixtures("unsynced", "unreported")
COUNT: dict[str, Any] = {"strategy": "count", "epsilon": 2.0, "delta": 1e-4, "texts_per_user": 4}
SAID = ["good evening", "thank you all", "Ask Quirin about it", "my number is 5"]
PUBLIC = {"good evening", "thank you all", "Ask Quirin about it", "my number is <MASK>"}


def rows(users: int = 80) -> list[dict[str, str]]:
    """Everybody says the same, twice, and a thing of their own, which one user says in forty rows."""
    own = [[*SAID, f"only {chr(97 + n // 10)}{chr(97 + n % 10)} knows", "broken"] for n in range(users)]
    said = [{"id": f"d{n}{c}", "user_id": f"u{n}", "text": "\n".join(t)} for n, t in enumerate(own) for c in "ab"]
    loud = [{"id": f"l{n}", "user_id": "loud", "text": "buy my tea"} for n in range(60)]
    return [*said, *loud]


def curated(folder: Path, given: list[dict[str, str]] | None = None, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = write_rows(folder / "rows.jsonl", rows() if given is None else given)
    config = {**LINE_CONFIG, "input": str(path), "route": COUNT, "partition": {"documents": 50}, **more}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def public(run: Path) -> list[dict[str, Any]]:
    return read_rows(RunFolder(run).public)


def sound(run: Path) -> bool:
    """All checks hold; of the report none is written here."""
    return list_failed_checks(run) <= {"report"}


def test_what_enough_users_wrote_is_public_masked_and_in_no_order_of_the_corpus(tmp_path: Path) -> None:
    run, turned = curated(tmp_path / "a"), curated(tmp_path / "b", rows()[::-1])
    found = public(run)
    assert {row["text"] for row in found} == PUBLIC
    # neither the loud user's sixty rows nor anything that one user wrote
    assert all(abs(row["users"] - 80) < 40 for row in found)
    assert [path.name for path in list_parts(RunFolder(run).public)] == ["part-00000.parquet"]
    # names and order follow from the texts
    assert [(r["example_id"], r["text"]) for r in found] == [(r["example_id"], r["text"]) for r in public(turned)]
    assert sound(run)
    manifest, record = read_manifest(RunFolder(run)), read_records(RunFolder(run).journal)
    [booked] = [one.body for one in record if one.type == "selection"]
    assert manifest["route"] == booked
    own = CountSelection.calibrate(2.0, 1e-4, 4)
    assert (booked["threshold"], booked["deviation"]) == (own.threshold, own.deviation)
    assert booked["id"] != read_manifest(RunFolder(turned))["route"]["id"]


def test_what_leaves_says_nothing_of_the_languages_of_the_corpus(tmp_path: Path) -> None:
    run = RunFolder(curated(tmp_path / "a"))
    manifest = read_manifest(run)
    languages = {"languages": {"en": 0.6, "es": 0.4}, "measured": {"es": {"set": "UNER", "coverage": 0.9}}}
    seen = {**manifest, "uncovered": {"kinds": {"PERSON": ["en", "es"]}, **languages}}
    assert select_public_fields(seen, "0" * 64)["uncovered"] == {"kinds": {"PERSON": ["en"]}, "languages": {}}
    card = render_dataset_card("run", seen)
    assert "'es'" not in card
    assert "Languages of a sample" not in card
    # nor does a card's figure: it is the same whatever else was seen
    own = {**seen, "uncovered": {"kinds": {"PERSON": ["es"]}, "languages": {"es": 1.0}}}
    nothing = {**seen, "uncovered": {"kinds": {}, "languages": {}}}
    recall = RecallMeasurement(labels=1000, missed_by_strict=50, missed_by_both=0)
    assert MissRates.from_run(recall, own) == MissRates.from_run(recall, nothing)


def test_selected_and_unmarked_is_what_both_asks_for(tmp_path: Path) -> None:
    run = curated(tmp_path, route={**COUNT, "strategy": "both"})
    assert {row["text"] for row in public(run)} == {"good evening", "thank you all"}
    # three texts of each user count now where the cap is four: no place is taken by what cannot be public
    assert sound(run)


def test_an_interrupted_selection_goes_on_with_its_own_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(examples, "write_shards", lambda *_: (_ for _ in ()).throw(RunStateError("stopped")))
        with pytest.raises(RunStateError, match="stopped"):
            curated(tmp_path)
    run = RunFolder(tmp_path / "run")
    key, counts = run.work / "counts.key", sorted((run.work / "counted").iterdir())
    before = [path.read_bytes() for path in counts]
    assert key.stat().st_mode & 0o777 == 0o600
    config = {**LINE_CONFIG, "input": str(tmp_path / "rows.jsonl"), "route": COUNT, "partition": {"documents": 50}}
    # a part that was not noted is drawn again, and comes out the same
    job = counting_job(run, config)
    counting.count_texts(job, 0)
    assert [path.read_bytes() for path in counts] == before
    redactory.curate(config, output=run.root, detector=DigitDetector(), resume=True)
    assert {row["text"] for row in public(run.root)} == PUBLIC
    assert not key.exists()


def counting_job(run: RunFolder, config: dict[str, Any]) -> CurationJob:
    [booked] = [one.body for one in read_records(run.journal) if one.type == "selection"]
    selection = CountSelection.from_manifest({"route": booked})
    return CurationJob(run, load_config(config, output=run.root), load_digest_key(), selection=selection)


@pytest.mark.parametrize("whole", [ranges.MAX_UNDIVIDED_DIGESTS, 0])
@pytest.mark.parametrize("hash_ranges", [1, 2, 16])
def test_no_two_texts_of_a_selection_have_one_noise(
    whole: int, hash_ranges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all hash ranges together, read whole or in pieces: no name is drawn twice."""
    monkeypatch.setattr(ranges, "MAX_UNDIVIDED_DIGESTS", whole)
    stream, run = RandomStream.from_entropy(), RunFolder(tmp_path / "run")
    selection = replace(
        CountSelection.calibrate(1.0, 1e-6, 1), threshold=-(10**9), id=stream.random_bytes("fingerprint", 0, 16).hex()
    )
    config = Config.model_validate({"input": "rows.jsonl", "output": str(run.root)})
    key = DigestKey(b"a key of these tests, 32 bytes..")
    job = CurationJob(run, config, key, hash_ranges=hash_ranges, selection=selection)
    make_private_folder(run.work)
    write_secret(job.count_key_path, stream.root)
    texts = np.zeros(4096, DIGEST)
    texts["high"] = np.arange(4096, dtype=np.uint64) << np.uint64(52)
    write_entries(tmp_path / "bounded", texts)
    for number in range(hash_ranges):
        write_entries(job.range_path("bounded", number), read_range(tmp_path / "bounded", number, hash_ranges))
    with require_unique_draws("fingerprint") as drawn:
        for number in range(hash_ranges):
            counting.count_texts(job, number)
    pieces = hash_ranges * (1 if whole else ranges.PIECES)
    assert sum(one.purpose == "counts" for one in drawn) == pieces
    noise = np.concatenate([np.load(job.range_path("counted", number))["users"] - 1 for number in range(hash_ranges)])
    assert len({tuple(piece[:8]) for piece in np.split(noise, pieces)}) == pieces
    assert abs(noise[1:] @ noise[:-1]) < 6.0 * 64 * selection.deviation**2
    assert 1e-6 < stats.chi2.cdf(float((noise / selection.deviation) @ (noise / selection.deviation)), 4096) < 1 - 1e-6


def test_nothing_is_public_where_nobody_agrees_and_what_would_change_it_is_said(tmp_path: Path) -> None:
    given = [{"id": str(n), "text": f"{'x' * n} alone"} for n in range(1, 9)]
    path = write_rows(tmp_path / "rows.jsonl", given)
    config = {**LINE_CONFIG, "input": str(path), "route": COUNT}
    result = redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    hints = " ".join(list_curation_hints(result))
    assert (result["public"], result["private"]) == (0, 8)
    assert "No text is public" in hints
    assert "a separate user" in hints
    assert sound(tmp_path / "run")
    # there is nothing to repeat, and repeating takes whole numbers
    assert np.repeat([], count_public_occurrences(RunFolder(tmp_path / "run"))).tolist() == []


def test_nobody_is_taken_out_of_a_selection(tmp_path: Path) -> None:
    """Else a selected text would stay public exactly if somebody else wrote it."""
    run = curated(tmp_path)
    before = public(run)
    [told] = redactory.erase([run], user_ids=["u0"])["problems"]
    assert "public by count" in told["problem"]
    assert redactory.erase([run], user_ids=["nobody"])["ok"]
    assert public(run) == before
    assert sound(run)


@pytest.mark.parametrize(
    "config",
    [
        {"release": {**LINE_CONFIG["release"], "unit": "document"}},
        {"dedup": {"mode": "folded"}},
        {"dedup": {"scope": "user"}},
        {"dedup": {"private_mode": "minhash"}},
        {"input": {"path": "rows.jsonl", "metadata_columns": ["place"]}},
    ],
)
def test_what_would_publish_more_than_was_counted_is_refused(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"route\.strategy count"):
        redactory.curate({**LINE_CONFIG, "input": "rows.jsonl", "route": COUNT, **config}, output=tmp_path / "run")
