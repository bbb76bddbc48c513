"""``redactory ldp`` and the service of the example: encoder, training, budgets, and what is refused."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ldp_store import Service, create_service
from ldp_user import User
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.training.guarantee.budget import BudgetExceeded

CLERK = ("thank you for calling", "let me check that now", "may i have your name")
CUSTOMER = ("my parcel never arrived", "the invoice looks wrong", "please cancel my order")
SMALL = "model={kind: bilstm, embedding_size: 8, hidden_size: 8}"
LESS = ("--set", "max_tokens=6", "--set", "head.epochs=12", "--set", "head.hidden_size=8")


def rows(path: Path, count: int, users: int = 6, *, pairs: bool = False) -> Path:
    draw = random.Random(path.name)
    with path.open("w") as file:
        for number in range(count):
            said, label = (CLERK, "clerk") if draw.random() < 0.5 else (CUSTOMER, "customer")
            row = {"user_id": f"user-{number % users}@example.org", "text": draw.choice(said), "label": label}
            if pairs:
                other = draw.choice((CLERK, CUSTOMER))
                row |= {"text_b": draw.choice(other), "label": "same" if other is said else "different"}
            file.write(json.dumps(row) + "\n")
    return path


def carried_out(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["ldp", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def as_json(*arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(carried_out(*arguments, "--json"))
    return value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, rows of users and a service that learnt from them."""
    folder = tmp_path_factory.mktemp("ldp")
    public, users = rows(folder / "public.jsonl", 120), rows(folder / "users.jsonl", 60)
    rows(folder / "test.jsonl", 40)
    settings: tuple[str, ...]
    settings = ("--set", "epochs=25", "--set", "max_tokens=6", "--set", "threads=1", "--set", "dimension=4")
    settings += ("--set", "noise_multiplier=1", "--set", "learning_rate=0.01", "--set", "batch_size=16")
    told = as_json("train", "--public", str(public), "--encoder", str(folder / "encoder"), *settings, "--set", SMALL)
    assert told["classes"] == ["clerk", "customer"]
    told = as_json(
        *("train", str(users), "--encoder", str(folder / "encoder"), "--out", str(folder / "service")),
        *("--set", "noise_multiplier=0.5", *LESS),
    )
    assert (told["messages"], told["slots"], told["users"]) == (60, 60, 6)
    return folder


@pytest.fixture(scope="module")
def apart(made: Path) -> Path:
    """The folder of the example's service, which learnt from the same users."""
    head = {"epochs": 12, "hidden_size": 8}
    folder = made / "apart"
    create_service(folder, made / "encoder", {"noise_multiplier": 0.5, "max_tokens": 6, "head": head})
    with Service.opened(folder) as service:
        user = User(service.facts(), made / "encoder", epsilon=30.0)
        assert _sent(user, made / "users.jsonl", service) == 60
        service.train()
    return folder


@pytest.fixture
def service(apart: Path, tmp_path: Path) -> Iterator[Service]:
    """The trained service, in a folder of the test's own."""
    shutil.copytree(apart, tmp_path / "service")
    with Service.opened(tmp_path / "service") as service:
        yield service


def test_a_service_has_its_card_and_no_text(made: Path) -> None:
    card = json.loads((made / "service" / "guarantee.json").read_text())
    assert card["holds"] is True
    assert card["encoder"]["kind"] == "public"
    assert card["noise_multiplier"] == 0.5
    written = b"".join(path.read_bytes() for path in (made / "service").iterdir())
    for words in (text.split() for text in CLERK + CUSTOMER):
        # two words that stand together: the card has English of its own
        for pair in pairwise(words):
            assert " ".join(pair).encode() not in written, pair
    assert b"example.org" not in written


def test_accuracy_and_epsilon_are_shown_with_and_without_fictitious_questions(made: Path) -> None:
    given = ("evaluate", str(made / "service"), "--encoder", str(made / "encoder"))
    given += ("--test", str(made / "test.jsonl"), "--draws", "2")
    found, rounding = as_json(*given), 1e-9
    assert (found["texts"], found["draws"]) == (40, 2)
    accuracy = found["accuracy"]
    assert accuracy["least"] - rounding <= accuracy["mean"] <= accuracy["greatest"] + rounding
    assert min(found["accuracy_without_noise"] - 0.1, accuracy["mean"]) > 0.6
    given += ("--set", "query.sampling={kind: secret_bernoulli, rate: 0.5, steps: 4}")
    with_them, without = as_json(*given)["questions"]
    assert (with_them["messages"], without["messages"]) == (4, 1)
    assert without["noise_multiplier"] == pytest.approx(0.5, abs=2e-4)
    assert with_them["noise_multiplier"] != without["noise_multiplier"]
    assert with_them["epsilon_sound"] == pytest.approx(without["epsilon_sound"], rel=1e-3)
    assert with_them["accuracy"]["mean"] > 0.5
    page = carried_out(*given)
    for words in ("hidden in 4 messages", "Without noise: ", "not a guarantee"):
        assert words in page
    with pytest.raises(ConfigurationError, match=r"set only query\.\*"):
        carried_out(*given, "--set", "noise_multiplier=1")


def test_a_service_whose_questions_hide_is_refused_where_they_cost_too_much(made: Path, tmp_path: Path) -> None:
    query = {"sampling": {"kind": "secret_bernoulli", "rate": 0.5, "steps": 3}}
    create_service(tmp_path / "own", made / "encoder", {"noise_multiplier": 3.0, "max_tokens": 6, "query": query})
    with Service.opened(tmp_path / "own") as service:
        facts = json.loads(json.dumps(service.facts()))
    cost = User(facts, made / "encoder").cost
    assert cost["query"]["epsilon_sound"] <= cost["epsilon_sound"] * 1.001
    facts["settings"]["query"]["noise_multiplier"] = 0.2
    with pytest.raises(GuaranteeError, match="costs a question"):
        User(facts, made / "encoder")


def _sent(user: User, data: Path, service: Service) -> int:
    return sum(service.receive_lines(body) for body in user.training(data))


def test_a_service_with_too_little_noise_gets_nothing(made: Path, service: Service) -> None:
    with pytest.raises(GuaranteeError, match=r"epsilon 2\d.*accepts 8\. Nothing was sent"):
        User(service.facts(), made / "encoder")


def test_a_seed_that_a_service_names_is_not_drawn_from(made: Path, service: Service) -> None:
    facts = service.facts()
    facts["settings"]["seed"] = 7
    said: list[bytes] = []

    def watched(body: bytes) -> Any:
        said.append(json.loads(body)["values"])
        return service.answer_lines(body)

    for _ in range(2):
        User(facts, made / "encoder", epsilon=30.0).ask(["my parcel"], watched)
    assert len(set(said)) == 2


HOSTILE = "clerk\x1b]0;owned\x07"


@pytest.mark.parametrize(
    "answers",
    [
        None,
        {},
        [None],
        [{"slot": "x", "class": [], "probabilities": {"clerk": 0.5, "customer": 0.5}}],
        [{"slot": "x", "class": HOSTILE, "probabilities": {HOSTILE: 0.5, "customer": 0.5}}],
        [{"slot": "x", "class": "clerk", "probabilities": {"clerk": 0.5}}],
        [{"slot": "x", "class": "clerk", "probabilities": {"clerk": HOSTILE, "customer": 0.5}}],
        [{"slot": "x", "class": "clerk", "probabilities": {"clerk": float("nan"), "customer": 0.5}}],
    ],
)
def test_answers_and_facts_that_were_not_agreed_on_are_refused(made: Path, service: Service, answers: Any) -> None:
    user = User(service.facts(), made / "encoder", epsilon=30.0)
    with pytest.raises(RunStateError, match="no service of this version"):
        user.ask(["my parcel"], lambda body: answers)
    named = {**service.facts()["settings"], "classes": ["customer", HOSTILE]}
    for facts in ({}, {"format": "redactory-ldp/9"}, {**service.facts(), "settings": named}):
        with pytest.raises(RunStateError, match="no service of this version"):
            User(facts, made / "encoder", epsilon=30.0)
    with pytest.raises(RunStateError, match="another encoder"):
        User({**service.facts(), "encoder": "00" * 32}, made / "encoder", epsilon=30.0)


def test_named_users_are_not_asked_for_under_another_budget(made: Path, service: Service, tmp_path: Path) -> None:
    """Queries on nobody's budget would not be counted with what somebody trained with."""
    side = User(service.facts(), made / "encoder", budget=tmp_path / "budget", limit=60.0, epsilon=30.0)
    side.ask(["my parcel"], service.answer_lines)
    side.ask(["my parcel"], service.answer_lines, user="ann")
    with pytest.raises(ConfigurationError, match=r"user: .*Nothing was sent"):
        side.ask(["my parcel"], service.answer_lines)


def test_a_new_service_has_learnt_nothing_and_nothing_is_spent_on_asking_it(made: Path, tmp_path: Path) -> None:
    settings = {"noise_multiplier": 3.0, "max_tokens": 6}
    card = create_service(tmp_path / "new", made / "encoder", settings)
    assert card["noise_multiplier"] == 3.0
    assert json.loads((tmp_path / "new" / "guarantee.json").read_text()) == card
    with Service.opened(tmp_path / "new") as service:
        assert service.settings.classes == ("clerk", "customer")
        user = User(service.facts(), made / "encoder", budget=tmp_path / "budget")
        with pytest.raises(RunStateError, match=r"not trained yet.*Nothing was sent"):
            user.ask(["my parcel"], service.answer_lines)
    assert not list((tmp_path / "budget").glob("*.jsonl"))
    with pytest.raises(RunStateError, match="not empty"):
        create_service(tmp_path / "new", made / "encoder", settings)


def test_an_encoder_s_own_text_is_not_protected(made: Path, tmp_path: Path) -> None:
    with pytest.raises(GuaranteeError, match="trained on, without noise"):
        redactory.ldp_train(made / "public.jsonl", made / "encoder", tmp_path / "s", {"max_tokens": 6})


def test_one_user_without_room_keeps_everybody_from_sending(made: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"budget": tmp_path / "budget", "limit": 100.0}
    settings = {"noise_multiplier": 1.0, "max_tokens": 6, "head": {"epochs": 1}}
    both = rows(tmp_path / "both.jsonl", 12, users=2)
    rows(tmp_path / "one.jsonl", 30, users=1)
    with both.open("a") as file:
        file.write((tmp_path / "one.jsonl").read_text())
    with pytest.raises(BudgetExceeded):
        redactory.ldp_train(both, made / "encoder", tmp_path / "s", settings, **given)
    assert not list((tmp_path / "budget").glob("*.jsonl"))
    assert not list((tmp_path / "s").iterdir())


def test_pairs_are_matched(made: Path, tmp_path: Path) -> None:
    users = rows(tmp_path / "pairs.jsonl", 40, pairs=True)
    told = as_json(
        *("train", str(users), "--encoder", str(made / "encoder"), "--out", str(tmp_path / "pairs")),
        *("--set", "pairs=true", "--set", "classes=[different, same]", "--set", "noise_multiplier=1", *LESS),
    )
    assert told["guarantee"]["sensitivity_in_words"] == "2·√2·C"
    found = redactory.ldp_evaluate(tmp_path / "pairs", made / "encoder", users, draws=1, limit=20)
    assert found["texts"] == 20
    with pytest.raises(ConfigurationError, match="classes"):
        redactory.ldp_train(users, made / "encoder", tmp_path / "other", {"pairs": True})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampling.kind": "secret_bernoulli", "sampling.steps": 3}, r"sampling\.secret_bernoulli\.rate"),
    ({"no_such_key": 1}, "no_such_key"),
]


def test_settings_and_folders_are_checked(made: Path, tmp_path: Path) -> None:
    users, encoder = made / "users.jsonl", made / "encoder"
    for settings, message in REFUSED:
        with pytest.raises(ConfigurationError, match=message):
            redactory.ldp_train(users, encoder, tmp_path / "a", settings)
    with pytest.raises(RunStateError, match="not empty"):
        redactory.ldp_train(users, encoder, made / "service")
    with pytest.raises(ConfigurationError, match="YAML"):
        carried_out("train", str(users), "--encoder", str(encoder), "--out", "d", "--set", "seed=[")
    with pytest.raises(InputError, match="is not a service"):
        redactory.ldp_evaluate(tmp_path, encoder, users)
