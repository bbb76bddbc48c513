"""The days that nights are asked for: ``{date}`` in the input's path, one day or a range of them."""

from __future__ import annotations

import datetime

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config

DATE = "{date}"
Day = datetime.date | None
"""The day whose data a night reads; None for an input that does not come by the day."""
LONGEST = 10_000
"""Days of one backfill."""


def days_asked(
    config: Config, date: str | None, first: str | None, last: str | None, today: datetime.date
) -> list[Day]:
    """The days of the nights to come, in order; ``ConfigurationError`` for days that cannot be meant.

    Without any, the day is ``today`` where the input has ``{date}`` in its path, and none where it has not.
    """
    dated = is_dated(config)
    if not (date or first or last):
        return [today if dated else None]
    if not dated:
        raise ConfigurationError(
            f"--date, --from and --to need {DATE} in input.path, like logs/{DATE}/*.jsonl: without it, "
            "a night reads whatever is new"
        )
    if date and (first or last):
        raise ConfigurationError("give --date, or --from with --to, not both")
    if date:
        return [_day(date, "--date")]
    if not (first and last):
        raise ConfigurationError("a range needs both its ends: --from 2026-11-01 --to 2026-11-05")
    start, end = _day(first, "--from"), _day(last, "--to")
    count = (end - start).days + 1
    if not 0 < count <= LONGEST:
        raise ConfigurationError(f"--from {first} --to {last}: give 1 to {LONGEST:,} days, the earlier first")
    return [start + datetime.timedelta(days=number) for number in range(count)]


def is_dated(config: Config) -> bool:
    """Whether the input comes by the day."""
    return any(DATE in path for path in config.input.path)


def of_day(config: Config, day: Day) -> Config:
    """``config`` with the day in the place of ``{date}``."""
    if day is None:
        return config
    given = config.model_dump(exclude_unset=True)
    paths = [path.replace(DATE, day.isoformat()) for path in config.input.path]
    return load_config({**given, "input": {**given["input"], "path": paths}})


def _day(text: str, option: str) -> datetime.date:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date()
    except ValueError:
        raise ConfigurationError(f"{option} {text}: write a day like 2026-11-03") from None
