"""Through a training's steps, from wherever it stopped to the end."""

from __future__ import annotations

from redactory.foundation.errors import CheckFailed
from redactory.foundation.progress import Progress
from redactory.training.checkpoint import Checkpoint, Pace
from redactory.training.live import Told, nothing_told
from redactory.training.phases import Phase
from redactory.training.schedule import Schedule


def walk(
    schedule: Schedule,
    plain: Phase | None,
    noisy: Phase | None,
    checkpoint: Checkpoint,
    every: int,
    recorded: int,
    progress: Progress,
    told: Told = nothing_told,
    pretraining: Phase | None = None,
) -> None:
    """Carry out the steps that are not done; a checkpoint after ``every`` steps, each epoch and some time.

    ``pretraining`` makes the schedule's steps before all others.

    ``recorded`` is the number of noisy steps in the ledger; ``told`` is what the progress line adds to
    a noisy step: the epsilon spent so far.  ``CheckFailed`` where the checkpoint counts more than the ledger.
    """
    begun = checkpoint.read()
    if schedule.noisy_before(begun) > recorded:
        raise CheckFailed("the ledger lacks steps that the checkpoint counts: remove the model's folder")
    pace = Pace()
    for index in range(begun, schedule.total):
        remark = ""
        if index < schedule.before:
            assert pretraining is not None
            pretraining.step(index)
            work, number, of = "pretraining", index, schedule.before
        else:
            epoch, with_noise, number = schedule.place(index)
            phase = noisy if with_noise else plain
            assert phase is not None
            phase.step(number)
            remark = told(number + 1) if with_noise else ""
            kind, of = ("with noise", schedule.noisy) if with_noise else ("without noise", schedule.plain)
            work, number = f"epoch {epoch + 1}, {kind}", number - epoch * of
        done = index + 1
        if done % every == 0 or schedule.ends_epoch(done) or pace.due():
            pace.write(checkpoint, done)
        progress(work, number + 1, of, f"steps{remark}")
