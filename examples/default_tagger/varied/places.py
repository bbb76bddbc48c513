"""What slots of places draw: LOCATION."""

from __future__ import annotations

import importlib
import re
from functools import cache

from varied.grammar import Filler
from varied.names import invented
from varied.scene import Scene
from varied.stock import stock

_CITY_LOCALES = (
    "de_DE", "nl_NL", "it_IT", "pl_PL", "pt_PT", "en_IN", "ro_RO", "cs_CZ", "hr_HR", "fi_FI", "da_DK",
)  # fmt: skip
_STATE_LOCALES = {
    "en_US": "states", "en_AU": "states", "en_CA": "provinces", "en_GB": "counties", "en_IN": "states",
    "de_DE": "states", "es_ES": "regions", "nl_NL": "provinces", "en_IE": "counties",
}  # fmt: skip
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f' .-]+")
_KNOWN = stock("places", "known")
_COUNTRIES = stock("places", "countries")
_REGIONS = stock("places", "regions")
STATES_SHORT = stock("places", "states_short")
_LANDMARKS = stock("places", "landmarks")
_TOWN = stock("places", "town")


@cache
def cities() -> tuple[str, ...]:
    """Distinct towns in Latin letters from Faker's lists, 60 of them from each of some locales."""
    geo = importlib.import_module("faker.providers.geo").Provider
    found = {entry[2] for entry in geo.land_coords if _LATIN.fullmatch(entry[2])}
    for locale in _CITY_LOCALES:
        listed = sorted(importlib.import_module(f"faker.providers.address.{locale}").Provider.cities)
        found.update(city.strip() for city in listed[:: max(1, len(listed) // 60)] if _LATIN.fullmatch(city))
    return tuple(sorted(city for city in found if len(city) > 2 and city[-1] != "."))


@cache
def countries() -> tuple[str, ...]:
    """Countries in English, without those that carry a remark."""
    listed = importlib.import_module("faker.providers.address.en").Provider.countries
    return tuple(sorted({c for c in listed if "(" not in c and "," not in c}))


@cache
def states() -> tuple[str, ...]:
    """States, provinces and counties of some countries."""
    found: set[str] = set()
    for locale, name in _STATE_LOCALES.items():
        found.update(getattr(importlib.import_module(f"faker.providers.address.{locale}").Provider, name))
    return tuple(sorted(found))


def city(scene: Scene) -> str:
    """A town: well known, listed, or invented."""
    kind = scene.draw.random()
    if kind < 0.45:
        return scene.of(_KNOWN)
    if kind < 0.85:
        return scene.of(cities())
    stem = invented(scene.draw, scene.of((1, 1, 2)))
    town = scene.of(_TOWN).format(stem) if scene.chance(0.7) else stem
    return (
        scene.one("New ", "Port ", "Saint ", "St. ", "North ", "San ", "Santa ", "El ", "Upper ") + town
        if scene.chance(0.25)
        else town
    )


def country(scene: Scene) -> str:
    """A country, under a common name or a listed one; without the article."""
    return (scene.of(_COUNTRIES) if scene.chance(0.6) else scene.of(countries())).removeprefix("the ")


def state(scene: Scene) -> str:
    """A state, province or county, at times as its two letters."""
    return scene.of(STATES_SHORT) if scene.chance(0.12) else scene.of(states())


def landmark(scene: Scene) -> str:
    """A lake, bridge, park or the like with a proper name."""
    name = scene.names().last if scene.chance(0.5) else invented(scene.draw)
    return scene.of(_LANDMARKS).format(name)


def region(scene: Scene) -> str:
    """A part of the world, a region, a quarter of a town; without the article."""
    return scene.of(_REGIONS).removeprefix("the ")


def _location(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.45:
        return city(scene)
    if kind < 0.70:
        return country(scene)
    return state(scene) if kind < 0.84 else region(scene) if kind < 0.92 else landmark(scene)


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("LOCATION", None): _location,
    ("LOCATION", "city"): city,
    ("LOCATION", "country"): country,
    ("LOCATION", "state"): state,
    ("LOCATION", "short"): lambda scene: scene.of(STATES_SHORT),
    ("LOCATION", "region"): region,
    ("LOCATION", "landmark"): landmark,
}
