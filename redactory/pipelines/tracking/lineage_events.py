"""Events in OpenLineage's own model, added to a file by its own transport; needs the extra ``lineage``."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from openlineage.client import event_v2 as events
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    tags_run,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.uuid import generate_new_uuid

from redactory.foundation.errors import RunStateError
from redactory.pipelines.release import versions
from redactory.pipelines.tracking.lineage_facts import Data, Facts

_ENGINE = "redactory"


class Events:
    """The events of one work, under an id of its own."""

    def __init__(self, file: Path, namespace: str, job: str) -> None:
        self._version = versions()["redactory"]
        self._producer = f"urn:{_ENGINE}:{self._version}"
        self._file = file
        # the transport itself, and no client around it: that one reads configuration of its own
        self._transport = FileTransport(FileConfig(str(file), append=True))
        self._run = str(generate_new_uuid())
        self._job = events.Job(namespace=namespace, name=job)

    def start(self, facts: Facts) -> None:
        """The work begins."""
        self._emit(events.RunState.START, facts)

    def complete(self, facts: Facts) -> None:
        """It is done."""
        self._emit(events.RunState.COMPLETE, facts)

    def fail(self, facts: Facts, message: str) -> None:
        """It ended with an error, whose ``message`` holds no text."""
        facet = error_message_run.ErrorMessageRunFacet(message, "python", producer=self._producer)
        self._emit(events.RunState.FAIL, facts, errorMessage=facet)

    def abort(self, facts: Facts) -> None:
        """Somebody ended it."""
        self._emit(events.RunState.ABORT, facts)

    def _emit(self, state: events.RunState, facts: Facts, **facets: Any) -> None:
        engine = processing_engine_run.ProcessingEngineRunFacet(
            self._version, name=_ENGINE, producer=self._producer
        )
        tags = [tags_run.TagsRunFacetFields(key, value, _ENGINE) for key, value in facts.tags.items()]
        if tags:
            facets["tags"] = tags_run.TagsRunFacet(tags, producer=self._producer)
        event = events.RunEvent(
            eventType=state,
            eventTime=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            run=events.Run(self._run, facets={"processing_engine": engine, **facets}),
            job=self._job,
            producer=self._producer,
            inputs=[self._input(data) for data in facts.inputs],
            outputs=[self._output(data) for data in facts.outputs],
        )
        try:
            self._transport.emit(event)
        except RuntimeError:
            raise RunStateError(
                f"track.lineage: {self._file} cannot be written any more, and lacks the event {state.value}"
            ) from None

    def _input(self, data: Data) -> events.InputDataset:
        told: dict[str, Any] = {}
        if data.rows is not None or data.bytes is not None:
            told["inputStatistics"] = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                data.rows, data.bytes, data.files, producer=self._producer
            )
        return events.InputDataset(data.namespace, data.name, facets=self._facets(data), inputFacets=told)

    def _output(self, data: Data) -> events.OutputDataset:
        told: dict[str, Any] = {}
        if data.rows is not None or data.bytes is not None:
            told["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                data.rows, data.bytes, data.files, producer=self._producer
            )
        return events.OutputDataset(data.namespace, data.name, facets=self._facets(data), outputFacets=told)

    def _facets(self, data: Data) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if data.columns:
            fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in data.columns]
            found["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=self._producer)
        if data.version is not None:
            found["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
                data.version, producer=self._producer
            )
        return found
