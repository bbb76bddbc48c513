"""The user's side of a service of local privacy: it carries messages and brings answers, and sees no text.

python client.py send DATA --encoder FOLDER --url URL [--budget FOLDER --limit ε] [--train]
python client.py ask TEXT... --encoder FOLDER --url URL [--budget FOLDER --limit ε --user ID]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from ldp_user import User

import redactory

TIMEOUT = 600.0
LARGEST_ANSWER = 64 << 20
_TRIES = 3
_HEADERS = {"Content-Type": "application/x-ndjson"}


class Client:
    """The service at ``url`` (http or https).

    A request that got no answer is sent again as it was: the same octets, so that nothing more of a
    sentence is released; the service counts a message once.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise redactory.ConfigurationError("--url: an address such as http://127.0.0.1:8780 is needed")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._below = parts.hostname, parts.port, parts.path.rstrip("/")

    def __call__(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        """The JSON object that answers: POST of ``body``, or GET where there is none."""
        status, data = self._exchange("GET" if body is None else "POST", f"{self._below}/v1/{path}", body)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if status != 200:
            raise redactory.InputError(f"the service refused (HTTP {status}): {_reason(value)}")
        if not isinstance(value, dict):
            raise redactory.RunStateError("what answers at --url is no service of this version")
        return value

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        status, data = 0, b""
        for attempt in range(_TRIES):
            time.sleep(attempt)
            connection = self._kind(self._host, self._port, timeout=TIMEOUT)
            try:
                connection.request(method, path, body, _HEADERS)
                answer = connection.getresponse()
                status, data = answer.status, answer.read(LARGEST_ANSWER)
            except (OSError, HTTPException):
                continue
            finally:
                connection.close()
            if status != 503:
                break
        if not status:
            raise redactory.RunStateError("nothing answers at --url: start service.py") from None
        return status, data


def _reason(value: Any) -> str:
    """The service's reason, as far as a terminal can be trusted with it."""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    text = message if isinstance(message, str) else "no reason was given"
    return "".join(c for c in text[:300] if c.isascii() and c.isprintable())


def send(client: Client, user: User, data: str, train: bool) -> None:
    """Send the rows of ``data``, and say what each cost."""
    pieces = [client("messages", body) for body in user.training(data)]
    print(f"sent {sum(int(piece['received']) for piece in pieces)} messages")
    if train:
        print(f"the service trained on {int(client('train', b'')['slots'])} sentences")


def ask(client: Client, user: User, texts: list[str], who: str) -> None:
    """The likeliest class of each text, which is not repeated."""
    answers = user.ask(texts, lambda body: client("queries", body).get("answers"), user=who)
    for number, answer in enumerate(answers, 1):
        name = "not sent" if answer is None else answer["class"]
        share = "" if answer is None else f"{answer['probabilities'][name]:.4f}"
        print(f"text {number}: {name} {share}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Send to and ask a service of local privacy.")
    parser.add_argument("what", choices=["send", "ask"])
    parser.add_argument("given", nargs="+", metavar="DATA|TEXT")
    parser.add_argument("--encoder", required=True, help="the encoder's folder")
    parser.add_argument("--url", required=True, help="what service.py printed")
    parser.add_argument("--budget", help="the user's own folder of what was spent")
    parser.add_argument("--limit", type=float, default=8.0, help="with --budget: most epsilon of one user")
    parser.add_argument("--epsilon", type=float, default=8.0, help="most epsilon that one sentence may cost")
    parser.add_argument("--user", default="", help="with --budget: whose questions these are")
    parser.add_argument("--train", action="store_true", help="let the service train when all is sent")
    given = parser.parse_args()
    limits = {"budget": given.budget, "limit": given.limit, "epsilon": given.epsilon}
    try:
        client = Client(given.url)
        user = User(client("schema"), given.encoder, **limits)
        if given.what == "send":
            for data in given.given:
                send(client, user, data, given.train)
        else:
            ask(client, user, given.given, given.user)
    except redactory.RedactoryError as error:
        sys.exit(str(error))
    print(f"each cost epsilon {user.cost['epsilon_sound']:.4g} at delta {user.cost['delta']:g}")


if __name__ == "__main__":
    main()
