"""The run folder, declared once: no path inside a run is spelled anywhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from redactory.foundation.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def part_name(partition: int) -> str:
    """The file name of a partition's part in any data folder."""
    return f"part-{partition:05d}.parquet"


@dataclass(frozen=True)
class SealedFolder:
    """A folder that is finished when ``_SUCCESS`` holds the sha256 of its ``manifest.json``."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Counts, versions and the sha256 of every file."""
        return self.root / "manifest.json"

    @property
    def success(self) -> Path:
        """Written last; its text is the sha256 of the manifest."""
        return self.root / "_SUCCESS"

    @property
    def signature(self) -> Path:
        """Ed25519 signature of ``manifest.json``, 64 bytes, where a signing key is configured."""
        return self.root / "manifest.json.sig"


@dataclass(frozen=True)
class ModelFolder(SealedFolder):
    """``models/NAME``: what a training leaves."""

    @property
    def weights(self) -> Path:
        """The parameters (safetensors)."""
        return self.root / "model.safetensors"

    @property
    def config(self) -> Path:
        """The architecture (JSON)."""
        return self.root / "config.json"

    @property
    def tokenizer(self) -> Path:
        """The public vocabulary (JSON)."""
        return self.root / "tokenizer.json"

    @property
    def ledger(self) -> Path:
        """The privacy ledger: one record a noisy step."""
        return self.root / "ledger.jsonl"

    @property
    def guarantee(self) -> Path:
        """The guarantee card (JSON)."""
        return self.root / "guarantee.json"

    @property
    def card(self) -> Path:
        """The model card (Markdown)."""
        return self.root / "README.md"

    @property
    def report(self) -> Path:
        """Utility, guarantee and attacks for people: a view, rendered again by every later command."""
        return self.root / "report.html"

    @property
    def measured(self) -> Path:
        """The same as Markdown."""
        return self.root / "MEASURED.md"

    def result(self, evaluation: str) -> SealedFolder:
        """The sealed folder of one evaluation of this model; it holds ``result.json``."""
        return SealedFolder(self.root / evaluation)


@dataclass(frozen=True)
class SampleFolder(SealedFolder):
    """``state/samples/NAME``: points drawn for people to label, with their original text."""

    @property
    def rows(self) -> Path:
        """The sample in the span schema (JSON lines), π's spans filled in."""
        return self.root / "sample.jsonl"

    @property
    def table(self) -> Path:
        """The same as CSV, to read."""
        return self.root / "sample.csv"

    @property
    def tasks(self) -> Path:
        """The same as tasks with predictions, to import into Label Studio."""
        return self.root / "label-studio.json"

    @property
    def interface(self) -> Path:
        """Label Studio's labelling interface for the tasks (XML)."""
        return self.root / "label-studio.xml"

    @property
    def draw(self) -> Path:
        """The record of the draw, without text: strata, seed, keyed digests."""
        return self.root / "draw.json"

    @property
    def score(self) -> SealedFolder:
        """The sealed folder of what the labels gave; it holds ``result.json``."""
        return SealedFolder(self.root / "score")


@dataclass(frozen=True)
class RunFolder(SealedFolder):
    """``RUN/``: public and private shards, what proves them, and what must stay private."""

    @property
    def public(self) -> Path:
        """Shards of the public side: released point id, text."""
        return self.root / "public"

    @property
    def private(self) -> Path:
        """Shards of the private side: released point id, keyed user, text masked by π, reasons."""
        return self.root / "private"

    @property
    def quarantine(self) -> Path:
        """Rows and points that could not be processed, with reason codes."""
        return self.root / "quarantine"

    @property
    def vault(self) -> Path:
        """The original text of every point."""
        return self.root / "vault"

    @property
    def spans(self) -> Path:
        """The text-free span ledger."""
        return self.root / "audit" / "spans"

    @property
    def points(self) -> Path:
        """Each point's fate and keyed ids."""
        return self.root / "audit" / "points"

    @property
    def across(self) -> Path:
        """Public points that nearly duplicate a private one: suspected misses; no text."""
        return self.root / "audit" / "across"

    @property
    def state(self) -> Path:
        """Lock, journal, work files, sealed tracebacks, the orchestrator's home."""
        return self.root / "state"

    @property
    def lock(self) -> Path:
        """Held by the one curation at work, whose process it names; gone between runs."""
        return self.state / "lock"

    @property
    def work(self) -> Path:
        """What stages hand to each other; gone once the run is finished."""
        return self.state / "work"

    @property
    def journal(self) -> Path:
        """The run's journal (``foundation/records.py``)."""
        return self.state / "journal.jsonl"

    @property
    def data_key(self) -> Path:
        """The wrapped key under which the private part is encrypted; without it nobody can read that."""
        return self.state / "data-key.json"

    @property
    def recall(self) -> Path:
        """What the policies were measured to miss; a private figure, which the guarantee uses."""
        return self.state / "recall.json"

    @property
    def redaction(self) -> SealedFolder:
        """What the shards gave away under attack, sealed: ``result.json``; private figures."""
        return SealedFolder(self.state / "redaction")

    def sample(self, name: str) -> SampleFolder:
        """The folder of sample ``name``; ``ConfigurationError`` where the name is no plain name."""
        return SampleFolder(self.state / "samples" / _plain(name, "sample"))

    @property
    def card(self) -> Path:
        """The dataset card (Markdown with YAML front matter)."""
        return self.root / "README.md"

    @property
    def report(self) -> Path:
        """The report for people: a view, rendered again by every later command."""
        return self.root / "report.html"

    @property
    def models(self) -> Path:
        """One folder a trained model."""
        return self.root / "models"

    def model(self, name: str) -> ModelFolder:
        """The folder of model ``name``; ``ConfigurationError`` where the name is no plain name."""
        return ModelFolder(self.models / _plain(name, "model"))

    def model_names(self) -> list[str]:
        """The finished models of this run, by name."""
        return sorted(p.parent.name for p in self.models.glob("*/_SUCCESS"))

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """Every folder that holds parts."""
        return (self.public, self.private, self.quarantine, self.vault, self.spans, self.points, self.across)


def _plain(name: str, of: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"a {of}'s name must be letters, digits, '.', '_' or '-' (at most 64)")
    return name
