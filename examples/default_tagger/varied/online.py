"""What slots of the net draw: EMAIL_ADDRESS, URL, and user names (ACCOUNT)."""

from __future__ import annotations

import re
import unicodedata

from varied.grammar import Filler
from varied.names import Names, invented
from varied.scene import Scene
from varied.stock import stock

_MAIL_HOSTS = stock("online", "mail_hosts")
_ENDINGS = stock("online", "endings")
_PATHS = stock("online", "paths")
_WORDS = stock("online", "words")


def ascii_name(name: str) -> str:
    """``name`` as it stands in an address: lower case, letters a to z only."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss").replace("ø", "o").replace("ł", "l")).lower()
    return re.sub("[^a-z]", "", plain) or "x"


def _local(scene: Scene, names: Names) -> str:
    first, last = ascii_name(names.first), ascii_name(names.last)
    form = scene.one(
        "{f}.{l}", "{f}.{l}", "{f}{l}", "{f}_{l}", "{a}{l}", "{a}.{l}", "{f}{n}", "{l}{n}", "{f}.{l}{n}",
        "{l}.{f}", "{f}", "{f}-{l}", "{w}{n}", "{f}{b}", "{w}.{f}", "{f}.{l}+{w}", "{l}{a}",
    )  # fmt: skip
    number = scene.digits(scene.of((1, 2, 2, 3, 4)))
    return form.format(f=first, l=last, a=first[0], b=last[0], n=number, w=scene.of(_WORDS))


def domain(scene: Scene) -> str:
    """A bare domain such as greenharbour.co.uk."""
    kind = scene.draw.random()
    if kind < 0.35:
        stem = ascii_name(scene.names().last) + scene.one("", "", "-" + scene.of(_WORDS), scene.of(_WORDS))
    else:
        stem = (
            scene.of(_WORDS)
            + scene.one("", "-")
            + (scene.of(_WORDS) if kind < 0.65 else ascii_name(invented(scene.draw)))
        )
    return f"{stem}.{scene.of(_ENDINGS)}"


def _mail(scene: Scene, names: Names) -> str:
    local = _local(scene, names)
    if scene.chance(0.08):
        local = scene.one("info", "support", "sales", "office", "billing", "no-reply", "contact", "hr")
    host = scene.of(_MAIL_HOSTS) if scene.chance(0.55) else domain(scene)
    address = f"{local}@{host}"
    if scene.chance(0.04):
        address = f"{names.first}.{names.last}@{host}".replace(" ", "").replace("'", "")
    if scene.chance(0.05):
        return _obfuscated(scene, local, host)
    return address.upper() if scene.chance(0.02) else address


def _obfuscated(scene: Scene, local: str, host: str) -> str:
    at = scene.one(" at ", " (at) ", " [at] ", "(at)", " AT ", " @ ")
    dot = scene.one(" dot ", ".", " [dot] ", "(dot)", " . ") if " " in at or "(" in at else " dot "
    return f"{local.replace('.', dot) if scene.chance(0.5) else local}{at}{host.replace('.', dot)}"


def _url(scene: Scene) -> str:
    kind = scene.draw.random()
    host = domain(scene)
    if kind < 0.25:
        return host
    host = scene.one("www.", "www.", "my.", "shop.", "portal.") + host if scene.chance(0.5) else host
    if kind < 0.45:
        return host
    path = (
        "/" + scene.of(_PATHS).format(n=scene.digits(4), w=scene.of(_WORDS), t=scene.shape("~~~~~~~~"))
        if scene.chance(0.65)
        else scene.one("", "/")
    )
    scheme = scene.one("https://", "https://", "http://", "ftp://") if kind < 0.9 else ""
    return f"{scheme}{host}{path}" if scheme or path else f"http://{host}"


def _user_name(scene: Scene) -> str:
    names = scene.names()
    first, last = ascii_name(names.first), ascii_name(names.last)
    form = scene.one(
        "{f}{n}",
        "{f}_{l}",
        "{w}{f}",
        "{a}{l}{n}",
        "{f}{l}",
        "{w}_{w}{n}",
        "the{f}",
        "x{f}x",
        "{l}.{f}",
        "{w}{n}",
        "real{f}{l}",
    )
    return form.format(f=first, l=last, a=first[0], n=scene.digits(scene.of((2, 2, 3, 4))), w=scene.of(_WORDS))


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("EMAIL_ADDRESS", None): lambda scene: _mail(scene, scene.names()),
    ("EMAIL_ADDRESS", "me"): lambda scene: _mail(scene, scene.me),
    ("URL", None): _url,
    ("URL", "domain"): domain,
    ("URL", "handle"): lambda scene: "@" + _user_name(scene),
    ("ACCOUNT", "user"): _user_name,
}
