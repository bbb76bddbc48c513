"""The scenes in which mistakes are made: a corpus, a finished run, a model, and what is wrong there."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import yaml

from redactory.foundation.canonical import file_sha256, get_package_version
from redactory.foundation.files import file_lock
from redactory.redaction import RunFolder

PRIVATE = ("Anna", "Miller", "0199", "dossier-", "person-")
"""Signs of the corpus that no message may show."""
CHEAP: dict[str, Any] = {
    "input": {"path": "rows.jsonl"},
    "output": "run",
    "segment": {"mode": "line"},
    "detect": {
        "tagger": None,
        "patterns": None,
        "lists": {"deny": [{"label": "NAME", "words": ["Anna Miller", "0199"]}]},
        "conservative": {"rules": []},
    },
    "train": {
        "model": {"embedding_size": 8, "hidden_size": 8},
        "trainer": "redact-only",
        "epochs": 1,
        "sampling_rate": 0.5,
        "expected_batch_size": 8,
        "min_public_steps": 1,
        "vocabulary_size": 300,
        "group_sizes": [],
        "threads": 1,
    },
}
_WORDS = ("garden", "kitchen", "weather", "market", "window", "summer", "letter", "travel")


def rows() -> list[dict[str, str]]:
    """48 rows, a third of them with a name and a number."""
    texts = ("we spoke of the {a} and the {b}", "the {a} is near the {b}", "Anna Miller, 0199, saw the {a}")
    return [
        {
            "id": f"dossier-{n}",
            "user_id": f"person-{n % 7}",
            "text": texts[n % 3].format(a=_WORDS[n % 8], b=_WORDS[(n // 8 + n) % 8]),
        }
        for n in range(48)
    ]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` put in, section by section."""
    both = {
        key: merged(base[key], value)
        if isinstance(value, Mapping) and isinstance(base.get(key), dict) and "kind" not in value
        else value
        for key, value in changes.items()
    }
    return {**base, **both}


@dataclass(frozen=True)
class Scene:
    """A folder for one command, what undoes the scene, and where a finished run with a model lies."""

    place: Path
    patch: pytest.MonkeyPatch
    stack: ExitStack
    finished: Callable[[], Path]

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.place / "run")


def _a_finished_run(scene: Scene) -> None:
    shutil.copytree(scene.finished(), scene.run.root, ignore=shutil.ignore_patterns("models"))


def _a_trained_model(scene: Scene) -> None:
    shutil.copytree(scene.finished(), scene.run.root)


def _without(*modules: str) -> Callable[[Scene], None]:
    def gone(scene: Scene) -> None:
        for module in modules:
            scene.patch.setitem(sys.modules, module, None)
            package, _, name = module.rpartition(".")
            if package in sys.modules:
                # where it was imported already, its package has it as well
                scene.patch.delattr(sys.modules[package], name, raising=False)

    return gone


def _not_installed(package: str) -> Callable[[Scene], None]:
    real = Distribution.from_name

    def found(name: str) -> Distribution:
        if name == package:
            raise PackageNotFoundError(name)
        return real(name)

    def gone(scene: Scene) -> None:
        _without(package)(scene)
        scene.patch.setattr(Distribution, "from_name", found)
        get_package_version.cache_clear()  # an earlier test of this process may have asked for it

    return gone


def _unfinished(scene: Scene) -> None:
    scene.run.success.unlink()


def _renamed(scene: Scene) -> None:
    scene.run.root.rename(scene.place / "moved")


def _newer(scene: Scene) -> None:
    manifest = json.loads(scene.run.manifest.read_text(encoding="utf-8"))
    manifest["format"] = "redactory-run/2"
    scene.run.manifest.write_text(json.dumps(manifest), encoding="utf-8")
    scene.run.success.write_text(file_sha256(scene.run.manifest) + "\n", encoding="utf-8")


def _changed(scene: Scene) -> None:
    with scene.run.card.open("a", encoding="utf-8") as file:
        file.write("a remark\n")


def _locked(scene: Scene) -> None:
    scene.run.state.mkdir(parents=True)
    scene.stack.enter_context(file_lock(scene.run.lock, str(scene.run.root)))


def _parquet_of_numbers(scene: Scene) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [1, 2, 3]}), scene.place / "rows.parquet")


def _tagger_of_another_version(scene: Scene) -> None:
    (scene.place / "tagger" / "tagger").mkdir(parents=True)
    (scene.place / "tagger" / "config.cfg").write_text("[nlp]\nlang = en\n")
    (scene.place / "tagger" / "tagger" / "cfg").write_text('{"labels": ["NAME"]}')


def _bytes(name: str, content: bytes) -> Callable[[Scene], None]:
    def written(scene: Scene) -> None:
        (scene.place / name).write_bytes(content)

    return written


def _ordinary_user(scene: Scene) -> None:
    """Nothing: see :func:`as_ordinary_user`, which the test calls the command by."""


def _closed_folder(scene: Scene) -> None:
    folder = scene.place / "closed"
    folder.mkdir()
    folder.chmod(0o500)
    scene.stack.callback(folder.chmod, 0o700)


def _closed_key(scene: Scene) -> None:
    (scene.place / "key").write_text("a key of more than sixteen bytes, long enough for all")
    (scene.place / "key").chmod(0)


def _full_disk(scene: Scene) -> None:
    from tests.pipelines.faults import Fault, Faults

    for name in ("fsync", "replace", "write"):
        scene.patch.setattr(os, name, getattr(os, name))
    Faults(Fault("full", "vault/part-#.parquet"), scene.run.root).install()


def _interrupted(scene: Scene) -> None:
    scene.run.state.mkdir(parents=True)
    shutil.copy(scene.finished() / "state" / "journal.jsonl", scene.run.journal)


def _latin_terminal(scene: Scene) -> None:
    """What a terminal of the locale C takes: ASCII."""
    scene.patch.setenv("PYTHONIOENCODING", "ascii")


SCENES: dict[str, Callable[[Scene], None]] = {
    "a finished run": _a_finished_run,
    "a trained model": _a_trained_model,
    "the run unfinished": _unfinished,
    "the run renamed": _renamed,
    "the run of a newer version": _newer,
    "the run changed": _changed,
    "the run locked": _locked,
    "the run begun": _interrupted,
    "no torch": _without("torch"),
    "no prefect": _without("prefect", "redactory.flows.prefect_flows", "redactory.flows.prefect_tasks"),
    "no stanza": _not_installed("stanza"),
    "no boto3": _without("boto3"),
    "no dask": _without("dask", "distributed", "redactory.flows.prefect_flows", "redactory.flows.prefect_tasks"),
    "no gcsfs": _without("gcsfs"),
    "a tagger of another version": _tagger_of_another_version,
    "an ordinary user": _ordinary_user,
    "a closed folder": _closed_folder,
    "a closed key": _closed_key,
    "a disk that fills up": _full_disk,
    "numbers in Parquet": _parquet_of_numbers,
    "rows in Latin-1": _bytes("rows.csv", "text\nAnna Miller geht spazieren schön\n".encode("latin-1")),
    "rows in UTF-16": _bytes("rows.csv", "text\nAnna Miller\n".encode("utf-16")),
    "a configuration in Latin-1": _bytes("job.yaml", "input: straße.jsonl\n".encode("latin-1")),
    "a gzip that is none": _bytes("rows.jsonl.gz", b'{"text": "Anna Miller"}\n'),
    "a gzip that is cut off": _bytes("rows.jsonl.gz", gzip.compress(b'{"text": "Anna Miller"}\n' * 90)[:-20]),
    "an empty folder": lambda scene: (scene.place / "empty").mkdir(),
    "no rows": lambda scene: (scene.place / "rows.jsonl").write_text(""),
}


def set_up(scene: Scene, given: tuple[str, ...], config: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write the corpus, the configuration and the files, and then put wrong what is to be wrong."""
    corpus = "".join(json.dumps(row) + "\n" for row in rows())
    job = yaml.safe_dump(merged(CHEAP, config))
    for name, content in {"rows.jsonl": corpus, "job.yaml": job, **files}.items():
        path = scene.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(content)
    for name in given:
        SCENES[name](scene)


def as_ordinary_user(work: Callable[[], None]) -> None:
    """``work``, without the rights by which root passes over modes: in a thread that has given them up."""
    if os.geteuid():
        work()
        return
    failed: list[BaseException] = []

    def without_rights() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert libc.capset(header, data) == 0
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=without_rights)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
