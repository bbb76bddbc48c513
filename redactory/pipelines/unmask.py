"""Unmask: pseudonyms back into values, by the vault of a copy and its key; every use is logged."""

from __future__ import annotations

import datetime
import getpass
import glob
import hashlib
import hmac
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import PRIVATE_FILE, make_folder, only_one, remove_leftovers, write_bytes
from redactory.foundation.keys import ENCRYPTION_VARIABLE, load_encryption_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.copies import (
    PIPE,
    located,
    packed,
    require_apart,
    require_named_as_written,
    sources_of,
    unfinished,
)
from redactory.pipelines.fields import Fields
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.formats import Row, reader_of
from redactory.pipelines.sealed import wordless
from redactory.pipelines.store import is_url
from redactory.redaction.replacements import Edit

_TOKEN = re.compile(r"<[A-Z_]+_[a-z2-7]{16}>")
_NONCE = 12
_ROW_BYTES = 1 << 30
_PATIENCE = 60.0
"""Seconds for which a copy waits until another has written the same vault."""


@dataclass
class Vault:
    """Which value stands behind each pseudonym of a copy, and in which fields they stand."""

    fields: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    spellings: dict[str, dict[str, list[list[str]]]] = field(default_factory=dict)
    """Of the texts in which a value is spelled in another way, by the digest of what is written of them and
    by their rows, all values as they were spelled."""

    def note(self, row: int, written: str, pseudonyms: list[str], spelled: list[str]) -> None:
        """Keep how the values of a text were ``spelled``, where its ``pseudonyms`` do not tell."""
        if [self.values[one] for one in pseudonyms] != spelled:
            self.spellings.setdefault(_digest(written), {}).setdefault(str(row), []).append(spelled)

    def spelled(self, row: int, text: str) -> list[str]:
        """The values behind the pseudonyms of ``text``, as they were spelled; empty as the pseudonyms tell.

        Where two rows became equal, the row decides; of one that has moved, the first of them.
        """
        rows = self.spellings.get(_digest(text), {})
        ways = rows.get(str(row)) or next(iter(rows.values()), [])
        # two equal texts of one row are met in their order
        return (ways.pop(0) if len(ways) > 1 else ways[0]) if ways else []

    @classmethod
    def begun(cls, path: Path) -> Vault:
        """The vault at ``path``, or an empty one: what another copy put there stays.

        ``ConfigurationError`` where it could not be written: no key, or no folder; ``InputError`` where
        ``path`` is something else.
        """
        _key()
        if not os.access(path.absolute().parent, os.W_OK):
            raise ConfigurationError(f"vault: {path} cannot be written: its folder is missing, or not writable")
        return cls.read(path) if os.path.lexists(path) else cls()

    def add_to(self, path: Path) -> None:
        """Write what this vault knows into the one at ``path``, which keeps what it knew."""
        path = path.absolute()
        lock = path.parent.resolve() / f"{path.name}.lock"
        with only_one(lock, f"the vault {path.name}", _PATIENCE):
            remove_leftovers(path.parent, glob.escape(path.name))
            known = Vault.begun(path)
            fields = [*dict.fromkeys((*known.fields, *self.fields))]
            spellings = known.spellings
            for text, rows in self.spellings.items():
                spellings[text] = {**rows, **spellings.get(text, {})}
            Vault(fields, {**self.values, **known.values}, spellings)._write(path)

    def _write(self, path: Path) -> None:
        """Encrypted (AES-256-GCM) under ``REDACTORY_ENCRYPTION_KEY``; ``ConfigurationError`` without one."""
        nonce = os.urandom(_NONCE)
        data = json.dumps(vars(self), ensure_ascii=False).encode("utf-8", "surrogatepass")
        write_bytes(path, nonce + AESGCM(_key()).encrypt(nonce, data, b"redactory vault"))

    @classmethod
    def read(cls, path: Path) -> Vault:
        """``InputError`` where the file is not a vault, or was written with another key.

        ``ConfigurationError`` where no key is configured.
        """
        variables = f"{ENCRYPTION_VARIABLE}_FILE (or {ENCRYPTION_VARIABLE})"
        key = _key(f"{path.name} is encrypted: set {variables} to the key it was written with")
        try:
            data = path.read_bytes()
            return cls(**json.loads(AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], b"redactory vault")))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except (InvalidTag, ValueError):
            raise InputError(
                f"{path} is not a vault, or {ENCRYPTION_VARIABLE} is not the key it was written with"
            ) from None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _key(missing: str = "") -> bytes:
    secret = load_encryption_key()
    if secret is None:
        new = f"set {ENCRYPTION_VARIABLE}_FILE (create a key with redactory keys new encryption FILE)"
        raise ConfigurationError(missing or f"a vault is encrypted: {new}")
    return hmac.digest(secret, b"redactory/vault", "sha256")


def unmask(given: str | Path, out: str | Path, vault: str | Path, *, format_: str = "auto") -> dict[str, Any]:
    """Write a copy of ``given`` to ``out`` in which pseudonyms are values again: rows, and tokens by kind.

    Each use is a record in ``VAULT.log.jsonl``: who, when, which file, how many.  A token that the vault does
    not know stays, and is counted as unknown.  Of a folder, as ``redact`` writes one, each file by itself.
    """
    known = Vault.read(Path(vault))
    given = located(str(given))
    if str(out) == PIPE or is_url(str(out)):
        raise ConfigurationError("--out: original values can only be written to a local file or folder")
    require_apart(given, str(out))
    sources, inside = sources_of(given, format_)
    require_named_as_written(str(out), sources, inside)
    return wordless("values were restored", _put_back, sources, inside, str(out), known, Path(vault))


def _put_back(sources: list[Source], inside: bool, out: str, known: Vault, vault: Path) -> dict[str, Any]:
    rows, counts = 0, Counter[str]()
    with unfinished(out, sources, {"vault": os.path.abspath(vault)}) as work:
        if (done := work.finished(out)) is not None:
            return done
        for source in sources:
            place = work.staged / source.name if inside else work.staged
            make_folder(place.parent)
            one = _unmask(source, place, source.name if inside else Path(out).name, known, vault)
            rows, counts = rows + one["rows"], counts + Counter(one["unmasked"])
        unknown = counts.pop("unknown", 0)
        summary = {"rows": rows, "unmasked": dict(counts.most_common()), "put_back": counts.total(), "unknown": unknown}
        work.finish(out, summary)
    return summary


def _unmask(source: Source, target: Path, name: str, vault: Vault, place: Path) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    rows = 0

    def changes(row: int, text: str) -> list[Edit]:
        found = []
        known = sum(token in vault.values for token in _TOKEN.findall(text))
        spelled = vault.spelled(row, text)
        ways = iter(spelled if len(spelled) == known else [])
        for token in _TOKEN.finditer(text):
            value = vault.values.get(token[0])
            value = value if value is None else next(ways, value)
            counts["unknown" if value is None else token[0][1:].rpartition("_")[0]] += 1
            if value is not None:
                found.append(Edit(token.start(), token.end(), value))
        return found

    with RecordLog(Path(f"{place}.log.jsonl")) as log:
        # before anything is written: a use that was not logged must not happen
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        use = {"by": getpass.getuser(), "at": now, "file": source.name, "out": Path(name).name}
        log.append("unmask", use)
        with source.open() as file, packed(target, name) as written:
            target.chmod(PRIVATE_FILE)
            fields = Fields(tuple(vault.fields))
            reader = reader_of(source.format, file)(file, source.name, _ROW_BYTES, fields)

            def pieces() -> Iterator[Any]:
                nonlocal rows
                for row in reader.rows():
                    if isinstance(row, bytes):
                        yield row
                    elif row.render is None:
                        raise InputError(f"{source.name}, row {row.number}: {row.reason}")
                    else:
                        rows += isinstance(row, Row) and row.number > 0
                        yield row.render([changes(row.number, text) for text in row.texts], {})

            reader.write(written, pieces())
        log.append("unmasked", {"rows": rows, "tokens": dict(counts)})
    return {"rows": rows, "unmasked": dict(counts)}
