"""The example's service, a process of its own on the loopback address: kills, rivals, hostile clients."""

from __future__ import annotations

import base64
import json
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ldp_store import Service
from ldp_wire import format_bodies, format_message

from redactory.foundation.errors import InputError, RunStateError
from redactory.training.ldp.server import Message
from tests.child_processes import end_with_parent
from tests.training.ldp.ldp_sides import a_message, service_sides

EXAMPLE = Path(__file__).parents[3] / "examples" / "ldp_service"
NDJSON = b"Content-Type: application/x-ndjson\r\n"
HIDDEN = {"kind": "secret_bernoulli", "rate": 0.5, "steps": 4}
TEXTS = [
    "Penelope Brightwater",
    "owes the Zanzibarian consortium 4417982 guilders " * 40,
    "quokkas",
    "confidential: arbitration clause, termination upon insolvency, Übermäßigkeit",
]


@pytest.fixture(scope="module")
def client_of() -> Callable[[str], Any]:
    """The example's client of a URL."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import client
    finally:
        sys.path.remove(str(EXAMPLE))
    made: Callable[[str], Any] = client.Client
    return made


class Running:
    """A service that listens: its process and its port."""

    def __init__(self, folder: Path, descriptors: int = 1024) -> None:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        command = [sys.executable, str(EXAMPLE / "service.py"), str(folder), "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=limit, start_new_session=True
        )
        self.folder = folder
        self.url = self.process.stdout.readline().partition(" ")[0].strip()
        self.port = int(self.url.rpartition(":")[2] or 0)

    def raw(self, request: bytes) -> bytes:
        """Everything that answers these octets."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            found = b""
            with suppress(ConnectionError):  # a head too large is cut off while it is still being sent
                connection.sendall(request)
            with suppress(ConnectionError):
                while part := connection.recv(65536):
                    found += part
        return found


@contextmanager
def running(folder: Path, descriptors: int = 1024) -> Iterator[Running]:
    service = Running(folder, descriptors)
    with end_with_parent(group=service.process.pid):
        try:
            yield service
        finally:
            service.process.kill()
            service.process.communicate()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service for tests that leave nothing in it."""
    folder = tmp_path_factory.mktemp("shared") / "service"
    service_sides()[1].create(folder)
    with running(folder) as service:
        yield service


def _post(path: str, body: bytes = b"", head: bytes = NDJSON, host: bytes = b"127.0.0.1") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nHost: %s\r\n%s%s\r\n%s" % (path.encode(), host, head, length, body)


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path, client_of: Callable[[str], Any]) -> None:
    """Users send all the while; of what each was told is received, nothing may be missing."""
    service_sides()[1].create(tmp_path / "service")
    acknowledged: list[Message] = []
    many = threading.Semaphore(0)

    def send(client: Any, name: str) -> None:
        for number in range(200):
            message = a_message(slot=f"{name}{number:04x}" + "0a" * 12)
            try:
                client("messages", next(format_bodies([[message]])))
            except (RunStateError, InputError):
                return
            acknowledged.append(message)
            many.release()

    service = Running(tmp_path / "service")
    users = [threading.Thread(target=send, args=(client_of(service.url), f"000{user}")) for user in range(4)]
    for thread in users:
        thread.start()
    for _ in range(40):
        assert many.acquire(timeout=60)
    service.process.kill()
    service.process.communicate()
    for thread in users:
        thread.join()
    with Service.opened(tmp_path / "service") as again:
        assert len(acknowledged) >= 40
        before = len(again._slots)
        again.receive(*acknowledged)  # what is there already is not counted again
        assert len(again._slots) == before


def test_what_is_refused_is_refused_in_words_that_quote_nothing(shared: Running) -> None:
    word = b"zanzibarian"
    good, foreign = (format_message(m).encode() for m in (a_message(), a_message(encoder="00" * 32)))
    asks = format_message(a_message(label=None)).encode()
    two = NDJSON + b"Content-Length: 5\r\n"
    cases = [
        (400, b"GET /v1/schema HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
        (400, b"GET /v1/schema HTTP/1.1\r\n\r\n"),
        (400, b"GET /v1/schema HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"),
        (400, _post("/v1/train", host=b"zanzibarian.example:8780")),
        (400, _post("/v1/messages", good, two)),
        (400, _post("/v1/messages", good, NDJSON + b"Content-Length: -5\r\n")),
        (400, word + b"\r\n\r\n"),
        (404, _post(f"/v1/{word.decode()}")),
        (405, b"GET /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        (400, _post("/v1/messages", word)),
        (400, _post("/v1/messages", good + b"\n" + foreign)),
        (400, _post("/v1/queries", b"{}")),
        (409, _post("/v1/queries", asks)),
        (409, _post("/v1/train")),
        (413, b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 9000000\r\n\r\nx" % NDJSON),
        (415, _post("/v1/messages", good, b"Content-Type: text/plain\r\n")),
        (431, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: %s\r\n\r\n" % (b"a" * (1 << 20))),
    ]
    for status, request in cases:
        answer = shared.raw(request)
        found = int(answer.split()[1]) if answer else 431  # cut off before it could say so
        assert found == (400 if status == 431 and found == 400 else status), (status, request[:80], answer)
        assert word not in answer
        assert b"\r\nserver:" not in answer.lower()
    # nothing of a refused batch was taken, and the service is alive; nobody else opens its folder
    assert shared.raw(_post("/v1/train")).split()[1] == b"409"
    refused = pytest.raises(RunStateError, match=f"process {shared.process.pid}")
    with refused, Service.opened(shared.folder):
        pass


@pytest.mark.slow
def test_slow_large_and_many_connections_are_bounded(tmp_path: Path, client_of: Callable[[str], Any]) -> None:
    """Eighty that send nearly all of a large body or half a head, then two hundred, at few descriptors."""
    service_sides()[1].create(tmp_path / "service")
    with running(tmp_path / "service", descriptors=64) as service:
        process = psutil.Process(service.process.pid)
        assert service.raw(_post("/v1/train")).split()[1] == b"409"
        before, held, most = process.memory_info().rss, [], 0
        for number in range(80):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=20)
            connection.settimeout(2)
            held.append(connection)
            with suppress(OSError):
                if number % 2:
                    connection.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: loc")
                else:
                    connection.sendall(_post("/v1/messages", b"x" * (8 << 20))[:-1000])
            most = max(most, process.memory_info().rss)
        assert most - before < 150 << 20
        held += [socket.create_connection(("127.0.0.1", service.port), timeout=20) for _ in range(120)]
        for connection in held:
            connection.close()
        for _ in range(100):
            with suppress(OSError):
                if service.raw(_post("/v1/train")).split()[1:2] == [b"409"]:
                    break
            threading.Event().wait(0.1)
        client = client_of(service.url)
        assert client("messages", next(format_bodies([[a_message()]]))) == {"received": 1}
        assert client("train", b"")["messages"] == 1


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

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the service has died: whoever asks it must not wait
                near.close()
                continue
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


@pytest.mark.slow
def test_no_word_of_a_text_crosses_the_wire(tmp_path: Path, client_of: Callable[[str], Any]) -> None:
    user, server = service_sides(head={"epochs": 1}, represent="token", sampling=HIDDEN)
    server.create(tmp_path / "service")
    with running(tmp_path / "service") as service, closing(Wire(service.port)) as wire:
        client = client_of(wire.url)
        wire.lost_answers = 2
        for body in format_bodies([one] for one in user.make_training_messages(TEXTS, [0, 1, 0, 1])):
            client("messages", body)
        assert client("train", b"")["messages"] == len(TEXTS) * HIDDEN["steps"]
        questions = list(user.make_query_messages(TEXTS))
        answers = [one for body in format_bodies([questions]) for one in client("queries", body)["answers"]]
        assert all(user.combine_answers(answers))
    said = b"".join(wire.said)
    assert _words_on(said + b"".join(wire.heard), TEXTS) == []
    assert "Zanzibarian" in _words_on(base64.b64encode(b"x" + TEXTS[1].encode()), TEXTS)
    lines = [line for line in said.split(b"\n") if line.startswith(b"{")]
    assert (len(lines), len(set(lines))) == (4 * len(TEXTS) * HIDDEN["steps"], 2 * len(TEXTS) * HIDDEN["steps"])
    assert len({len(line) for line in lines}) == 1
    heads = {line.split(b":")[0] for line in said.split(b"\r\n") if b": " in line and b"{" not in line}
    assert heads <= {b"Host", b"Accept-Encoding", b"Content-Length", b"Content-Type"}
    # the service that was killed answers the same when it is opened again
    with Service.opened(tmp_path / "service") as again:
        assert again.answer(questions) == answers


def _words_on(wire: bytes, texts: list[str]) -> list[str]:
    """Words of the texts that lie open in ``wire``, in whatever case or in base64."""
    found, plain = [], wire.lower()
    for word in {word for text in texts for word in re.findall(r"[^\W_]{4,}", text)}:
        low = word.lower()
        forms = [low.encode(), low.encode("latin-1"), json.dumps(low).strip('"').encode()]
        packed = [base64.b64encode(b"\0" * shift + word.encode())[4:-4] for shift in range(3)]
        if any(form in plain for form in forms) or any(len(p) > 5 and p in wire for p in packed):
            found.append(word)
    return found


def test_a_refusal_s_words_cannot_write_to_a_terminal(client_of: Callable[[str], Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hostile() -> None:
            connection, _ = listening.accept()
            body = json.dumps({"error": {"message": "\x1b]0;owned\x07\x9b2J" + "é" + "x" * 999}}).encode()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 400 no\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            connection.close()

        thread = threading.Thread(target=hostile)
        thread.start()
        with pytest.raises(InputError, match=r"\(HTTP 400\): \]0;owned2Jx+$"):
            client_of(f"http://127.0.0.1:{listening.getsockname()[1]}")("schema")
        thread.join()
