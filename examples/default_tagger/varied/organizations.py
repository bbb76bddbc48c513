"""What slots of organisations and of works, events and products draw: ORGANIZATION, MISC."""

from __future__ import annotations

from varied.grammar import Filler
from varied.names import invented
from varied.places import city, country
from varied.scene import Scene
from varied.stock import stock

_FORMS = stock("organizations", "forms")
_CIVIC = stock("organizations", "civic")
_COINED = stock("organizations", "coined")
_FIELDS = stock("organizations", "fields")
_PUBLIC = stock("organizations", "public")
_TRADES = stock("organizations", "trades")
_ANIMALS = stock("organizations", "animals")
_TECH = stock("organizations", "tech")
_STEMS = stock("organizations", "stems")
_TAILS = stock("organizations", "tails")
_SECONDS = stock("organizations", "seconds")
_FAMOUS = stock("organizations", "famous")
_WORKS = stock("organizations", "works")
_NOUNS = stock("organizations", "nouns")
_ADJECTIVES = stock("organizations", "adjectives")
_THINGS = stock("organizations", "things")
_EVENTS = stock("organizations", "events")
_PRODUCTS = stock("organizations", "products")


def _company(scene: Scene) -> str:
    names = [scene.names().last for _ in range(3)]
    return scene.of(_FORMS).format(l=names[0], k=names[1], j=names[2], f=scene.of(_FIELDS))


def _civic(scene: Scene) -> str:
    return scene.of(_CIVIC).format(
        c=city(scene), l=scene.names().last, g=scene.names().first, n=country(scene), m=scene.of(_PUBLIC),
        p=scene.of(_TRADES), a=scene.of(_ANIMALS),
    )  # fmt: skip


def _coined(scene: Scene) -> str:
    return scene.of(_COINED).format(
        i=invented(scene.draw), t=scene.of(_TECH), s=scene.of(_TAILS), w=scene.of(_STEMS), x=scene.of(_SECONDS)
    )


def _acronym(scene: Scene) -> str:
    return scene.shape(scene.one("???", "???", "????", "??", "?&?", "?.?.?.", "?????"))


def _organization(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.34:
        return _company(scene)
    if kind < 0.58:
        return _civic(scene)
    if kind < 0.80:
        return _coined(scene)
    return scene.of(_FAMOUS) if kind < 0.92 else _acronym(scene)


def _work(scene: Scene) -> str:
    return scene.of(_WORKS).format(
        a=scene.of(_ADJECTIVES), n=scene.of(_NOUNS), m=scene.of(_THINGS), m2=scene.of(_THINGS),
        l=scene.names().last, f=scene.names().first, i=invented(scene.draw),
        v=scene.one("Paint", "Lose", "Build", "Find"), d=scene.draw.randint(1, 9),
    )  # fmt: skip


def _event(scene: Scene) -> str:
    return scene.of(_EVENTS).format(
        c=city(scene), l=scene.names().last, f=scene.names().first, y=scene.draw.randint(1960, 2028),
        i=invented(scene.draw), a=scene.of(_ADJECTIVES), n=scene.of(_NOUNS), m=scene.of(_THINGS),
    )  # fmt: skip


def _product(scene: Scene) -> str:
    return scene.of(_PRODUCTS).format(
        i=invented(scene.draw), d=scene.draw.randint(1, 15), w=scene.of(_STEMS), t=scene.of(_TAILS),
        l=scene.names().last, q=scene.shape("?"),
    )  # fmt: skip


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("ORGANIZATION", None): _organization,
    ("ORGANIZATION", "company"): lambda scene: _company(scene) if scene.chance(0.6) else _coined(scene),
    ("ORGANIZATION", "civic"): _civic,
    ("ORGANIZATION", "acronym"): _acronym,
    ("ORGANIZATION", "famous"): lambda scene: scene.of(_FAMOUS),
    ("ORGANIZATION", "team"): lambda scene: scene.one(
        "{} United", "{} City", "{} Rovers", "{}", "{} FC", "{} Athletic"
    ).format(city(scene)),
    ("MISC", "work"): _work,
    ("MISC", "event"): _event,
    ("MISC", "product"): _product,
}
