"""The check that a run holds nothing but what it declares: no file that passes for its word."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RedactoryError, some
from redactory.foundation.files import is_held, leaves, why_not_in
from redactory.pipelines.publish import read_sums
from redactory.pipelines.verify_seals import Check
from redactory.redaction import ModelFolder, RunFolder, SealedFolder, is_finished, read_manifest

_NAME = "no stray files"


def no_strays(run: RunFolder, manifest: dict[str, Any]) -> Check:
    """Wherever a reader looks for the run's word, nothing lies but what is declared and sealed.

    ``state/`` holds no word of the run, but for what is measured and sealed there: what else lies there, not
    known or left by work that is over, is named, and leaves the check open.
    """
    found = [*_top(run), *_data(run, manifest), *_models(run), *_unsealed(run)]
    if found:
        return Check(_NAME, False, f"{', '.join(sorted(found))}: not of this run; look at it, and remove it")
    begun = [f"models/{path.name} is not finished" for path in _unfinished(run)]
    unknown = ", ".join(sorted(_unknown_state(run)))
    left = ", ".join(sorted(_left_over(run)))
    told = [*begun, *([f"nothing here wrote {unknown}"] if unknown else ())]
    told += [f"{left} was left by work that is over"] if left else []
    kept = _kept(run)
    if told:
        beside = f"; {kept}" if kept else ""
        return Check(_NAME, True, f"{'; '.join(told)}: none of it is checked{beside}", made=False)
    if kept:
        return Check(_NAME, True, f"nothing undeclared lies where a reader looks for the run's word; {kept}")
    return Check(_NAME, True, "the run holds nothing but what it declares")


def _top(run: RunFolder) -> Iterator[str]:
    """What lies in the run's folder, or in ``audit/``, under a name that no run has."""
    of_folders = {folder.relative_to(run.root).parts[0] for folder in run.data_folders}
    others = (run.card, run.report, run.sums, run.state, run.models, run.releases, *_seals(run))
    yield from _besides(run, run.root, of_folders | {path.name for path in others})
    if run.releases.is_dir() and not any(run.releases.iterdir()):
        yield _name(run, run.releases)
    audit = run.spans.parent
    if audit.is_dir():
        yield from _besides(run, audit, {path.name for path in (run.spans, run.points, run.across)})
    if run.sums.is_file() and (wrong := _other_sums(run)):
        yield f"{run.sums.name} ({wrong})"


def _data(run: RunFolder, manifest: dict[str, Any]) -> Iterator[str]:
    """Files of the data folders that the manifest does not list, and listed ones that no run has."""
    there = {path for folder in run.data_folders if folder.is_dir() for path in leaves(folder)}
    listed = {run.root / name for name in manifest["files"]}
    own = {path for path in listed if path.parent in run.data_folders and path.match("part-*.parquet")}
    yield from (_name(run, path) for path in (there - listed) | (listed - own - {run.card}))


def _models(run: RunFolder) -> Iterator[str]:
    """What lies in ``models/`` and is not of a model, or not sealed with it."""
    for path in sorted(run.models.iterdir()) if run.models.is_dir() else ():
        if not path.is_dir():
            yield _name(run, path)
        elif is_finished(model := ModelFolder(path)):
            yield from _of_model(run, model)
        elif model.ledger.is_file():
            # begun: until it is finished, nothing that is said of it is sealed
            words = (model.guarantee, model.card, model.report, model.measured)
            there = (word for word in words if word.exists())
            yield from (f"{_name(run, word)} (of a model that is not finished)" for word in there)
        else:
            yield from (_name(run, file) for file in list(leaves(path)) or [path])


def _of_model(run: RunFolder, model: ModelFolder) -> Iterator[str]:
    results = {path.name for path in model.root.iterdir() if is_finished(model.result(path.name))}
    pages = {model.report.name, model.measured.name}
    yield from _besides(run, model.root, {*_sealed_names(model), *pages, *results})
    for name in sorted(results):
        result = model.result(name)
        yield from _besides(run, result.root, _sealed_names(result))


def _unfinished(run: RunFolder) -> list[Path]:
    """Models that were begun: a training is at work, or was interrupted."""
    there = sorted(path for path in run.models.glob("*") if path.is_dir())
    return [path for path in there if not is_finished(ModelFolder(path)) and any(path.iterdir())]


def _unsealed(run: RunFolder) -> Iterator[str]:
    """What was measured of the shards, and lies there without a seal: anybody may have written it."""
    for own in _measured(run):
        if own.root.exists() and not is_finished(own):
            there = list(_besides(run, own.root, ())) or [_name(run, own.root)]
            yield from (f"{name} (not sealed)" for name in there)


def _left_over(run: RunFolder) -> Iterator[str]:
    """What work on the run leaves behind where it was cut off; nothing while somebody is at work.

    Of a training that was begun and is not finished, the model is told of instead.
    """
    if is_held(run.lock):
        return
    of_begun = {path.name for path in _unfinished(run)}
    yield from (
        _name(run, path) for path in (run.work, run.cluster, run.staging, run.reissue.root) if path.exists()
    )
    for of in (run.root_key, run.checkpoint, run.meeting):
        due = {of(name).name for name in of_begun}
        yield from (_name(run, p) for p in run.state.glob(of("*").name) if p.name not in due)


def _kept(run: RunFolder) -> str:
    """What ``state/`` holds on purpose and no digest covers, in words; nothing where there is none."""
    samples = len(list(run.samples.iterdir())) if run.samples.is_dir() else 0
    tracebacks = len(run.tracebacks())
    held = [f"{some(samples, 'sample')} with original text"] if samples else []
    held += [f"{some(tracebacks, 'traceback')} that can quote it"] if tracebacks else []
    held += ["the records of Prefect"] if run.orchestrator.exists() else []
    return f"state/ holds {', '.join(held)}, which no digest covers" if held else ""


def _measured(run: RunFolder) -> tuple[SealedFolder, ...]:
    return run.recall, run.redaction, run.gate


def _unknown_state(run: RunFolder) -> Iterator[str]:
    files = (run.lock, run.journal, run.data_key, run.release_log)
    folders = (run.work, run.cluster, run.staging, run.samples, run.orchestrator, run.reissue.root)
    sealed = _measured(run)
    names = {path.name for path in (*files, *folders, *(own.root for own in sealed), *run.tracebacks())}
    for path in (run.root_key("*"), run.checkpoint("*"), run.meeting("*")):
        names |= {found.name for found in run.state.glob(path.name)}
    yield from _besides(run, run.state, names)
    for own in sealed:
        if is_finished(own):
            yield from _besides(run, own.root, _sealed_names(own))


def _besides(run: RunFolder, folder: Path, known: Collection[str]) -> Iterator[str]:
    """The names, seen from the run, of what lies in ``folder`` and is not ``known``; files of folders too."""
    for path in folder.iterdir():
        if path.name not in known:
            inside = [] if path.is_symlink() or not path.is_dir() else list(leaves(path))
            yield from (_name(run, file) for file in inside or [path])


def _sealed_names(folder: SealedFolder) -> set[str]:
    """What the manifest of a finished folder lists, and what seals it; only that where it cannot be read."""
    listed: Iterable[str] = ()
    # what cannot be read is told of by the check of the model
    with suppress(RedactoryError, KeyError):
        listed = read_manifest(folder)["files"]
    return {*listed, *(path.name for path in _seals(folder))}


def _seals(folder: SealedFolder) -> tuple[Path, Path, Path]:
    return folder.manifest, folder.signature, folder.success


def _other_sums(run: RunFolder) -> str | None:
    """What ``SHA256SUMS`` says otherwise than the manifest; what goes on being written is left out."""
    try:
        said = read_sums(run.sums.read_text(encoding="utf-8"))
    except (RedactoryError, ValueError):
        return "it cannot be read"
    due = {name: entry["sha256"] for name, entry in read_manifest(run)["files"].items()}
    due[run.manifest.name] = file_sha256(run.manifest)
    wrong = sorted(name for name, digest in due.items() if said.get(name) != digest)
    if wrong:
        return f"it says another sha256 of {wrong[0]}"
    # the data key was there, and may have been shredded since
    lacking = sorted(n for n in said if why_not_in(run.root, n) and run.root / n != run.data_key)
    return f"it has a line for {lacking[0]}, which is not there" if lacking else None


def modes(run: RunFolder) -> Check:
    """Nobody but its owner can write to the run, nor read its private part; ``state/`` is closed."""
    private = {path.relative_to(run.root).parts[0] for path in run.data_folders if path != run.public}
    inside = _tree(run.root, (run.orchestrator, run.cluster, run.samples))

    def closed(path: Path) -> bool:
        return path == run.state or path.relative_to(run.root).parts[0] in private

    wide = [path for path in inside if loose(path, closed(path))]
    return told_of_modes(run.root, [run.root, *wide] if loose(run.root, private=False) else wide)


def told_of_modes(root: Path, wide: list[Path]) -> Check:
    """The check of the modes below ``root``, where those of ``wide`` let others in."""
    named = [f"{path.relative_to(root).as_posix()} ({path.stat().st_mode & 0o7777:04o})" for path in wide]
    if named:
        return Check("modes", False, f"{', '.join(named)}: others can read or write there; chmod go-rwx")
    return Check("modes", True, "nobody but the owner can write, nor read what is private")


def _tree(folder: Path, but: Collection[Path]) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink() and path not in but:
            yield from _tree(path, but)


def loose(path: Path, private: bool) -> bool:
    """Whether others can write to what lies at ``path``, or read it although it is ``private``."""
    mode = path.lstat().st_mode
    barred = stat.S_IWGRP | stat.S_IWOTH | (stat.S_IRWXG | stat.S_IRWXO if private else 0)
    barred |= stat.S_ISUID | stat.S_ISGID if stat.S_ISREG(mode) else 0
    return bool(mode & barred) and not stat.S_ISLNK(mode)


def is_exactly(path: Path, content: bytes) -> bool:
    """Whether the file at ``path`` holds ``content``; of one of another length nothing is read."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _name(run: RunFolder, path: Path) -> str:
    return path.relative_to(run.root).as_posix()
