"""What slots of dates draw: DATE_TIME, that is calendar dates and years, never a time of day alone."""

from __future__ import annotations

import datetime

from varied.grammar import Filler
from varied.scene import Scene
from varied.stock import stock

_FIRST, _LAST = datetime.date(1935, 1, 1).toordinal(), datetime.date(2029, 12, 31).toordinal()
_FORMS = stock("times", "forms")
_STAMPS = (
    "{D:%Y-%m-%d} {t}", "{D:%Y-%m-%d}T{t}Z", "{D:%d}/{b}/{Y}:{t} +0000", "{a}, {d} {b} {Y} {t} +0200",
    "{D:%m/%d/%Y} {t}", "{D:%Y-%m-%d} {t},{n}", "{b} {D:%d} {t}", "{A}, {M} {d}, {Y} at {h}:30 AM",
    "{d} {b} {Y}, {h}:15",
)  # fmt: skip
_BIRTHS = stock("times", "births")
_WITHOUT_DAY = (
    "{M} {Y}", "{b} {Y}", "{M}, {Y}", "{D:%m/%Y}", "{Y}", "{Y}", "{Y}", "{S} {Y}", "early {Y}",
    "Q{q} {Y}", "mid-{Y}",
)  # fmt: skip
_DAY = (
    "{M} {d}", "{d} {M}", "{M} {o}", "{o} {M}", "the {o} of {M}", "{A}, {d} {M}", "{b} {d}", "{A}, {M} {d}",
    "{d}/{m}", "{M} {w}", "the {w} of {M}",
)  # fmt: skip
_LONG = ("{M} {d}, {Y}", "{d} {M} {Y}", "{A}, {d} {M} {Y}", "{d} {b} {Y}", "{A}, {M} {d}, {Y}", "{M} {o}, {Y}")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "ninth", "tenth", "twelfth", "twentieth", "thirtieth")


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _written(scene: Scene, forms: tuple[str, ...], first: int = _FIRST, last: int = _LAST) -> str:
    """A date in one of the forms.  Names of months are our own: ``strftime`` follows the process's locale."""
    draw = scene.draw
    date = datetime.date.fromordinal(draw.randint(first, last))
    month, day = _MONTHS[date.month - 1], _DAYS[date.weekday()]
    return scene.of(forms).format(
        D=date, d=date.day, m=date.month, Y=date.year, y=f"{date.year % 100:02d}", M=month,
        b="Sept" if date.month == 9 and draw.random() < 0.5 else month[:3], A=day, a=day[:3],
        o=ordinal(date.day), s=ordinal(date.day)[-2:], n=f"{draw.randrange(1000):03d}",
        h=draw.randint(1, 12),
        t=f"{draw.randrange(24):02d}:{draw.randrange(60):02d}:{draw.randrange(60):02d}",
        w=scene.of(_ORDINALS), q=draw.randint(1, 4),
        S=scene.one("spring", "summer", "autumn", "winter", "fall"),
    )  # fmt: skip


_RECENT = datetime.date(2005, 1, 1).toordinal()


def _date(scene: Scene) -> str:
    return _written(scene, _FORMS, _RECENT if scene.chance(0.6) else _FIRST)


def _year(scene: Scene) -> str:
    return str(
        scene.draw.choice(
            (scene.draw.randint(1400, 2030), scene.draw.randint(1930, 2029), scene.draw.randint(1990, 2026))
        )
    )


def _range(scene: Scene) -> str:
    year = scene.draw.randint(1880, 2020)
    later = year + scene.draw.randint(1, 60)
    return scene.one("{}–{}", "{}-{}", "{} - {}").format(year, later)


SECRETS: dict[tuple[str, str | None], Filler] = {
    ("DATE_TIME", None): _date,
    ("DATE_TIME", "birth"): lambda scene: _written(scene, _BIRTHS, _FIRST, datetime.date(2015, 1, 1).toordinal()),
    ("DATE_TIME", "stamp"): lambda scene: _written(scene, _STAMPS, _RECENT),
    ("DATE_TIME", "year"): _year,
    ("DATE_TIME", "years"): _range,
    ("DATE_TIME", "month"): lambda scene: _written(scene, _WITHOUT_DAY),
    ("DATE_TIME", "day"): lambda scene: _written(scene, _DAY, _RECENT),
    ("DATE_TIME", "long"): lambda scene: _written(scene, _LONG, _RECENT),
    ("DATE_TIME", "expiry"): lambda scene: _written(scene, ("{D:%m/%y}", "{D:%m/%Y}", "{m}/{y}"), _RECENT),
}
