"""The example's service in a folder: it checks what comes, and loses nothing that it acknowledged."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ldp_store import Service
from ldp_wire import format_message

from redactory.foundation.errors import InputError, RunStateError
from redactory.training.ldp.server import LdpServer
from tests.training.ldp.ldp_sides import NO, YES, a_message, labelled_rows, service_sides


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"label": None}, "purpose"),
        ({"encoder": "00" * 32}, "encoder"),
        ({"label": 2}, "label"),
        ({"step": 1}, "step"),
        ({"values": np.zeros(5, np.float32)}, "shape"),
        ({"values": np.zeros((2, 4), np.float32)}, "shape"),
        ({"values": np.full(4, 1e13, np.float32)}, "values"),
    ],
)
def test_a_message_of_another_service_is_refused_and_none_beside_it_taken(changes: dict[str, Any], key: str) -> None:
    _, server = service_sides()
    good = a_message(slot="1b" * 16)
    with pytest.raises(InputError, match=rf"message of slot {'0a' * 16}: {key} "):
        server.receive(good, a_message(**changes))
    with pytest.raises(RunStateError, match="no training message"):
        server.train()


def test_a_slot_keeps_its_label_and_the_room_for_slots_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = service_sides(sampling={"kind": "fixed", "sends": 3})
    with pytest.raises(InputError, match="label"):
        server.receive(a_message(), a_message(step=1, label=0))
    server.receive(a_message())
    with pytest.raises(InputError, match="label"):
        server.receive(a_message(step=1, label=0))
    monkeypatch.setattr("ldp_store.MOST_VALUES", 8)
    server.receive(a_message(step=1), a_message(slot="1a" * 16))
    with pytest.raises(InputError, match="all the slots"):
        server.receive(a_message(slot="3a" * 16))


def test_a_service_in_a_folder_needs_no_saving(tmp_path: Path) -> None:
    nine = {"kind": "fixed", "sends": 9}
    user, server = service_sides(sampling=nine)
    sent = list(user.make_training_messages(*labelled_rows(12)))
    questions = list(user.make_query_messages([YES, NO]))
    server.create(tmp_path / "service")
    with Service.opened(tmp_path / "service") as service:
        with pytest.raises(RunStateError, match="not trained"):
            service.answer(questions)
        with pytest.raises(RunStateError, match="no training message"):
            service.train()
        service.receive(*sent[:50])
    with Service.opened(tmp_path / "service") as service:
        service.receive(*sent, *sent)
        first, answers = service.train(), service.answer(questions)
    with pytest.raises(RunStateError, match="closed"):
        service.receive(a_message())
    assert LdpServer.load(tmp_path / "service").answer(questions) == answers
    with Service.opened(tmp_path / "service") as again:
        assert again.answer(questions) == answers
        assert again.train() == first
    # one that lived in memory learns the same
    server.receive(*sent)
    assert (server.train(), server.answer(questions)) == (first, answers)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_of_a_journal_that_was_cut_off_every_whole_line_counts(tmp_path: Path, kept: int) -> None:
    """At whatever octet a kill cut the last line off, it goes on from there."""
    _, server = service_sides()
    server.create(tmp_path / "service")
    journal = tmp_path / "service" / "received.jsonl"
    lines = [f"{format_message(a_message(slot=f'{n:032x}'))}\n" for n in range(kept + 1)]
    for cut in (0, 1, 100, len(lines[-1]) - 1):
        journal.write_text("".join(lines[:-1]) + lines[-1][:cut])
        with Service.opened(tmp_path / "service") as service:
            assert len(service._slots) == kept
            service.receive(a_message())
        assert journal.read_text() == "".join([*lines[:-1], f"{format_message(a_message())}\n"])
    journal.write_text("".join([*lines[:-1], "{}\n", lines[-1]]))
    with (
        pytest.raises(InputError, match=rf"received.jsonl, line {kept + 1} is damaged"),
        Service.opened(tmp_path / "service"),
    ):
        pass


def test_what_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    """The disk is full: nothing of the messages counts, and nothing is taken until it is opened again."""
    _, server = service_sides()
    server.create(tmp_path / "service")
    with Service.opened(tmp_path / "service") as service:
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
    with Service.opened(tmp_path / "service") as service:
        assert len(service._slots) == 1
        service.receive(a_message())
        assert service.train()["messages"] == 2


def test_what_receives_no_messages_is_not_opened(tmp_path: Path) -> None:
    service_sides()[1].save(tmp_path)
    with pytest.raises(InputError, match="not a service"), Service.opened(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["service.json"]
