"""What may be sent where: text and keys go over a network encrypted, or not at all."""

from __future__ import annotations

import ipaddress
import urllib.parse

from redactory.foundation.errors import ConfigurationError

SECURE, OPEN = "tls", "tcp"


def check_wire(address: str, where: str) -> None:
    """``ConfigurationError`` unless ``address`` is ``tls://HOST:PORT``, or ``tcp://`` to this machine.

    ``where`` is the setting or option that holds the address.  No name is looked up: of names only
    ``localhost`` is taken for this machine.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        whole = bool(parts.hostname and parts.port)
    except ValueError:
        whole = False
    if not whole or parts.scheme not in (SECURE, OPEN):
        raise ConfigurationError(
            f"{where}: '{address}' is no address of a scheduler; write tls://HOST:PORT, or tcp://127.0.0.1:PORT"
        )
    if parts.scheme == OPEN and not _is_here(parts.hostname or ""):
        raise ConfigurationError(
            f"{where}: '{address}' is another machine, and what is sent there (text, keys) would be open to "
            "the network; give scheduler and workers certificates, and write tls://HOST:PORT"
        )


def is_loopback(address: str) -> bool:
    """Whether an address that :func:`check_wire` lets pass is on this machine."""
    return _is_here(urllib.parse.urlsplit(address).hostname or "")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
