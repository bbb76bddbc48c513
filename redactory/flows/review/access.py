"""Access to the review page: one browser on this machine, and nothing of what it shows is stored or logged."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redactory.foundation.files import write_text

ADDRESS = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # 'no-referrer' would hide the origin of a form, which is checked
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FORWARD = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><title>Redactory</title><a href="{0}">Open</a>'
)


class AccessGuard:
    """Passes requests of the one browser that opened the address with the token; refuses every other one.

    The token works once: it is exchanged for a cookie that scripts cannot read and other sites cannot send. The Host
    header is checked against DNS rebinding, the origin of a form against other pages. Responses are never stored.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port
        self._token: str | None = secrets.token_urlsafe(32)
        self._session, self._cookie = secrets.token_urlsafe(32), f"redactory-review-{port}"
        self._hosts = {f"{name}:{port}" for name in (ADDRESS, "localhost")}

    @property
    def address(self) -> str:
        """The address to open once."""
        return f"http://{ADDRESS}:{self._port}/?token={self._token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        response = self._check_request(Request(scope))
        await (response or self._app)(scope, receive, send_with_headers)

    def _check_request(self, request: Request) -> Response | None:
        """Return the refusal of a request, or its sign-in; None to let it pass."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self._hosts:
            return PlainTextResponse(f"Open this page as {ADDRESS}:{self._port}.", 403)
        is_elsewhere = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if request.method not in ("GET", "HEAD") and (origin != f"http://{host}" or is_elsewhere):
            return PlainTextResponse("This form was sent by another page.", 403)
        if _is_equal(request.cookies.get(self._cookie), self._session):
            return None
        if request.method == "GET" and _is_equal(request.query_params.get("token"), self._token):
            self._token = None
            # a redirect would not send the new cookie if another program opened the address
            response = HTMLResponse(_FORWARD.format("/"))
            response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
            return response
        return PlainTextResponse("Open the address that redactory review printed; it works once.", 403)


def _is_equal(value: str | None, expected: str | None) -> bool:
    return value is not None and expected is not None and secrets.compare_digest(value.encode(), expected.encode())


@contextmanager
def write_redirect(address: str) -> Iterator[str]:
    """Yield the address of a private file that leads to ``address``: every user can read a browser's command line."""
    with tempfile.TemporaryDirectory(prefix="redactory-") as folder:
        page = Path(folder) / "review.html"
        write_text(page, _FORWARD.format(address))
        yield page.as_uri()
