"""A curation and a training as OpenLineage is told of them: from configuration and manifests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import read_json
from redactory.pipelines.config import Config
from redactory.pipelines.stores.store import without_secrets
from redactory.pipelines.tracking.lineage_facts import Columns, Data, Facts, local
from redactory.redaction import RunFolder, read_manifest, shards
from redactory.training.settings import TrainSettings

_TEXT = "string"


@dataclass(frozen=True)
class Curation:
    """``config`` read, a run's tables written."""

    config: Config

    @property
    def job(self) -> str:
        """``curate``."""
        return "curate"

    def before(self) -> Facts:
        """The input, by its columns."""
        columns = tuple((name, _TEXT) for name in self.config.input.required_columns())
        return Facts(tuple(Data(*_place(path), columns) for path in self.config.input.path))

    def after(self) -> Facts:
        """The input with what was read of it, the run's tables, and the hashes that they follow from."""
        run = RunFolder(Path(self.config.output))
        manifest = read_manifest(run)
        inputs = self.before().inputs
        if len(inputs) == 1:
            inputs = (_read(inputs[0], manifest),)
        tags = {
            "configuration": manifest["configuration_hash"],
            **{f"policy.{name}": policy["hash"] for name, policy in manifest["policies"].items()},
            **{f"count.{name}": str(number) for name, number in manifest["counts"].items()},
        }
        return Facts(inputs, tables_of(run, ("public", "private", "vault")), tags)


@dataclass(frozen=True)
class Training:
    """A run's tables read, a model's folder written."""

    run: RunFolder
    settings: TrainSettings

    @property
    def job(self) -> str:
        """``train.NAME``."""
        return f"train.{self.settings.model_name}"

    def before(self) -> Facts:
        """The tables that the trainer learns from."""
        return Facts(self._tables)

    @cached_property
    def _tables(self) -> tuple[Data, ...]:
        from redactory.training.trainers import trainer_of

        names = tuple(folder.name for folder in trainer_of(self.settings, self.run).folders)
        return tables_of(self.run, names)

    def after(self) -> Facts:
        """The same, the model, and what is promised of it in figures."""
        folder = self.run.model(self.settings.model_name)
        card = read_json(folder.guarantee)
        told = ("trainer", "kind", "holds", "epsilon", "delta", "relation", "steps")
        tags = {key: str(card[key]).lower() for key in told if card[key] is not None}
        files = read_manifest(folder)["files"].values()
        model = Data(
            *local(folder.root),
            bytes=sum(entry["bytes"] for entry in files),
            files=len(files),
            version=file_sha256(folder.manifest),
        )
        return Facts(self._tables, (model,), {**tags, "ledger": card["ledger"]["head"]})


def tables_of(run: RunFolder, names: tuple[str, ...]) -> tuple[Data, ...]:
    """The tables ``names`` of a finished run: columns, rows, bytes, files, the sha256 of its manifest."""
    manifest, version = read_manifest(run), file_sha256(run.manifest)
    return tuple(_table(run, name, manifest, version) for name in names)


def _table(run: RunFolder, name: str, manifest: dict[str, Any], version: str) -> Data:
    parts = [entry for path, entry in manifest["files"].items() if path.startswith(f"{name}/")]
    return Data(
        *local(run.root / name),
        columns=_columns(name, manifest),
        rows=manifest.get("counts", {}).get(name),  # none says how many originals there are
        bytes=sum(entry["bytes"] for entry in parts),
        files=len(parts),
        version=version,
    )


def _columns(name: str, manifest: dict[str, Any]) -> Columns:
    labelled = name == "vault" and manifest["configuration"]["input"].get("label")
    schema: pa.Schema = shards.LABELLED_VAULT if labelled else getattr(shards, name.upper())
    return tuple((field.name, str(field.type)) for field in schema)


def _read(data: Data, manifest: dict[str, Any]) -> Data:
    files = manifest["inputs"]
    return Data(
        data.namespace,
        data.name,
        data.columns,
        rows=sum(entry["rows"] for entry in files),
        bytes=sum(entry["bytes"] for entry in files),
        files=len(files),
    )


def _place(path: str) -> tuple[str, str]:
    """Namespace and name of what ``input.path`` names: a URL without what opens it, or a path here."""
    if "://" not in path:
        return local(Path(path))
    parts = urlsplit(without_secrets(path))
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/")
