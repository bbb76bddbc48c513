"""A folder that says itself when it is finished, and is known by its manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import JOB, MODELS, SUCCESS, read_json, why_not_in


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
        return self.root / SUCCESS

    @property
    def signature(self) -> Path:
        """Ed25519 signature of ``manifest.json``, 64 bytes, where a signing key is configured."""
        return self.root / "manifest.json.sig"


# The folder of a sample that people label (``redaction/folder.py``).


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


# The run folder, declared once: no path inside a run is spelled anywhere else.


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def part_name(partition: int) -> str:
    """The file name of a partition's part in any data folder."""
    return f"part-{partition:05d}.parquet"


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
class ReissueFolder:
    """``state/reissue``: what a finished run is about to become."""

    root: Path

    @property
    def files(self) -> Path:
        """The new parts, below the names that they will have in the run."""
        return self.root / "files"

    @property
    def plan(self) -> Path:
        """Written last: from then on the reissue is carried out, whatever happens."""
        return self.root / "plan.json"


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
    def cluster(self) -> Path:
        """Files of a cluster at work on this run: Dask's own, and what shows that it sees this folder."""
        return self.state / "dask"

    @property
    def staging(self) -> Path:
        """Where workers of a cluster write what they commit; whoever takes it away ends late commits."""
        return self.state / "staging"

    @property
    def journal(self) -> Path:
        """The run's journal (``foundation/records.py``)."""
        return self.state / "journal.jsonl"

    @property
    def data_key(self) -> Path:
        """The wrapped key under which the private part is encrypted; without it nobody can read that."""
        return self.state / "data-key.json"

    def root_key(self, model: str) -> Path:
        """The root key of the training of ``model``, while it lasts."""
        return self.state / f"train-{model}.key"

    def root_keys(self) -> list[Path]:
        """The root keys of all trainings that are not finished."""
        return sorted(self.state.glob("train-*.key"))

    def checkpoint(self, model: str) -> Path:
        """Where the training of ``model`` goes on from, while it lasts."""
        return self.state / f"train-{model}.checkpoint"

    def meeting(self, model: str) -> Path:
        """Where the processes of a training find each other: it holds addresses on this machine."""
        return self.state / f"train-{model}.processes"

    @property
    def release_log(self) -> Path:
        """The release log of a run that belongs to no job."""
        return self.state / "releases.jsonl"

    @property
    def recall(self) -> SealedFolder:
        """What the policies were measured to miss, sealed: ``result.json``, which the guarantee goes by."""
        return SealedFolder(self.state / "recall")

    @property
    def reissue(self) -> ReissueFolder:
        """Where a takedown or a purge waits until it is carried out; gone between them."""
        return ReissueFolder(self.state / "reissue")

    @property
    def samples(self) -> Path:
        """One folder a sample of points for people to label, with their original text."""
        return self.state / "samples"

    @property
    def orchestrator(self) -> Path:
        """Prefect's home of this run, where it is given no other."""
        return self.state / "prefect"

    def tracebacks(self) -> list[Path]:
        """The sealed tracebacks: what an unexpected error quoted."""
        return sorted(self.state.glob("traceback-*.txt"))

    @property
    def releases(self) -> Path:
        """What this run was sealed with before it was reissued; absent where it never was."""
        return self.root / "releases"

    def release(self, number: int) -> SealedFolder:
        """The kept manifest and signature of release ``number``, from 1."""
        return SealedFolder(self.releases / str(number))

    @property
    def redaction(self) -> SealedFolder:
        """What the shards gave away under attack, sealed: ``result.json``; private figures."""
        return SealedFolder(self.state / "redaction")

    @property
    def gate(self) -> SealedFolder:
        """How the run compares with earlier ones of its job, sealed: ``result.json``; private figures."""
        return SealedFolder(self.state / "gate")

    def sample(self, name: str) -> SampleFolder:
        """The folder of sample ``name``; ``ConfigurationError`` where the name is no plain name."""
        return SampleFolder(self.samples / _plain(name, "sample"))

    @property
    def card(self) -> Path:
        """The dataset card (Markdown with YAML front matter)."""
        return self.root / "README.md"

    @property
    def report(self) -> Path:
        """The report for people: a view, rendered again by every later command."""
        return self.root / "report.html"

    @property
    def sums(self) -> Path:
        """The sha256 of every file at the URL that the run was fetched from; absent in all others."""
        return self.root / "SHA256SUMS"

    @property
    def models(self) -> Path:
        """One folder a trained model."""
        return self.root / MODELS

    def model(self, name: str) -> ModelFolder:
        """The folder of model ``name``; ``ConfigurationError`` where the name is no plain name."""
        return ModelFolder(self.models / _plain(name, "model"))

    def model_names(self) -> list[str]:
        """The finished models of this run, by name."""
        return sorted(p.parent.name for p in self.models.glob(f"*/{SUCCESS}"))

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """Every folder that holds parts."""
        return (self.public, self.private, self.quarantine, self.vault, self.spans, self.points, self.across)


def _plain(name: str, of: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a {of}'s name must be letters, digits, '.', '_' or '-' (at most 64), and '{name}' is not; "
            "give another"
        )
    return name


# The folder of a job: the runs of all its nights, and what is kept across them.


@dataclass(frozen=True)
class JobFolder:
    """``JOB/``: one folder a run, and ``_job/``, which readers of data pass over."""

    root: Path

    @property
    def own(self) -> Path:
        """What belongs to no single run; mode 0700."""
        return self.root / JOB

    @property
    def log(self) -> Path:
        """The release log (``foundation/records.py``): everything that the job knows is read off it."""
        return self.own / "log.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the one night, approval or takedown at work."""
        return self.own / "lock"

    @property
    def cluster(self) -> Path:
        """Files of a cluster while it works on a night: as ``RunFolder.cluster``."""
        return self.own / "dask"

    @property
    def metrics(self) -> Path:
        """Figures of the last night, for Prometheus' text-file collector; no text of the corpus."""
        return self.own / "metrics.prom"

    @property
    def latest(self) -> Path:
        """A symbolic link to the run that was released last."""
        return self.root / "latest"

    def run(self, name: str) -> RunFolder:
        """The run of that name."""
        return RunFolder(self.root / name)

    def exists(self) -> bool:
        """Whether a night was ever begun here."""
        return self.own.is_dir()


def job_of(run: RunFolder) -> JobFolder | None:
    """The job that ``run`` belongs to: the folder it lies in, where that is one."""
    job = JobFolder(run.root.resolve().parent)
    return job if job.exists() else None


# The folder of an export, declared once: what left a run, and what it is checked by.


FORMAT = "redactory-export/1"
PUBLIC_FOLDER = 0o755
"""The mode of its folders: nothing in it is private."""


@dataclass(frozen=True)
class ExportFolder(SealedFolder):
    """``DIR/``: the public side of a run, models that leave under their own guarantee, and nothing else."""

    @property
    def public(self) -> Path:
        """The shards of the public side, byte for byte those of the run."""
        return self.root / "public"

    @property
    def card(self) -> Path:
        """The dataset card, with counts of the public side alone."""
        return self.root / "README.md"

    @property
    def croissant(self) -> Path:
        """The data set described for other programs (Croissant, JSON-LD)."""
        return self.root / "croissant.json"

    @property
    def sums(self) -> Path:
        """The sha256 of every file but this one and ``_SUCCESS``, for ``sha256sum -c``."""
        return self.root / "SHA256SUMS"

    def model(self, name: str) -> ModelFolder:
        """The folder of a model that left with it, as in a run."""
        return RunFolder(self.root).model(name)


def is_export_folder(root: Path) -> bool:
    """Whether ``root`` is an export, finished or not; False where its manifest cannot be read."""
    try:
        manifest = SealedFolder(root).manifest
        return why_not_in(root, manifest.name) is None and is_export(read_json(manifest))
    except (OSError, ValueError, AttributeError):
        return False


def is_export(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is that of an export."""
    return manifest.get("format") == FORMAT
