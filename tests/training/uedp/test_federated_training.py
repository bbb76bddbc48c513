"""Whole trainings with ``uedp-alg1`` and ``user-level``: sealed, resumed, computed in processes, refused."""

from __future__ import annotations

import itertools
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, GuaranteeError, RedactoryError
from redactory.foundation.records import read_records
from redactory.redaction.folder import RunFolder
from redactory.training import TrainSettings, load_model, loop, make_guarantee_card, train_model
from redactory.training.mechanisms.ledger import NOISY_STEP
from redactory.training.mechanisms.mechanism import parse_mechanism_json
from redactory.training.uedp.federated_accounting import confirm_federated_epsilon
from redactory.training.unit_settings import PrivacyUnit
from tests.training.conftest import GREETINGS, PUBLIC_TEXTS
from tests.training.test_resume import Killed, killing
from tests.training.test_train import Interrupted, interrupt_after
from tests.training.uedp.unit_runs import Row, write_unit_run

NAMES = ("Ada Smith", "Bo Li", "Eve Stone")
USERS = 9
OPENING = ", my name is "


def write_run(root: Path, users: int = USERS) -> RunFolder:
    """A sealed run of four points a user: three names that all users share, and points without a name."""
    texts = [
        f"{GREETINGS[i % 6]}{OPENING}{NAMES[i % 3]} and the code is {100 + i}." if i % 4 else f"{GREETINGS[i % 6]}!"
        for i in range(4 * users)
    ]
    (root.parent / "public.txt").write_text("\n".join(PUBLIC_TEXTS) + "\n", encoding="utf-8")
    rows = [Row(f"u{i % users}", text) for i, text in enumerate(texts)]
    return write_unit_run(root, rows, names=dict.fromkeys(NAMES, "PERSON"))


def small(root: Path, trainer: str, federated: dict[str, Any] | None = None, **changes: Any) -> TrainSettings:
    """Settings of a training of six steps."""
    own = {"users": 20, "user_rate": 0.4, "max_users_per_entity": None, "local_batch_size": 2}
    return TrainSettings(
        **{
            "trainer": trainer,
            "name": "m",
            "public_text": root.parent / "public.txt",
            "federated": {**own, **(federated or {})},
            "epochs": 2,
            "noise_multiplier": 3.0,
            "model": {"embedding_size": 8, "hidden_size": 12},
            "threads": 1,
            "seed": 7,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run without models; copy it before writing."""
    return write_run(tmp_path_factory.mktemp("federated") / "RUN")


@pytest.fixture
def fresh(run: RunFolder, tmp_path: Path) -> Any:
    """Makes own copies of the run."""
    numbers = itertools.count()

    def make() -> RunFolder:
        root = Path(shutil.copytree(run.root, tmp_path / str(next(numbers)) / "RUN"))
        shutil.copy(run.root.parent / "public.txt", root.parent)
        return RunFolder(root)

    return make


@pytest.mark.parametrize(
    ("trainer", "federated", "protect", "relation"),
    [
        ("uedp-alg1", {}, PrivacyUnit.BOTH, "user-entity removal"),
        ("uedp-alg1", {"max_users_per_entity": 2}, PrivacyUnit.BOTH, "user-entity zero-out on a fixed graph"),
        ("user-level", {}, PrivacyUnit.USERS, "user removal"),
    ],
)
def test_a_training_is_sealed_with_the_card_of_its_ledger(
    trainer: str, federated: dict[str, Any], protect: PrivacyUnit, relation: str, fresh: Any
) -> None:
    own = fresh()
    summary = train_model(own, small(own.root, trainer, federated))
    folder = own.get_model_folder("m")
    records = read_records(folder.ledger)
    assert sum(record.type == NOISY_STEP for record in records) == summary["steps"] == 6
    card = make_guarantee_card(own, "m")
    mechanism = parse_mechanism_json(records[0].body["mechanism"])
    assert card["epsilon"] == confirm_federated_epsilon(mechanism, 6, 1e-5, protect).value
    assert relation in card["relation"]
    assert load_model(folder).compute_token_log_probs(["Hello"])
    told = folder.card.read_text() + folder.guarantee.read_text() + folder.ledger.read_text()
    assert not any(name in told for name in NAMES)


def test_killed_and_resumed_it_ends_with_the_same_bits(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_STEPS", 2)
    whole, trainer = fresh(), "uedp-alg1"
    with killing(-1) as seen:
        train_model(whole, small(whole.root, trainer, noise="float", pretraining_epochs=1))
    moments, source = seen[0], random.Random(trainer)
    own = fresh()
    settings = small(
        own.root, trainer, noise="float", pretraining_epochs=1, public_text=whole.root.parent / "public.txt"
    )
    for _ in range(3):
        with suppress(Killed), killing(source.randrange(1, moments)):
            train_model(own, settings)
    train_model(own, settings)
    assert file_sha256(own.get_model_folder("m").weights) == file_sha256(whole.get_model_folder("m").weights)


def test_without_a_lasting_key_another_process_goes_on(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none is set, every process draws its own digest key: entities must keep their coins."""
    own = fresh()
    settings = small(own.root, "uedp-alg1")
    monkeypatch.setenv("REDACTORY_KEY", "a" * 32)
    with pytest.raises(Interrupted):
        train_model(own, settings, interrupt_after(5))  # past the checkpoint of the first epoch
    monkeypatch.setenv("REDACTORY_KEY", "b" * 32)
    assert train_model(own, settings)["steps"] == 6


def test_too_many_users_are_refused_before_the_first_step(fresh: Any) -> None:
    own = fresh()
    with pytest.raises(ConfigurationError, match=r"federated\.users"):
        train_model(own, small(own.root, "uedp-alg1", {"users": USERS - 1}))
    assert not any(r.type == NOISY_STEP for r in read_records(own.get_model_folder("m").ledger))
    train_model(fresh(), small(own.root, "user-level", {"users": USERS - 1}))


@pytest.mark.slow
def test_another_users_number_in_the_ledger_is_seen(fresh: Any) -> None:
    own = fresh()
    train_model(own, small(own.root, "uedp-alg1"))
    ledger = own.get_model_folder("m").ledger
    ledger.write_text(ledger.read_text().replace('"users":20', '"users":2000'))
    with pytest.raises((GuaranteeError, RedactoryError)):
        make_guarantee_card(own, "m")
