"""The server's side: it learns from noise alone, counts a message once, and has no way to a text."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.training.ldp.message import Message
from redactory.training.ldp.server import Received, ServerSide
from tests.training.ldp.ldp_sides import a_message, settings_with, sides

FORBIDDEN = (
    "redactory.training.tokenizer",
    "redactory.training.data",
    "redactory.training.ldp.encoder",
    "redactory.training.ldp.user",
    "redactory.training.model",
    "redactory.training.models.recurrent",
    "redactory.detectors",
    "transformers",
    "tokenizers",
)
YES, NO = "granted", "refused entirely"


def _rows(count: int) -> tuple[list[str], list[int]]:
    return [YES if row % 2 else NO for row in range(count)], [row % 2 for row in range(count)]


def _accuracy(user: Any, server: ServerSide, texts: Any, labels: list[int]) -> float:
    answers = user.read(server.answers(list(user.query_messages(texts))))
    return float(np.mean([a["class"] == ("no", "yes")[y] for a, y in zip(answers, labels, strict=True)]))


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 0.5},
        {"noise_multiplier": 1.0, "participation": {"kind": "fixed", "sends": 4}},
        {"noise_multiplier": 0.6, "participation": {"kind": "hidden", "rate": 0.7, "steps": 5}},
        {"noise_multiplier": 0.5, "participation": {"kind": "hidden", "rate": 0.5, "steps": 6, "classes": 2}},
        {"query": {"participation": {"kind": "hidden", "rate": 0.5, "steps": 9}, "noise_multiplier": 0.5}},
        {"noise_multiplier": 0.3, "represent": "token", "head": {"epochs": 8, "hidden_size": 8}},
        {"noise_multiplier": 0.2, "pairs": True, "head": {"epochs": 30}},
    ],
    ids=["one send", "four sends", "hidden coins", "classes too", "fictitious questions", "tokens", "pairs"],
)
def test_classes_are_learnt_from_noisy_messages_and_asked_about_with_noise(changes: dict[str, Any]) -> None:
    user, server = sides(**{"head": {"epochs": 8}, **changes})
    texts, labels = _rows(400)
    if server.settings.pairs:
        texts = [((YES, NO)[n % 2], (YES, NO)[(n + (n // 2) % 2) % 2]) for n in range(400)]  # type: ignore[misc]
        labels = [int(a == b) for a, b in texts]  # type: ignore[misc]
    for message in user.training_messages(texts, labels):
        server.receive(Message.from_json(message.to_json()))
    summary = server.train()
    assert summary["slots"] == 400
    assert summary["loss"] < 0.5
    assert _accuracy(user, server, texts[:200], labels[:200]) > 0.85


def test_with_labels_at_random_nothing_is_learnt_and_shares_sum_to_one() -> None:
    user, server = sides(head={"epochs": 8})
    texts, labels = _rows(400)
    shuffled = list(np.random.default_rng(0).permutation(labels))
    server.receive(*user.training_messages(texts, shuffled))
    assert server.train()["loss"] > 0.6
    assert 0.2 < _accuracy(user, server, texts[:200], labels[:200]) < 0.8
    question = next(user.query_messages([YES]))
    answer = server.answers([question])[0]
    assert answer["slot"] == question.slot
    assert answer["class"] == max(answer["probabilities"], key=answer["probabilities"].get)
    assert list(answer["probabilities"]) == ["no", "yes"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert user.read([answer]) == [answer]
    assert server.answers([]) == []


def test_of_a_slot_the_mean_counts_and_a_message_that_comes_twice_once() -> None:
    received = Received((4,), 3)
    sent = [a_message(step=step, values=np.full(4, step + 1, np.float32)) for step in (2, 0)]
    for messages in ([*sent, *sent], [a_message(step=2)]):
        received.require_room(messages)
        received.add(messages)
    means, labels = received.means()
    np.testing.assert_array_equal(means, np.full((1, 4), 2.0))
    assert (received.messages, labels) == (2, [1])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"purpose": "query", "label": None}, "purpose"),
        ({"encoder": "00" * 32}, "encoder"),
        ({"label": 2}, "label"),
        ({"step": 1}, "step"),
        ({"values": np.zeros(5, np.float32)}, "shape"),
        ({"values": np.zeros((2, 4), np.float32)}, "shape"),
        ({"values": np.full(4, 1e13, np.float32)}, "values"),
    ],
)
def test_a_message_of_another_service_is_refused_and_none_beside_it_taken(
    changes: dict[str, Any], key: str
) -> None:
    _, server = sides()
    good = a_message(slot="1b" * 16)
    with pytest.raises(InputError, match=rf"message of slot {'0a' * 16}: {key} "):
        server.receive(good, a_message(**changes))
    with pytest.raises(RunStateError, match="no training message"):
        server.train()


def test_of_hidden_classes_the_one_that_most_messages_carry_counts() -> None:
    received = Received((4,), 5, labels=3)
    for step, label, value in ((0, 2, 4.0), (1, 1, 9.0), (2, 2, 6.0), (3, 0, 9.0)):
        one = a_message(step=step, label=label, values=np.full(4, value, np.float32))
        received.require_room([one])
        received.add([one, one])
    means, labels = received.means()
    assert (means.tolist(), labels) == ([[5.0] * 4], [2])
    received.add([a_message(step=4, label=1, values=np.full(4, 1.0, np.float32))])
    assert (received.means()[1], received.messages) == ([2, 1], 5)


def test_a_hidden_question_is_answered_by_message_and_its_user_knows_which_count() -> None:
    way = {"participation": {"kind": "hidden", "rate": 0.5, "steps": 4}, "noise_multiplier": 0.2}
    user, server = sides(head={"epochs": 8}, query=way)
    server.receive(*user.training_messages(*_rows(400)))
    server.train()
    sent = list(user.query_messages([YES, NO] * 20))
    answers = server.answers(sent)
    assert [(a["slot"], a["step"]) for a in answers] == [(m.slot, m.step) for m in sent]
    # what the server says is of the messages alone: it does not know which are true
    assert server.answers(sent[:1])[0] == answers[0]
    told = user.read(answers)
    right = [one["class"] == name for one, name in zip(told, ["yes", "no"] * 20, strict=True) if one]
    unknown = int((~user._coins.any(axis=0)).sum())
    assert sum(right) >= 38 - unknown
    assert len(right) == 40
    # what is missing, or is no answer to any message, is refused whether that message was true or not
    for number in range(8):
        for left in (answers[:number], [*answers[:number], {**answers[number], "step": 9}]):
            with pytest.raises(RunStateError, match="without an answer"):
                user.read([*left, *answers[number + 1 :]])


def test_a_slot_keeps_its_label_and_the_room_for_slots_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = sides(participation={"kind": "fixed", "sends": 3})
    with pytest.raises(InputError, match="label"):
        server.receive(a_message(), a_message(step=1, label=0))
    server.receive(a_message())
    with pytest.raises(InputError, match="label"):
        server.receive(a_message(step=1, label=0))
    monkeypatch.setattr("redactory.training.ldp.server.MOST_VALUES", 8)
    server.receive(a_message(step=1), a_message(slot="1a" * 16))
    with pytest.raises(InputError, match="all the slots"):
        server.receive(a_message(slot="3a" * 16))


def test_a_service_in_a_folder_needs_no_saving(tmp_path: Path) -> None:
    nine = {"kind": "fixed", "sends": 9}
    user, server = sides(participation=nine, budget={"path": tmp_path / "mine.budget", "epsilon": 1.0})
    sent = list(user.training_messages(*_rows(12)))
    questions = list(user.query_messages([YES, NO]))
    server.create(tmp_path / "service")
    with ServerSide.opened(tmp_path / "service") as service:
        with pytest.raises(RunStateError, match="not trained"):
            service.answers(questions)
        with pytest.raises(RunStateError, match="no training message"):
            service.train()
        service.receive(*sent[:50])
    with ServerSide.opened(tmp_path / "service") as service:
        service.receive(*sent, *sent)
        first, answers = service.train(), service.answers(questions)
    with pytest.raises(RunStateError, match="closed"):
        service.receive(a_message())
    again = ServerSide.load(tmp_path / "service")
    assert again.answers(questions) == answers
    assert again.settings.budget is None
    assert "mine.budget" not in (tmp_path / "service" / "service.json").read_text()
    assert again.train() == first
    # one that lived in memory learns the same
    server.receive(*sent)
    assert (server.train(), server.answers(questions)) == (first, answers)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_of_a_journal_that_was_cut_off_every_whole_line_counts(tmp_path: Path, kept: int) -> None:
    """At whatever octet a kill cut the last line off, it goes on from there."""
    _, server = sides()
    server.create(tmp_path / "service")
    journal = tmp_path / "service" / "received.jsonl"
    lines = [f"{a_message(slot=f'{n:032x}').to_json()}\n" for n in range(kept + 1)]
    for cut in (0, 1, 100, len(lines[-1]) - 1):
        journal.write_text("".join(lines[:-1]) + lines[-1][:cut])
        with ServerSide.opened(tmp_path / "service") as service:
            assert service._received.messages == kept
            service.receive(a_message())
        assert journal.read_text() == "".join([*lines[:-1], f"{a_message().to_json()}\n"])
    journal.write_text("".join([*lines[:-1], "{}\n", lines[-1]]))
    with (
        pytest.raises(InputError, match=rf"received.jsonl, line {kept + 1} is damaged"),
        ServerSide.opened(tmp_path / "service"),
    ):
        pass


def test_what_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    """The disk is full: nothing of the messages counts, and nothing is taken until it is opened again."""
    _, server = sides()
    server.create(tmp_path / "service")
    with ServerSide.opened(tmp_path / "service") as service:
        service.receive(a_message(slot="1b" * 16))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = (tmp_path / "service" / "received.jsonl").stat().st_size
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
        try:
            with pytest.raises(RunStateError, match="cannot be written"):
                service.receive(a_message())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        with pytest.raises(RunStateError, match="start the service again"):
            service.receive(a_message())
    with ServerSide.opened(tmp_path / "service") as service:
        assert service._received.messages == 1
        service.receive(a_message())
        assert service.train()["messages"] == 2


@pytest.mark.parametrize("content", [None, "{}", "[]", "text", '{"format": "redactory-ldp-service/3"}'])
def test_what_is_no_service_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "service.json").write_text(content)
    with pytest.raises(InputError, match="service"):
        ServerSide.load(tmp_path)


def test_a_service_needs_classes_and_their_names_cannot_write_to_a_terminal() -> None:
    with pytest.raises(ConfigurationError, match="classes"):
        ServerSide(settings_with(classes=()), encoder="00" * 32, shape=(4,))
    for name in ("\x1b]0;owned\x07", "a\nb", "\x9b2J", "\u202eevil", "\x00"):
        with pytest.raises(ValueError, match="no control characters"):
            settings_with(classes=("no", name))
    assert settings_with(classes=("nein, danke", "نمی\u200cخواهم")).classes[1]


def test_the_servers_code_cannot_reach_a_tokenizer_or_an_encoder() -> None:
    code = (
        "import sys, json, redactory.training.ldp.server; "
        "from pathlib import Path; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "redactory.training.ldp.server" in loaded
    assert [name for name in loaded if f"{name}.".startswith(tuple(f"{one}." for one in FORBIDDEN))] == []
