"""``redactory ldp``: an encoder, a service in one process and over a wire, budgets, and what is refused."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.training.budget import BudgetExceeded
from redactory.training.ldp.server import ServerSide
from redactory.training.ldp.wire_server import WireServer, make_server

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
    told = as_json(
        "encoder", "--public", str(public), "--out", str(folder / "encoder"), *settings, "--set", SMALL
    )
    assert told["classes"] == ["clerk", "customer"]
    told = as_json(
        *("train", str(users), "--encoder", str(folder / "encoder"), "--out", str(folder / "service")),
        *("--set", "noise_multiplier=0.5", *LESS),
    )
    assert (told["messages"], told["slots"], told["users"]) == (60, 60, 6)
    return folder


@pytest.fixture
def listening(made: Path) -> Iterator[tuple[str, WireServer]]:
    """The trained service over HTTP."""
    server = make_server(ServerSide.load(made / "service"), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", server
    server.shutdown()
    thread.join()
    server.server_close()


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


def test_accuracy_is_better_than_chance_and_noise_costs_some(made: Path) -> None:
    test = ("--test", str(made / "test.jsonl"), "--draws", "3")
    found = as_json("evaluate", str(made / "service"), "--encoder", str(made / "encoder"), *test)
    assert (found["texts"], found["draws"]) == (40, 3)
    accuracy, rounding = found["accuracy"], 1e-9
    assert accuracy["least"] - rounding <= accuracy["mean"] <= accuracy["greatest"] + rounding
    assert found["accuracy_without_noise"] > 0.7
    assert found["accuracy"]["mean"] > 0.6
    page = carried_out("evaluate", str(made / "service"), "--encoder", str(made / "encoder"), *test)
    assert "no noise on queries" in page


def test_much_noise_leaves_nothing_to_learn(made: Path, tmp_path: Path) -> None:
    settings = {"noise_multiplier": 500.0, "max_tokens": 6, "head": {"epochs": 1}}
    redactory.ldp_train(made / "users.jsonl", made / "encoder", tmp_path / "s", settings)
    found = redactory.ldp_evaluate(tmp_path / "s", made / "encoder", made / "test.jsonl", draws=3)
    assert found["accuracy"]["mean"] < 0.75
    assert found["epsilon_sound"] < 0.02


def test_users_send_and_ask_over_a_wire(
    made: Path, listening: tuple[str, WireServer], tmp_path: Path
) -> None:
    url, server = listening
    users = ("--encoder", str(made / "encoder"), "--url", url, "--epsilon", "30")
    before = len(server.service._received)
    told = as_json("send", str(made / "users.jsonl"), *users, "--train")
    assert (told["messages"], told["sentences"], told["trained"]["slots"]) == (60, 60, before + 60)
    asked = tmp_path / "asked.txt"
    asked.write_text("\n".join(CLERK) + "\n")
    answers = as_json("ask", str(asked), *users)["answers"]
    assert [set(answer["probabilities"]) for answer in answers] == [{"clerk", "customer"}] * 3
    page = carried_out("ask", CUSTOMER[0], *users)
    assert "epsilon" in page
    assert "parcel" not in page


def test_a_service_with_too_little_noise_gets_nothing(made: Path, listening: tuple[str, WireServer]) -> None:
    url, server = listening
    before = len(server.service._received)
    with pytest.raises(GuaranteeError, match=r"epsilon 2\d.*accepts 8\. Nothing was sent"):
        redactory.ldp_send(made / "users.jsonl", made / "encoder", url)
    with pytest.raises(GuaranteeError, match="Nothing was sent"):
        redactory.ldp_ask(["my parcel"], made / "encoder", url)
    assert len(server.service._received) == before


def test_a_seed_that_a_service_names_is_not_drawn_from(made: Path, listening: tuple[str, WireServer]) -> None:
    url, server = listening
    server.service.settings = server.service.settings.model_copy(update={"seed": 7})
    got: list[bytes] = []
    plain = server.service.answers

    def watched(messages: Any) -> Any:
        got.extend(message.values.tobytes() for message in messages)
        return plain(messages)

    server.service.answers = watched  # type: ignore[method-assign]
    for _ in range(2):
        redactory.ldp_ask(["my parcel"], made / "encoder", url, epsilon=30.0)
    assert len(set(got)) == 2


def test_a_budget_counts_what_a_user_trains_with_and_asks(
    made: Path, listening: tuple[str, WireServer], tmp_path: Path
) -> None:
    url, server = listening
    one = rows(tmp_path / "one.jsonl", 2, users=1)
    given: dict[str, Any] = {"budget": tmp_path / "budget", "limit": 60.0, "epsilon": 30.0}
    redactory.ldp_send(one, made / "encoder", url, **given)
    user = "user-0@example.org"
    redactory.ldp_ask(["my parcel"], made / "encoder", url, user=user, **given)
    before = len(server.service._received)
    with pytest.raises(BudgetExceeded, match="Nothing was sent"):
        redactory.ldp_ask(["my parcel"] * 2, made / "encoder", url, user=user, **given)
    with pytest.raises(BudgetExceeded, match="Nothing was sent"):
        redactory.ldp_send(one, made / "encoder", url, **given)
    assert len(server.service._received) == before
    redactory.ldp_ask(["my parcel"], made / "encoder", url, user="another", **given)


def test_named_users_are_not_asked_for_under_another_budget(
    made: Path, listening: tuple[str, WireServer], tmp_path: Path
) -> None:
    """Queries on nobody's budget would not be counted with what somebody trained with."""
    given: dict[str, Any] = {"budget": tmp_path / "budget", "limit": 60.0, "epsilon": 30.0}
    redactory.ldp_ask(["my parcel"], made / "encoder", listening[0], **given)
    redactory.ldp_ask(["my parcel"], made / "encoder", listening[0], user="ann", **given)
    with pytest.raises(ConfigurationError, match=r"user: .*Nothing was sent"):
        redactory.ldp_ask(["my parcel"], made / "encoder", listening[0], **given)


def test_nothing_is_spent_on_a_question_that_cannot_be_answered(
    made: Path, listening: tuple[str, WireServer], tmp_path: Path
) -> None:
    url, server = listening
    trained, spent = server.service, tmp_path / "budget"
    server.service = ServerSide(trained.settings, encoder=trained.encoder, shape=trained.shape)
    with pytest.raises(RunStateError, match=r"not trained yet.*Nothing was sent"):
        redactory.ldp_ask(["my parcel"], made / "encoder", url, epsilon=30.0, budget=spent)
    assert not spent.exists()
    for missing in ("questions.jsonl", "no/such/questions.txt"):
        with pytest.raises(InputError, match="no file of this name"):
            carried_out("ask", missing, "--encoder", "e", "--url", url)


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


def test_serving_starts_anew_and_saves_when_it_is_stopped(made: Path, tmp_path: Path) -> None:
    def stop(url: str) -> None:
        assert url.startswith("http://127.0.0.1:")
        raise KeyboardInterrupt

    settings = {"noise_multiplier": 3.0, "max_tokens": 6}
    told = redactory.ldp_serve(
        tmp_path / "new", port=0, encoder=made / "encoder", settings=settings, ready=stop
    )
    assert told["trained"] is False
    assert ServerSide.load(tmp_path / "new").settings.classes == ("clerk", "customer")
    assert json.loads((tmp_path / "new" / "guarantee.json").read_text())["noise_multiplier"] == 3.0
    with pytest.raises(ConfigurationError, match="set:"):
        redactory.ldp_serve(tmp_path / "new", port=0, settings=settings, ready=stop)


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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("not json", "row 2: a JSON object"),
        ('{"label": "clerk"}', "row 2: text"),
        ('{"text": "a secret", "label": "a secret"}', "row 2: label"),
        ('{"text": 3, "label": "clerk"}', "row 2: text"),
    ],
)
def test_a_bad_row_is_named_and_not_quoted(made: Path, tmp_path: Path, line: str, told: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"text": "my parcel", "label": "customer"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=told) as refused:
        redactory.ldp_train(bad, made / "encoder", tmp_path / "s", {"max_tokens": 6})
    assert "secret" not in str(refused.value)


def test_settings_and_folders_are_checked(made: Path, tmp_path: Path) -> None:
    users, encoder = made / "users.jsonl", made / "encoder"
    with pytest.raises(ConfigurationError, match=r"participation\.hidden\.rate"):
        redactory.ldp_train(
            users, encoder, tmp_path / "a", {"participation.kind": "hidden", "participation.steps": 3}
        )
    with pytest.raises(ConfigurationError, match="no_such_key"):
        redactory.ldp_train(users, encoder, tmp_path / "b", {"no_such_key": 1})
    with pytest.raises(ConfigurationError, match="--budget"):
        redactory.ldp_train(users, encoder, tmp_path / "c", {"budget": {"path": "x", "epsilon": 1.0}})
    with pytest.raises(RunStateError, match="not empty"):
        redactory.ldp_train(users, encoder, made / "service")
    with pytest.raises(ConfigurationError, match="YAML"):
        carried_out("train", str(users), "--encoder", str(encoder), "--out", "d", "--set", "seed=[")
    with pytest.raises(InputError, match="no service"):
        redactory.ldp_evaluate(tmp_path, encoder, users)
