"""Where a scheduled run writes: one folder a run, named after the moment it was due."""

from __future__ import annotations

import datetime
import zoneinfo

from redactory.foundation.errors import ConfigurationError

START, DATE = "{start}", "{date}"


def one_folder_a_run(output: str) -> str:
    """``output`` where it names a placeholder, else a folder for each run below it."""
    return output if START in output or DATE in output else f"{output.rstrip('/')}/{START}"


def folder_of_all(template: str) -> str:
    """The folder that holds the runs of a template: what stands before the first placeholder's name."""
    fixed = min(template.find(sign) for sign in (START, DATE) if sign in template)
    return template[:fixed].rpartition("/")[0] or "."


def place_of(template: str, due: datetime.datetime, timezone: str) -> str:
    """``template`` with ``{date}`` as the day in ``timezone`` and ``{start}`` as the second in UTC.

    Both follow from when the run was due, not from when it began: tried again, a run finds its folder.
    """
    day = due.astimezone(zone_of(timezone)).strftime("%Y-%m-%d")
    # in UTC: the hour that the clocks are put back happens twice anywhere else
    second = due.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
    return template.replace(DATE, day).replace(START, second)


def zone_of(timezone: str) -> zoneinfo.ZoneInfo:
    """The time zone of that name; ``ConfigurationError`` where there is none."""
    try:
        return zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"--timezone: '{timezone}' is no time zone; name one like Europe/Berlin or UTC"
        ) from None
