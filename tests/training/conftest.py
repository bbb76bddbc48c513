"""A small finished run, written by hand, and models trained on it once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import seal_folder
from redactory.redaction.shards import PRIVATE, PUBLIC, VAULT, list_parts, write_part
from redactory.training import LstmLanguageModel, TrainSettings, train_model
from redactory.training.accounting import Spending, Spendings
from redactory.training.mechanisms.mechanism import parse_mechanism_json
from redactory.training.models.settings import LstmSettings
from redactory.training.train import build_model
from redactory.training.vocabulary import Vocabulary

GREETINGS = ("Hello", "Good morning", "Welcome back", "Thank you", "Good evening", "Nice to hear from you")
QUESTIONS = ("how can I help you", "what can I do for you", "where is the parcel", "what is the problem")
PUBLIC_TEXTS = [f"{greeting}, {question}{end}" for greeting in GREETINGS for question in QUESTIONS for end in "?!"]
PRIVATE_TEXTS = [
    f"{greeting}, my name is {MASK} and the code is {number}." for greeting in GREETINGS for number in range(100, 108)
]
SMALL_SETTINGS: dict[str, Any] = {
    "recipe": "fixed",
    "vocabulary_size": 100,
    "epochs": 2,
    "sampling_rate": 0.25,
    "noise_multiplier": 1.0,
    "model": {"embedding_size": 8, "hidden_size": 12},
    "public_batch_size": 8,
    "min_public_steps": 2,
    "group_sizes": (),
    "threads": 1,
    "seed": 7,
}


def make_small_settings(**changes: Any) -> TrainSettings:
    """Settings of a training that takes well under a second."""
    return TrainSettings(**{**SMALL_SETTINGS, **changes})


def make_initial_model(settings: TrainSettings, stream: RandomStream, vocabulary: Vocabulary) -> Any:
    """The model that ``redactory train`` starts from."""
    model = build_model(settings, vocabulary)
    model.network.initialise(stream)
    model.network.to(settings.device)
    return model


def read_spendings(path: Path) -> Spendings:
    """What the budget file at ``path`` has reserved."""
    bodies = [record.body for record in read_records(path)[1:]]
    return tuple(Spending(parse_mechanism_json(one["mechanism"]), one["steps"], one["rows"]) for one in bodies)


def build_lstm(
    vocabulary: int, embedding: int, hidden: int, kind: type[LstmLanguageModel] = LstmLanguageModel
) -> LstmLanguageModel:
    """A language model of these sizes, not yet initialised."""
    return kind(vocabulary, LstmSettings(embedding_size=embedding, hidden_size=hidden))


def write_run(
    root: Path, public: list[str] | None = None, private: list[str] | None = None, **manifest: Any
) -> RunFolder:
    """A sealed run folder with these sides, its vault holding both, the names put back."""
    run = RunFolder(root)
    public = PUBLIC_TEXTS if public is None else public
    private = PRIVATE_TEXTS if private is None else private
    original = public + [text.replace(MASK, "Ada Smith") for text in private]
    write_part(
        run.public / "part-00000.parquet",
        pa.table({"example_id": [f"p{i}" for i in range(len(public))], "text": public}, schema=PUBLIC),
    )
    rows = range(len(private))
    columns = {
        "example_id": [f"q{i}" for i in rows],
        "user": ["u" for _ in rows],
        "text": private,
        "reasons": [["mask"] for _ in rows],
    }
    write_part(run.private / "part-00000.parquet", pa.table(columns, schema=PRIVATE))
    everything: dict[str, Any] = {name: [""] * len(original) for name in VAULT.names}
    everything.update(example_id=list(range(len(original))), text=original)
    write_part(run.vault / "part-00000.parquet", pa.table(everything, schema=VAULT))
    body = {
        "format": "redactory-run/1",
        "uncovered": {"kinds": {}, "languages": {}},
        "policies": {"strict": {}, "conservative": {}},
        "dedup": {"mode": "exact", "scope": "corpus", "rule": "S1", "group_size": 1},
        **manifest,
    }
    seal_folder(run, body, [path for folder in (run.public, run.private, run.vault) for path in list_parts(folder)])
    return run


@pytest.fixture(scope="session")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run without models; copy it before writing."""
    return write_run(tmp_path_factory.mktemp("run") / "RUN").root


@pytest.fixture(scope="session")
def trained(curated: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with one model of each trainer; read only."""
    run = RunFolder(tmp_path_factory.mktemp("trained") / "RUN")
    shutil.copytree(curated, run.root)
    for trainer in ("crt", "dpsgd", "sgd"):
        train_model(run, make_small_settings(trainer=trainer))
    return run


@pytest.fixture
def fresh_run(curated: Path, tmp_path: Path) -> Callable[[], RunFolder]:
    """Makes as many own copies of the finished run as tokens, but needs."""
    numbers = itertools.count()
    return lambda: RunFolder(Path(shutil.copytree(curated, tmp_path / f"RUN-{next(numbers)}")))
