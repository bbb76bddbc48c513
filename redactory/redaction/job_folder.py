"""The folder of a job: the runs of all its nights, and what is kept across them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redactory.foundation.folder_names import JOB
from redactory.redaction.folder import RunFolder


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
