"""A client's lists, read from files: entities, aliases, hubs.  Errors name file and line, never a value."""

from __future__ import annotations

from pathlib import Path

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.redaction.folder import RunFolder
from redactory.training.runinput import parent_digest
from redactory.training.uedp.entities import EntityNames, EntitySettings
from redactory.training.uedp.hubs import LABELS, hub_list
from redactory.training.uedp.incidence import Incidence
from redactory.training.uedp.units import Copies, read_incidence
from redactory.training.units.settings import UnitSettings


def entity_names(units: UnitSettings, key: DigestKey | None = None) -> EntityNames:
    """What counts as an entity under ``units``; ``ConfigurationError`` where a list cannot be read.

    Which points are one entity's does not depend on ``key``, nor does what a cap keeps of them.
    """
    hubs = {value: LABELS[name] for name in units.hubs for value in hub_list(name)}
    own = _lines("hubs_file", units.hubs_file)
    settings = EntitySettings(
        categories=None if units.labels is None else frozenset(units.labels),
        listed=_lines("entities", units.entities),
        hubs=(*hubs, *own),
        hub_labels={value: labels for value, labels in hubs.items() if value not in own},
        aliases=_aliases(units.aliases),
    )
    return EntityNames(settings, key or load_digest_key())


def read_units(run: RunFolder, units: UnitSettings) -> Incidence:
    """The hypergraph of the finished ``run``'s vault, as ``units`` say (:func:`read_incidence`).

    Entities go by digests under the run's own digest, the same in every process: Algorithm 1 names an
    entity's coins by them, and a resumed training must throw the same ones.  They are never written.
    """
    key = DigestKey(bytes.fromhex(parent_digest(run)))
    return read_incidence(run, entity_names(units, key), Copies(units.copies))


def _lines(key: str, path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"train.units.{key}: {path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"train.units.{key}: {path.name} is not UTF-8") from None
    return tuple(line.strip() for line in lines if line.strip())


def _aliases(path: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(_lines("aliases", path), 1):
        alias, tab, value = line.partition("\t")
        if not (tab and alias.strip() and value.strip()):
            raise ConfigurationError(f"train.units.aliases: entry {number} is not 'alias, tab, value'")
        found[alias.strip()] = value.strip()
    return found
