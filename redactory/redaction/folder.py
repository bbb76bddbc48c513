"""Declares every path in the folders of runs, models, samples, exports and jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.foundation.files import JOB, MODELS, SUCCESS, explain_irregular, read_json

FORMAT, SYNTHETIC = "redactory-export/1", "redactory-synthetic/1"
PUBLIC_FOLDER = 0o755
"""Mode of an export's folders, which contain nothing private."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Kind = TypeVar("Kind")


class FolderPath(Generic[Kind]):
    """Descriptor of a path below a folder's root."""

    def __init__(self, kind: Callable[[Path], Kind], name: str, doc: str) -> None:
        self._kind, self._name, self.__doc__ = kind, name, doc

    def __get__(self, folder: Any, owner: type) -> Kind:
        return self._kind(folder.root / self._name)


def path_field(name: str, doc: str) -> FolderPath[Path]:
    """Declare the path ``name`` below a folder, with its meaning."""
    return FolderPath(Path, name, doc)


def format_part_name(partition: int) -> str:
    """Return the file name of a partition's part, the same in every data folder."""
    return f"part-{partition:05d}.parquet"


@dataclass(frozen=True)
class SealedFolder:
    """A folder that is finished when ``_SUCCESS`` contains the sha256 of its ``manifest.json``."""

    root: Path
    manifest = path_field("manifest.json", "Counts, versions and the sha256 of every file.")
    success = path_field(SUCCESS, "Written last; its text is the sha256 of the manifest.")
    signature = path_field(
        "manifest.json.sig", "Ed25519 signature of the manifest, 64 bytes; only if a signing key is set."
    )


@dataclass(frozen=True)
class SampleFolder(SealedFolder):
    """``state/samples/NAME``: examples drawn for labelling, with their original text."""

    rows = path_field(
        "sample.jsonl", "The sample in the span schema (JSON lines), with the spans of the strict policy filled in."
    )
    tasks = path_field("label-studio.json", "The same as tasks with predictions, to import into Label Studio.")
    interface = path_field("label-studio.xml", "Label Studio's labelling interface for the tasks (XML).")
    draw = path_field("draw.json", "The record of the draw, without text: strata, seed, keyed digests.")
    score = FolderPath(SealedFolder, "score", "The result of the labels, sealed: ``result.json``.")


@dataclass(frozen=True)
class ModelFolder(SealedFolder):
    """``models/NAME``: the output of a training."""

    weights = path_field("model.safetensors", "The parameters (safetensors).")
    config = path_field("config.json", "The architecture (JSON).")
    tokenizer = path_field("tokenizer.json", "The public vocabulary (JSON).")
    ledger = path_field("ledger.jsonl", "The privacy ledger: one record per noisy step.")
    guarantee = path_field("guarantee.json", "The guarantee card (JSON).")
    card = path_field("README.md", "The model card (Markdown).")
    held_out = path_field("held_out.json", "The loss on held-out public text, if train.held_out is set (JSON).")
    report = path_field(
        "report.html", "Utility, guarantee and attacks, for reading; every later command renders it again."
    )
    measured = path_field("MEASURED.md", "The same as Markdown.")

    def get_result_folder(self, evaluation: str) -> SealedFolder:
        """Return the sealed folder of one evaluation of this model; it contains ``result.json``."""
        return SealedFolder(self.root / evaluation)

    def list_results(self) -> list[SealedFolder]:
        """The finished evaluations of this model, by name."""
        return [SealedFolder(path.parent) for path in sorted(self.root.glob(f"*/{SUCCESS}"))]


@dataclass(frozen=True)
class ReissueFolder:
    """``state/reissue``: the staged next version of a finished run."""

    root: Path
    files = path_field("files", "The next release: new parts and its seal, under their final names in the run.")
    index = path_field("index", "The run's new entry in the index across runs.")
    plan = path_field("plan.json", "Written last: from then on the reissue will be carried out, whatever happens.")


@dataclass(frozen=True)
class RunFolder(SealedFolder):
    """``RUN/``: public and private shards, their proofs, and private state."""

    public = path_field("public", "Shards of the public split: released example id, text.")
    private = path_field("private", "Shards of the private split: released id, keyed user, masked text, reasons.")
    quarantine = path_field("quarantine", "Rows and examples that could not be processed, with reason codes.")
    vault = path_field("vault", "The original text of every example.")
    spans = path_field("audit/spans", "The text-free span ledger.")
    examples = path_field("audit/examples", "Each example's decision and keyed ids.")
    across = path_field(
        "audit/across", "Public examples that nearly duplicate a private one: suspected misses; no text."
    )
    card = path_field("README.md", "The dataset card (Markdown with YAML front matter).")
    report = path_field("report.html", "The report, for reading; rendered again by every later command.")
    models = path_field(MODELS, "One folder per trained model.")
    releases = path_field("releases", "The seals of earlier releases, before a reissue; absent if there was none.")

    state = path_field("state", "Lock, journal, work files, sealed tracebacks, the orchestrator's home.")
    lock = path_field("state/lock", "Lock of the one running curation, with its process; absent between runs.")
    work = path_field("state/work", "What stages pass to each other; removed once the run is finished.")
    cluster = path_field(
        "state/dask", "Files of a running cluster: Dask's files, and the proof that it sees this folder."
    )
    staging = path_field("state/staging", "Where workers of a cluster write what they commit; required for that.")
    journal = path_field("state/journal.jsonl", "The run's journal (``foundation/records.py``).")
    data_key = path_field("state/data-key.json", "The wrapped key of the private part, which is unreadable without it.")
    release_log = path_field("state/releases.jsonl", "The release log of a run without a job.")
    receipts = path_field("state/receipts", "Receipts of erasures of a run without a job (JSON); no ids, no text.")
    text_vectors = path_field(
        "state/train-vectors.safetensors",
        "Vectors of the run's texts by an encoder, for training; removed with the texts.",
    )
    samples = path_field(
        "state/samples", "One folder per sample of examples for people to label, with their original text."
    )
    exported = path_field("state/quarantine.jsonl", "Rows of the quarantine to fix and curate again: original text.")
    orchestrator = path_field("state/prefect", "Prefect's home for this run, unless another one is set.")
    recall = FolderPath(SealedFolder, "state/recall", "Measured misses of the policies: ``result.json``.")
    redaction = FolderPath(SealedFolder, "state/redaction", "What the shards revealed under attack; private metrics.")
    gate = FolderPath(SealedFolder, "state/gate", "Comparison with earlier runs of the job; private metrics.")
    reissue = FolderPath(ReissueFolder, "state/reissue", "Where an erasure or a purge waits until it is carried out.")

    @property
    def data_folders(self) -> tuple[Path, ...]:
        """All folders that contain parts."""
        return (self.public, self.private, self.quarantine, self.vault, self.spans, self.examples, self.across)

    def list_sealed_folders(self) -> list[SealedFolder]:
        """List every finished folder inside the run: models, their evaluations, measurements."""
        models = [self.get_model_folder(name) for name in self.list_model_names()]
        measured = [folder for folder in self.measurement_folders if folder.success.exists()]
        return [*models, *(result for model in models for result in model.list_results()), *measured]

    @property
    def measurement_folders(self) -> tuple[SealedFolder, ...]:
        """Where measurements of the shards are sealed."""
        return (self.recall, self.redaction, self.gate)

    def get_root_key_path(self, model: str) -> Path:
        """The root key file of the training of ``model``, removed when training ends."""
        return self.state / f"train-{model}.key"

    def list_root_keys(self) -> list[Path]:
        """The root keys of all unfinished trainings."""
        return sorted(self.state.glob("train-*.key"))

    def get_checkpoint_path(self, model: str) -> Path:
        """The training checkpoint of ``model``, removed when training ends."""
        return self.state / f"train-{model}.checkpoint"

    def get_initial_weights_path(self, model: str) -> Path:
        """The weights of ``model`` before the first step of a custom training loop, removed when training ends."""
        return self.state / f"train-{model}.first"

    def list_unfinished_training_files(self) -> list[Path]:
        """List resume files of unfinished trainings: root keys, and checkpoints that can contain sums."""
        return sorted(self.state.glob("*train-*"))

    def list_tracebacks(self) -> list[Path]:
        """List the sealed tracebacks, which may contain quoted text."""
        return sorted(self.state.glob("traceback-*.txt"))

    def get_release_folder(self, number: int) -> SealedFolder:
        """Return the kept manifest and signature of release ``number``, from 1."""
        return SealedFolder(self.releases / str(number))

    def get_sample_folder(self, name: str) -> SampleFolder:
        """Return the folder of sample ``name``; ``ConfigurationError`` for an invalid name."""
        return SampleFolder(self.samples / _require_plain_name(name, "sample"))

    def get_model_folder(self, name: str) -> ModelFolder:
        """Return the folder of model ``name``; ``ConfigurationError`` for an invalid name."""
        return ModelFolder(self.models / _require_plain_name(name, "model"))

    def list_model_names(self) -> list[str]:
        """The finished models of this run, by name."""
        return sorted(p.parent.name for p in self.models.glob(f"*/{SUCCESS}"))


@dataclass(frozen=True)
class JobFolder:
    """``JOB/``: one folder per run, and ``_job/``, which data readers skip."""

    root: Path
    state = path_field(JOB, "What does not belong to a single run; mode 0700.")
    log = path_field(f"{JOB}/log.jsonl", "The release log: the job's state is read from it.")
    lock = path_field(f"{JOB}/lock", "Lock of the one running scheduled run, approval or erasure.")
    metrics = path_field(f"{JOB}/metrics.prom", "Metrics of the last run for Prometheus' text-file collector; no text.")
    receipts = path_field(f"{JOB}/receipts", "Receipts of erasures (JSON); no ids, no text.")
    latest = path_field("latest", "A symbolic link to the run that was released last.")

    def get_run_folder(self, name: str) -> RunFolder:
        """The run named ``name``."""
        return RunFolder(self.root / name)

    def exists(self) -> bool:
        """Return whether a job was ever started here."""
        return self.state.is_dir()


@dataclass(frozen=True)
class ExportFolder(SealedFolder):
    """``DIR/``: the public split of a run, and models exported under their own guarantee; nothing else."""

    public = path_field("public", "The shards of the public split, identical to those of the run.")
    card = path_field("README.md", "The dataset card, with counts of the public split only.")
    croissant = path_field("croissant.json", "The data set described for other programs (Croissant, JSON-LD).")
    sums = path_field("SHA256SUMS", "The sha256 of every file except this one and ``_SUCCESS``, for ``sha256sum -c``.")

    def get_model_folder(self, name: str) -> ModelFolder:
        """The folder of an exported model, laid out as in a run."""
        return RunFolder(self.root).get_model_folder(name)


@dataclass(frozen=True)
class SyntheticFolder(ExportFolder):
    """``DIR/``: text generated by a model, and its guarantee; nothing else."""

    guarantee = path_field("guarantee.json", "The guarantee of the model and of the choice of its labels (JSON).")


def find_containing_job(run: RunFolder) -> JobFolder | None:
    """Return the job that ``run`` belongs to: its parent folder, if that is a job."""
    job = JobFolder(run.root.resolve().parent)
    return job if job.exists() else None


def find_runs(path: str | Path) -> list[RunFolder]:
    """Return the run at ``path``, or the runs of that job, by name; ``ConfigurationError`` if it is neither."""
    root = Path(path).resolve()
    if RunFolder(root).state.is_dir():
        return [RunFolder(root)]
    inside = sorted(root.iterdir()) if root.is_dir() else []
    runs = [RunFolder(path) for path in inside if not path.is_symlink() and RunFolder(path).state.is_dir()]
    if not runs and not JobFolder(root).exists():
        raise ConfigurationError(f"{path} is neither a run nor a job's folder of runs; give one of them")
    return runs


def is_export_folder(root: Path) -> bool:
    """Return whether ``root`` is an export, finished or not; False if its manifest is unreadable."""
    try:
        manifest = SealedFolder(root).manifest
        return explain_irregular(root, manifest.name) is None and is_export(read_json(manifest))
    except (OSError, ValueError, AttributeError):
        return False


def is_export(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest is of an export or of generated text: nothing in it is private."""
    return manifest.get("format") in (FORMAT, SYNTHETIC)


def _require_plain_name(name: str, kind: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a {kind}'s name must consist of letters, digits, '.', '_' or '-' (at most 64), but "
            f"'{shorten_name(name)}' does not; give another"
        )
    return name
