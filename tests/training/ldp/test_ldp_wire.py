"""The wire: a real client and server on the loopback address, and every octet between them on record."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError, InputError, RunStateError
from redactory.training.ldp import wire_client, wire_server
from redactory.training.ldp.message import Message, message_schema
from redactory.training.ldp.server import ServerSide
from redactory.training.ldp.wire_client import Client
from redactory.training.ldp.wire_server import WireServer, make_server
from tests.training.ldp.ldp_sides import a_message, sides

HIDDEN = {"kind": "hidden", "rate": 0.5, "steps": 4}
TEXTS = [
    "Penelope Brightwater",
    "owes the Zanzibarian consortium 4417982 guilders " * 40,
    "quokkas",
    "confidential: arbitration clause, termination upon insolvency, Übermäßigkeit",
]
NDJSON = {"Content-Type": "application/x-ndjson"}


class Wire:
    """A relay before a server: what the two said, in order, and faults on demand."""

    def __init__(self, port: int) -> None:
        self.said: list[bytes] = []
        self.heard: list[bytes] = []
        self.lost_answers = 0
        self._to = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def everything(self) -> bytes:
        return b"".join(self.said) + b"".join(self.heard)

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            lost, self.lost_answers = self.lost_answers > 0, max(0, self.lost_answers - 1)
            threading.Thread(target=_carry, args=(near, far, self.said, False), daemon=True).start()
            threading.Thread(target=_carry, args=(far, near, self.heard, lost), daemon=True).start()


def _carry(source: socket.socket, to: socket.socket, record: list[bytes], lost: bool) -> None:
    """Record and pass on; a ``lost`` answer is read and then the line is cut."""
    try:
        while data := source.recv(65536):
            if lost:
                break
            record.append(data)
            to.sendall(data)
    except OSError:
        pass
    finally:
        for end in (to, source) if lost else (to,):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def served(service: ServerSide, saved_to: Path | None = None) -> Iterator[tuple[WireServer, Wire]]:
    """The service behind a relay."""
    server = make_server(service, 0, saved_to=saved_to)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    wire = Wire(server.server_address[1])
    try:
        yield server, wire
    finally:
        wire.close()
        server.shutdown()
        server.server_close()


def _exchange(texts: list[str], **changes: Any) -> tuple[Wire, list[dict[str, Any]]]:
    """A training and questions about the same texts, over the wire."""
    user, service = sides(head={"epochs": 1}, **changes)
    with served(service) as (_, wire):
        client = Client(wire.url)
        labels = [row % 2 for row in range(len(texts))]
        assert client.send(user.training_messages(texts, labels)) > 0
        client.train()
        answers = user.read(client.ask(user.query_messages(texts)))
    return wire, [answer for answer in answers if answer is not None]


def _words_on(wire: bytes, texts: list[str]) -> list[str]:
    """Words of the texts that lie open in ``wire``, in whatever case or in base64."""
    words = {word for text in texts for word in re.findall(r"[^\W_]{4,}", text)}
    plain, found = wire.lower(), []
    for word in sorted(words):
        forms = [
            word.lower().encode(),
            word.lower().encode("latin-1"),
            json.dumps(word.lower()).strip('"').encode(),
        ]
        packed = [base64.b64encode(b"\0" * shift + word.encode())[4:-4] for shift in range(3)]
        if any(form in plain for form in forms) or any(len(p) > 5 and p in wire for p in packed):
            found.append(word)
    return found


@pytest.mark.parametrize("represent", ["latent", "token"])
def test_no_word_of_a_text_crosses_the_wire_and_no_length_shows(represent: str) -> None:
    wire, answers = _exchange(TEXTS, represent=represent, participation=HIDDEN)
    assert len(answers) == len(TEXTS)
    assert _words_on(wire.everything, TEXTS) == []
    said = b"".join(wire.said)
    lines = [line for line in said.split(b"\n") if line.startswith(b"{")]
    assert len(lines) == 2 * len(TEXTS) * HIDDEN["steps"]
    assert len({len(line) for line in lines}) == 1
    for line in lines:
        Message.from_json(line)
    rest = [line.strip().split(b":")[0] for line in said.split(b"\n") if line.strip() and b"{" not in line]
    first = {line for line in rest if b" /v1/" in line}
    assert first == {b"POST /v1/messages HTTP/1.1", b"POST /v1/train HTTP/1.1", b"POST /v1/queries HTTP/1.1"}
    assert set(rest) - first <= {b"Host", b"Accept-Encoding", b"Content-Length", b"Content-Type"}


def test_texts_of_other_lengths_say_as_many_octets() -> None:
    def octets(texts: list[str]) -> int:
        said = re.sub(rb"Host: [0-9.:]+", b"", b"".join(_exchange(texts, participation=HIDDEN)[0].said))
        return len(said)

    assert octets(TEXTS) == octets(["a", "", "b c", "d " * 9000])


def test_a_client_that_said_a_word_would_be_caught() -> None:
    user, service = sides()
    with served(service) as (_, wire):
        open_words = json.loads(next(user.training_messages(TEXTS[:1], [0])).to_json())
        body = json.dumps({**open_words, "slot": TEXTS[0]}).encode()
        with pytest.raises(InputError) as refusal:
            Client(wire.url)._ask("POST", "/v1/messages", body)
        packed = base64.b64encode(b"x" + TEXTS[1].encode())
        Client(wire.url)._exchange("POST", "/v1/messages", packed)
        assert _words_on(b"".join(wire.said), TEXTS[:2])[:2] == ["Brightwater", "Penelope"]
        assert "Zanzibarian" in _words_on(b"".join(wire.said), TEXTS[:2])
        assert _words_on(b"".join(wire.heard), TEXTS) == []
    assert "Penelope" not in str(refusal.value)


def test_answers_over_the_wire_are_those_of_one_process(tmp_path: Path) -> None:
    user, service = sides(head={"epochs": 3}, participation={"kind": "fixed", "sends": 2})
    sent = list(user.training_messages(["one", "two"] * 20, [0, 1] * 20))
    questions = list(user.query_messages(["one", "two", "three"]))
    service.receive_all(sent)
    told = service.train()
    here = service.answers(questions)
    _, remote = sides(head={"epochs": 3}, participation={"kind": "fixed", "sends": 2})
    with served(remote, tmp_path / "service") as (_, wire):
        client = Client(wire.url)
        before = client.schema()
        assert client.send(sent) == 80
        assert client.train() == told
        assert client.ask(questions) == here
        after = client.schema()
    assert (before["trained"], after["trained"]) == (False, True)
    assert after["message"] == message_schema()
    assert after["settings"]["noise_multiplier"] == 0.5
    assert (after["encoder"], after["shape"]) == (service.encoder, [4])
    assert ServerSide.load(tmp_path / "service").answers(questions) == here


def test_requests_are_cut_between_messages_and_a_slot_is_asked_about_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire_client, "BATCH_OCTETS", 1500)
    user, service = sides(head={"epochs": 1}, participation=HIDDEN)
    with served(service) as (_, wire):
        client = Client(wire.url)
        assert client.send(user.training_messages(["one", "two"] * 5, [0, 1] * 5)) == 40
        client.train()
        questions = list(user.query_messages(["one"] * 4))
        assert client.ask(questions) == service.answers(questions)
    said = b"".join(wire.said)
    assert said.count(b"POST /v1/messages") > 5
    assert said.count(b"POST /v1/queries") == 2


def test_an_answer_that_was_lost_costs_nothing_more() -> None:
    """The same octets go again, and the service counts them once."""
    user, service = sides()
    with served(service) as (_, wire):
        wire.lost_answers = 2
        assert Client(wire.url).send(user.training_messages(["one", "two"], [0, 1])) == 2
        assert service.train()["messages"] == 2
        lines = [line for line in b"".join(wire.said).split(b"\n") if line.startswith(b"{")]
        assert (len(lines), len(set(lines))) == (6, 2)
        wire.lost_answers = 3
        with pytest.raises(RunStateError, match="nothing answers"):
            Client(wire.url).send([a_message(slot="5c" * 16)])


def test_users_who_send_at_once_all_arrive() -> None:
    _, service = sides()
    with served(service) as (_, wire):
        users = [sides(seed=seed)[0] for seed in range(6)]

        def send(user: Any) -> None:
            Client(wire.url).send(user.training_messages(["one", "two"] * 10, [0, 1] * 10))

        threads = [threading.Thread(target=send, args=(user,)) for user in users]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert service.train()["slots"] == 120


def _raw(port: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_what_is_refused_is_refused_as_json_that_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    word = "zanzibarian"
    _, service = sides()
    good, foreign = (m.to_json().encode() for m in (a_message(), a_message(encoder="00" * 32)))

    def sized(body: bytes) -> dict[str, str]:
        return {**NDJSON, "Content-Length": str(len(body))}

    asks = a_message(purpose="query", label=None).to_json().encode()
    cases: list[tuple[int, str, str, bytes, dict[str, str]]] = [
        (404, "POST", f"/v1/{word}", b"", sized(b"")),
        (404, "GET", "/v1/messages", b"", {}),
        (501, "DELETE", f"/v1/{word}", b"", {}),
        (400, "POST", "/v1/messages", word.encode(), sized(word.encode())),
        (400, "POST", "/v1/messages", good + b"\n" + foreign, sized(good + b"\n" + foreign)),
        (400, "POST", "/v1/queries", b"{}", sized(b"{}")),
        (409, "POST", "/v1/queries", asks, sized(asks)),
        (409, "POST", "/v1/train", b"", sized(b"")),
        (411, "POST", "/v1/messages", b"", NDJSON),
        (411, "POST", "/v1/messages", b"0\r\n\r\n", {**NDJSON, "Transfer-Encoding": "chunked"}),
        (411, "POST", "/v1/messages", b"", {**NDJSON, "Content-Length": "-5"}),
        (413, "POST", "/v1/messages", b"", {**NDJSON, "Content-Length": "9" * 9}),
        (413, "POST", "/v1/messages", b"", {**NDJSON, "Content-Length": "9" * 5000}),
        (415, "POST", "/v1/messages", good, {**sized(good), "Content-Type": "text/plain"}),
    ]
    with served(service) as (server, _):
        for status, method, path, body, headers in cases:
            found, told = _raw(server.server_address[1], method, path, body, headers)
            assert (found, set(told), set(told["error"])) == (status, {"error"}, {"kind", "message"}), path
            assert word not in json.dumps(told)
        # nothing of a refused batch was taken, and the service is alive
        assert _raw(server.server_address[1], "POST", "/v1/train", b"", sized(b""))[0] == 409

        def fails(*_: Any) -> None:
            raise ValueError(word)

        monkeypatch.setattr(service, "receive_all", fails)
        found, told = _raw(server.server_address[1], "POST", "/v1/messages", good, sized(good))
        assert (found, word in json.dumps(told)) == (500, False)


def test_a_request_is_bounded_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_server, "LARGEST_BODY", 100)
    _, service = sides()
    with served(service) as (_, wire), pytest.raises(InputError, match=r"HTTP 413.*100 octets"):
        Client(wire.url).send([a_message()])


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://127.0.0.1:text"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--url"):
        Client(url)


def test_nobody_there_and_a_taken_port_are_told() -> None:
    _, service = sides()
    with served(service) as (server, _):
        port = server.server_address[1]
        with pytest.raises(ConfigurationError, match="--port"):
            make_server(service, port)
    with pytest.raises(RunStateError, match="nothing answers"):
        Client(f"http://127.0.0.1:{port}").schema()
