"""Lineage in OpenLineage's own model: what was read, what was written, and never text."""

from __future__ import annotations

import inspect
import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openlineage.client import event_v2, facet_v2
from openlineage.client.serde import Serde

import redactory
from redactory.detectors import Detection
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError, SealedError
from redactory.foundation.files import read_json
from redactory.pipelines.config import Config
from redactory.pipelines.tracking.lineage_work import Curation
from redactory.redaction import RunFolder, read_manifest
from tests.integrations.tracked_run import WORDS, job
from tests.pipelines.support import DigitDetector

FACETS = {
    name: kind
    for module in vars(facet_v2).values()
    if inspect.ismodule(module)
    for name, kind in vars(module).items()
    if inspect.isclass(kind)
}
"""Every facet of the official client, by the name of its class."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a model that were told of in ``lineage.jsonl``."""
    root = tmp_path_factory.mktemp("lineage")
    config = job(root, track={"lineage": str(root / "lineage.jsonl"), "namespace": "support"})
    redactory.curate(config, detector=DigitDetector())
    redactory.train(config)
    return root


@pytest.fixture(scope="module")
def events(place: Path) -> list[dict[str, Any]]:
    return _told(place)


def _told(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "lineage.jsonl").read_text().splitlines()]


def _facet(value: dict[str, Any]) -> Any:
    """A facet of the official client, of the class that the event names, with what the event says."""
    name = value["_schemaURL"].rpartition("/")[2]
    kind, fields = FACETS[name], {k: v for k, v in value.items() if not k.startswith("_")}
    for key, inner in (("fields", "SchemaDatasetFacetFields"), ("tags", "TagsRunFacetFields")):
        if key in fields:
            fields[key] = [FACETS[inner](**part) for part in fields[key]]
    return kind(**fields, producer=value["_producer"])


def _facets(value: dict[str, Any]) -> dict[str, Any]:
    return {name: _facet(facet) for name, facet in value.items()}


def test_every_event_is_one_of_the_official_model(events: list[dict[str, Any]]) -> None:
    """Built anew from what the file says, by the client's own classes, which check what they are given."""
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 2
    for event in events:
        again = event_v2.RunEvent(
            eventType=event_v2.RunState[event["eventType"]],
            eventTime=event["eventTime"],
            run=event_v2.Run(event["run"]["runId"], facets=_facets(event["run"]["facets"])),
            job=event_v2.Job(event["job"]["namespace"], event["job"]["name"]),
            producer=event["producer"],
            inputs=[
                event_v2.InputDataset(
                    one["namespace"],
                    one["name"],
                    facets=_facets(one["facets"]),
                    inputFacets=_facets(one.get("inputFacets", {})),
                )
                for one in event.get("inputs", [])
            ],
            outputs=[
                event_v2.OutputDataset(
                    one["namespace"],
                    one["name"],
                    facets=_facets(one["facets"]),
                    outputFacets=_facets(one.get("outputFacets", {})),
                )
                for one in event.get("outputs", [])
            ],
        )
        assert json.loads(Serde.to_json(again)) == event


def test_a_curation_and_a_training_are_tied_by_the_shards(place: Path, events: list[dict[str, Any]]) -> None:
    run = RunFolder(place / "run")
    begun, curated, started, trained = events
    assert begun["run"]["runId"] == curated["run"]["runId"] != trained["run"]["runId"]
    assert curated["job"] == {"namespace": "support", "name": "curate", "facets": {}}
    assert trained["job"]["name"] == "train.crt"
    assert [one["name"] for one in begun["inputs"]] == [str(place / "rows.jsonl")]
    written = {Path(one["name"]).name: one for one in curated["outputs"]}
    assert set(written) == {"public", "private", "vault"}
    learnt = {Path(one["name"]).name: one for one in trained["inputs"]}
    assert {name: (one["namespace"], one["name"]) for name, one in learnt.items()} == {
        name: (written[name]["namespace"], written[name]["name"]) for name in ("public", "private")
    }
    assert [one["name"] for one in trained["outputs"]] == [str(run.model("crt").root)]
    assert trained["outputs"][0]["facets"]["version"]["datasetVersion"] == file_sha256(
        run.model("crt").manifest
    )
    assert started["inputs"] == trained["inputs"]


def test_facets_say_columns_counts_versions_and_policies(place: Path, events: list[dict[str, Any]]) -> None:
    run = RunFolder(place / "run")
    manifest, card = read_manifest(run), read_json(run.model("crt").guarantee)
    curated, trained = events[1], events[3]
    public = curated["outputs"][0]
    assert [f["name"] for f in public["facets"]["schema"]["fields"]] == ["point_id", "text"]
    assert public["outputFacets"]["outputStatistics"]["rowCount"] == manifest["counts"]["public"]
    assert public["facets"]["version"]["datasetVersion"] == file_sha256(run.manifest)
    assert [f["name"] for f in curated["inputs"][0]["facets"]["schema"]["fields"]] == ["text", "user_id"]
    assert curated["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == manifest["counts"]["rows"]
    tags = {one["key"]: one["value"] for one in curated["run"]["facets"]["tags"]["tags"]}
    assert tags["policy.strict"] == manifest["policies"]["strict"]["hash"]
    assert tags["count.private"] == str(manifest["counts"]["private"])
    promised = {one["key"]: one["value"] for one in trained["run"]["facets"]["tags"]["tags"]}
    assert float(promised["epsilon"]) == card["epsilon"]
    assert promised["holds"] == "false"
    assert promised["ledger"] == card["ledger"]["head"]


def test_no_text_is_told_and_the_file_is_its_owners_alone(place: Path) -> None:
    file = place / "lineage.jsonl"
    for word in WORDS:
        assert word not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


class _Failing:
    """A detector that ends with ``error``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised", "state", "message"),
    [
        (ValueError(f"it said {WORDS[0]}"), SealedError, "FAIL", "unexpected ValueError"),
        (RunStateError("our own words"), RunStateError, "FAIL", "our own words"),
        (KeyboardInterrupt(WORDS[0]), KeyboardInterrupt, "ABORT", None),
    ],
)
def test_a_failure_is_told_in_words_without_text(
    tmp_path: Path, error: BaseException, raised: type[BaseException], state: str, message: str | None
) -> None:
    config = job(tmp_path, track={"lineage": str(tmp_path / "lineage.jsonl")})
    with pytest.raises(raised):
        redactory.curate(config, detector=_Failing(error))
    start, end = _told(tmp_path)
    assert (start["eventType"], end["eventType"]) == ("START", state)
    assert start["run"]["runId"] == end["run"]["runId"]
    assert "outputs" not in end or not end["outputs"]
    if message is None:
        assert "errorMessage" not in end["run"]["facets"]
    else:
        assert message in end["run"]["facets"]["errorMessage"]["message"]
    assert WORDS[0] not in (tmp_path / "lineage.jsonl").read_text()


def test_a_failure_that_cannot_be_told_is_raised_as_it_is(tmp_path: Path) -> None:
    lineage = tmp_path / "lineage.jsonl"

    class Filling:
        def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
            lineage.unlink()
            lineage.mkdir()
            raise RunStateError("the disk is full")

    with pytest.raises(RunStateError, match="the disk is full"):
        redactory.curate(job(tmp_path, track={"lineage": str(lineage)}), detector=Filling())


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"track\.lineage: .* cannot be written"):
        redactory.curate(job(tmp_path, track={"lineage": str(tmp_path)}), detector=DigitDetector())
    assert not (tmp_path / "run").exists()


def test_a_url_is_told_without_what_opens_it() -> None:
    told = Curation(Config(input={"path": ["s3://key:secret@bucket/a/b.jsonl?token=x"]})).before()
    assert [(data.namespace, data.name) for data in told.inputs] == [("s3://bucket", "a/b.jsonl")]
