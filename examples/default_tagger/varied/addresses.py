"""What slots of addresses draw: STREET_ADDRESS in the forms of many countries, POSTAL_CODE."""

from __future__ import annotations

import re

from varied.grammar import Filler
from varied.places import STATES_SHORT, city, country, states
from varied.scene import Scene
from varied.stock import stock

_AU = ("NSW", "VIC", "QLD", "WA", "SA", "TAS", "ACT", "NT")
_CA = ("ON", "QC", "BC", "AB", "MB", "SK", "NS", "NB", "NL", "PE")
_US_TYPES = stock("places", "us_types")
_UK_TYPES = stock("places", "uk_types")
_STREET_WORDS = stock("places", "street_words")
_UNITS = (
    "Apt {}", "Apt. {}", "Apartment {}", "Unit {}", "Suite {}", "Ste {}", "#{}", "Flat {}", "Floor {}",
    "Rm {}",
    "Bldg {}", "Lot {}",
)  # fmt: skip


def _street_name(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.45:
        return scene.of(_STREET_WORDS)
    if kind < 0.80:
        return scene.names().last
    if kind < 0.90:
        number = scene.draw.randint(1, 120)
        ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return f"{number}{ending}"
    return (
        f"{scene.names().first} {scene.names().last}"
        if kind < 0.95
        else f"{scene.of(_STREET_WORDS)} {scene.of(_STREET_WORDS)}"
    )


def _number(scene: Scene) -> str:
    number = scene.digits(scene.of((1, 2, 2, 3, 3, 3, 4, 4, 5)))
    return number + scene.one("A", "B", "C", "a", "b", "/2", "-12") if scene.chance(0.06) else number


def _unit(scene: Scene) -> str:
    number = scene.one(scene.digits(1), scene.digits(2), scene.digits(3), scene.shape("#?"), scene.shape("?"))
    return scene.of(_UNITS).format(number)


def _us_street(scene: Scene) -> str:
    if scene.chance(0.05):
        return scene.one("PO Box {}", "P.O. Box {}", "P. O. Box {}", "Box {}", "po box {}").format(
            scene.digits(scene.of((2, 3, 4, 5)))
        )
    way = scene.one("N ", "S ", "E ", "W ", "North ", "SW ", "NE ", "N. ") if scene.chance(0.15) else ""
    street = f"{_number(scene)} {way}{_street_name(scene)} {scene.of(_US_TYPES)}"
    if scene.chance(0.04):
        way = scene.one("Broadway", "County Road {}", "Hwy {}", "Route {}").format(scene.digits(2))
        street = f"{_number(scene)} {way}"
    return street + scene.one(", ", " ") + _unit(scene) if scene.chance(0.2) else street


def _zip(scene: Scene) -> str:
    return scene.shape("#####-####") if scene.chance(0.12) else scene.shape("#####")


def _us(scene: Scene) -> str:
    place = scene.of(STATES_SHORT) if scene.chance(0.8) else scene.of(states())
    separator = scene.one(", ", ", ", "\n", " ", ",\n")
    tail = scene.one(
        f", {place} {_zip(scene)}",
        f" {place} {_zip(scene)}",
        f", {place}, {_zip(scene)}",
        f", {place}",
        f" {_zip(scene)}",
    )
    land = scene.one(", USA", ", United States", "\nUSA", " US") if scene.chance(0.08) else ""
    return f"{_us_street(scene)}{separator}{city(scene)}{tail}{land}"


def _uk_code(scene: Scene) -> str:
    return scene.shape(scene.one("?^ ^??", "??^ ^??", "??^# ^??", "?^# ^??", "?^? ^??", "??^^??"))


def _uk_street(scene: Scene) -> str:
    flat = scene.one(
        f"Flat {scene.shape('^')}",
        f"Flat {scene.shape('^?')}",
        f"{scene.of(_STREET_WORDS)} House",
        f"{scene.names().last} Cottage",
        f"Unit {scene.digits(1)}",
    )
    street = f"{_number(scene)} {_street_name(scene)} {scene.of(_UK_TYPES)}"
    return f"{flat}, {street}" if scene.chance(0.25) else street


def _uk(scene: Scene) -> str:
    separator = scene.one(", ", ", ", "\n", " ")
    town = f"{city(scene)}{separator}{scene.of(states())}" if scene.chance(0.2) else city(scene)
    land = scene.one(", UK", ", United Kingdom", "\nEngland") if scene.chance(0.1) else ""
    return f"{_uk_street(scene)}{separator}{town}{scene.one(separator, ' ')}{_uk_code(scene)}{land}"


def _commonwealth(scene: Scene) -> str:
    separator = scene.one(", ", ", ", "\n")
    if scene.chance(0.5):
        unit = scene.one("", "{}/", "Unit {}, ").format(scene.digits(1))
        street = f"{unit}{_number(scene)} {_street_name(scene)} {scene.of(_UK_TYPES)}"
        return f"{street}{separator}{city(scene)} {scene.of(_AU)} {scene.shape('^###')}"
    code = scene.shape(scene.one("?#? #?#", "?#?#?#"))
    return f"{_us_street(scene)}{separator}{city(scene)}, {scene.of(_CA)} {code}"


def _german_street(scene: Scene) -> str:
    ending = scene.one("straße", "str.", "strasse", "weg", "gasse", "platz", "allee", "ring", "damm", "ufer")
    joined = (
        scene.names().last.split(" ")[-1] + ending
        if scene.chance(0.7)
        else f"{scene.names().last}-{ending.capitalize()}"
    )
    return f"{joined} {_number(scene)}"


def _european_street(scene: Scene) -> str:
    name = f"{scene.names().first} {scene.names().last}" if scene.chance(0.4) else scene.names().last
    number = scene.digits(scene.of((1, 2, 2, 3)))
    form = scene.one(
        "{n} rue {s}", "{n}, rue de {s}", "{n} bis, avenue {s}", "{n} boulevard {s}", "Calle {s} {n}",
        "C/ {s}, {n}", "Av. {s} {n}, 2º B",
        "Via {s} {n}", "Piazza {s}, {n}", "Rua {s}, {n}", "ul. {s} {n}", "ul. {s} {n}/4", "{s}straat {n}",
        "{s}laan {n}", "{s}gatan {n}",
        "{s}vej {n}", "{s} Cad. No: {n}", "{s} utca {n}.", "Avenida {s} {n}", "Plaza {s} {n}",
        "{s}gade {n}, 3. th",
    )  # fmt: skip
    return form.format(n=number, s=name)


def _european(scene: Scene) -> str:
    separator = scene.one(", ", ", ", "\n")
    street = _german_street(scene) if scene.chance(0.4) else _european_street(scene)
    code = scene.shape(scene.one("#####", "#####", "####", "#### ??", "##-###", "#####-###", "D-#####", "F-#####"))
    land = f"{separator}{country(scene)}" if scene.chance(0.2) else ""
    return f"{street}{separator}{code} {city(scene)}{land}"


def _asian(scene: Scene) -> str:
    separator = scene.one(", ", "\n")
    name = scene.names().last
    form = scene.one(
        "No. {n}, {s} Road{x}{c} {z}", "H.No. {n}, {s} Nagar{x}{c} - {z}",
        "Flat {n}, {s} Apartments, MG Road{x}{c} {z}", "{n} {s} Street{x}{c} City",
        "{n}-{m} {s}-cho{x}{c} {y}", "Plot {n}, Sector {m}{x}{c}",
        "Blk {n} {s} Ave 3 #0{m}-12{x}Singapore {z}", "{n} Jalan {s}{x}{c} {w}",
    )  # fmt: skip
    return form.format(
        n=scene.digits(2),
        m=scene.digits(1),
        s=name,
        x=separator,
        c=city(scene),
        z=scene.digits(6),
        y=scene.shape("###-####"),
        w=scene.digits(5),
    )


def _street(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.60:
        return _us_street(scene)
    if kind < 0.80:
        return _uk_street(scene)
    return _german_street(scene) if kind < 0.88 else _european_street(scene)


def _whole(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.45:
        return _us(scene)
    if kind < 0.65:
        return _uk(scene)
    return _commonwealth(scene) if kind < 0.75 else _european(scene) if kind < 0.92 else _asian(scene)


def _address(scene: Scene) -> str:
    return _street(scene) if scene.chance(0.42) else _whole(scene)


def _one_line(scene: Scene) -> str:
    return re.sub(r",?\n", ", ", _address(scene))


def _postal(scene: Scene) -> str:
    kind = scene.draw.random()
    if kind < 0.5:
        return _zip(scene)
    if kind < 0.75:
        return _uk_code(scene)
    return scene.shape(scene.one("?#? #?#", "####", "#### ??", "##-###", "#####-###", "######", "D-#####", "###-####"))


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("STREET_ADDRESS", None): _address,
    ("STREET_ADDRESS", "line"): _one_line,
    ("STREET_ADDRESS", "street"): _street,
    ("STREET_ADDRESS", "full"): _whole,
    ("STREET_ADDRESS", "us"): _us,
    ("STREET_ADDRESS", "uk"): _uk,
    ("POSTAL_CODE", None): _postal,
    ("POSTAL_CODE", "zip"): _zip,
    ("POSTAL_CODE", "uk"): _uk_code,
}
