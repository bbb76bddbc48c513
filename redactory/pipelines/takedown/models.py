"""Which models learnt from a person, and what else knew her: told, for it cannot be taken back here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.evaluation.guarantee_words import figures
from redactory.foundation.errors import RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.records import RecordLog
from redactory.pipelines.releases.log import Event, history
from redactory.redaction import RunFolder, is_finished, read_manifest


def models_of(run: RunFolder) -> list[dict[str, str]]:
    """``[{"model", "trainer", "guarantee"}]`` of the finished models; the last is one line of the card.

    Every trainer learns from the shards or the vault of its run, so every one learnt from her points.
    """
    return [
        {
            "model": name,
            "trainer": str(read_manifest(run.model(name))["summary"]["trainer"]),
            "guarantee": _line(read_json(run.model(name).guarantee)),
        }
        for name in run.model_names()
    ]


def trainings_of(run: RunFolder) -> list[str]:
    """The trainings that were begun and are not finished; they cannot go on once the run was written anew.

    ``RunStateError`` where one is at work: it would learn from half of each release.
    """
    found = []
    for path in sorted(run.models.glob("*/ledger.jsonl")):
        if is_finished(run.model(path.parent.name)):
            continue
        if _is_written(path):
            raise RunStateError(
                f"{run.root.name}/models/{path.parent.name} is being trained: wait for it, or stop it"
            )
        found.append(path.parent.name)
    return found


def is_training(run: RunFolder) -> bool:
    """Whether somebody trains a model on ``run`` right now."""
    return any(
        _is_written(path)
        for path in run.models.glob("*/ledger.jsonl")
        if not is_finished(run.model(path.parent.name))
    )


def samples_of(run: RunFolder, points: set[int]) -> list[str]:
    """The samples of points to label in which one of ``points`` was drawn; they hold her text in the open."""
    found = []
    for path in sorted(run.samples.glob("*/draw.json")):
        if any(row["point_id"] in points for row in read_json(path)["rows"]):
            found.append(path.parent.name)
    # a draw that was cut off has no record of whom it drew
    found += [p.name for p in _folders(run.samples) if not (p / "draw.json").is_file()]
    return sorted(found)


def exports_of(run: RunFolder) -> list[dict[str, str]]:
    """When what may leave was copied, and the manifest of the copy: these are out of reach."""
    return [
        {key: str(record.body[key]) for key in ("time", "manifest") if key in record.body}
        for record in history(run)
        if record.type == Event.EXPORTED
    ]


def _is_written(ledger: Path) -> bool:
    try:
        RecordLog(ledger).close()
    except RunStateError:
        return True
    return False


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _line(card: dict[str, Any]) -> str:
    shown = figures(card)
    stated = next((figure for figure in shown if figure.stated), shown[0])
    return f"{stated.title}: {stated.text}"
