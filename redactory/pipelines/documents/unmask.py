"""Unmask: restore the values of pseudonyms with the vault of a copy and its key; every use is logged."""

from __future__ import annotations

import datetime
import getpass
import glob
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import PRIVATE_FILE, file_lock, make_folder, remove_leftovers, write_bytes
from redactory.foundation.keys import ENCRYPTION_VARIABLE, load_encryption_key
from redactory.foundation.records import RecordLog
from redactory.pipelines.curation.error_sealing import run_with_hidden_error_text
from redactory.pipelines.documents.redact_io import (
    PIPE,
    find_copy_sources,
    open_compressed,
    open_unfinished_copy,
    require_matching_format,
    require_separate_output,
    resolve_input_path,
)
from redactory.pipelines.json_paths import Fields
from redactory.pipelines.readers import Source
from redactory.pipelines.readers.formats import choose_reader
from redactory.pipelines.store import is_url
from redactory.redaction.encryption import decrypt, derive_key, encrypt
from redactory.redaction.mask import Edit

_TOKEN = re.compile(r"<[A-Z_]+_[a-z2-7]{16}>")
_MAX_ROW_BYTES = 1 << 30
_LOCK_TIMEOUT = 60.0
"""Maximum seconds to wait while another copy writes the same vault."""


@dataclass
class PseudonymVault:
    """The value of each pseudonym of a copy, and the fields that contain them."""

    fields: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    spellings: dict[str, dict[str, list[list[str]]]] = field(default_factory=dict)
    """Of the texts in which a value is spelled in another way, by the digest of what is written of them and
    by their rows, all values as they were spelled."""

    def record_spellings(self, row: int, masked_text: str, pseudonyms: list[str], spellings: list[str]) -> None:
        """Keep the ``spellings`` of the values in a text if its ``pseudonyms`` do not imply them."""
        if [self.values[pseudonym] for pseudonym in pseudonyms] != spellings:
            self.spellings.setdefault(_digest_text(masked_text), {}).setdefault(str(row), []).append(spellings)

    def pop_spellings(self, row: int, text: str) -> list[str]:
        """Return the spellings of the values behind the pseudonyms of ``text``; empty if the pseudonyms imply them.

        If several rows have become equal, the row number decides; a row that has moved gets the first spellings.
        """
        rows = self.spellings.get(_digest_text(text), {})
        ways = rows.get(str(row)) or next(iter(rows.values()), [])
        # equal texts of one row are restored in order
        return (ways.pop(0) if len(ways) > 1 else ways[0]) if ways else []

    @classmethod
    def open_or_create(cls, path: Path) -> PseudonymVault:
        """Open the vault at ``path``, or create an empty one; entries of earlier copies are kept.

        Raises ``ConfigurationError`` if it cannot be written (no key or no folder), ``InputError`` if ``path`` is
        something else.
        """
        _derive_vault_key()
        if not os.access(path.absolute().parent, os.W_OK):
            raise ConfigurationError(f"vault: {path} cannot be written: its folder is missing, or not writable")
        return cls.read(path) if os.path.lexists(path) else cls()

    def merge_into(self, path: Path) -> None:
        """Merge the entries of this vault into the encrypted one at ``path``, whose entries are kept."""
        path = path.absolute()
        lock = path.parent.resolve() / f"{path.name}.lock"
        with file_lock(lock, f"the vault {path.name}", _LOCK_TIMEOUT):
            remove_leftovers(path.parent, glob.escape(path.name))
            existing = PseudonymVault.open_or_create(path)
            fields = [*dict.fromkeys((*existing.fields, *self.fields))]
            spellings = existing.spellings
            for text, rows in self.spellings.items():
                spellings[text] = {**rows, **spellings.get(text, {})}
            merged = {"fields": fields, "values": {**self.values, **existing.values}, "spellings": spellings}
            data = json.dumps(merged, ensure_ascii=False).encode("utf-8", "surrogatepass")
            write_bytes(path, encrypt(_derive_vault_key(), data, b"redactory vault"))

    @classmethod
    def read(cls, path: Path) -> PseudonymVault:
        """Decrypt the vault at ``path``.

        Raises ``InputError`` if the file is not a vault or has another key, ``ConfigurationError`` if no key is set.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        variables = f"{ENCRYPTION_VARIABLE}_FILE (or {ENCRYPTION_VARIABLE})"
        key = _derive_vault_key(f"{path.name} is encrypted: set {variables} to the key it was written with")
        try:
            return cls(**json.loads(decrypt(key, content, b"redactory vault")))
        except (InvalidTag, ValueError):
            raise InputError(
                f"{path} is not a vault, or {ENCRYPTION_VARIABLE} is not the key it was written with"
            ) from None


def _digest_text(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _derive_vault_key(message: str = "") -> bytes:
    secret = load_encryption_key()
    if secret is None:
        new = f"set {ENCRYPTION_VARIABLE}_FILE (create a key with redactory keys new encryption FILE)"
        raise ConfigurationError(message or f"a vault is encrypted: {new}")
    return derive_key(secret, "vault")


def unmask(input_path: str | Path, out: str | Path, vault: str | Path, *, format_: str = "auto") -> dict[str, Any]:
    """Write a copy of ``input_path`` to ``out`` with the values of its pseudonyms; return counts of rows and tokens.

    Each use is recorded in ``VAULT.log.jsonl``: who, when, which file, how many. A token that the vault does not
    contain stays and is counted as unknown. Each file of a folder that ``redact`` wrote is restored separately.
    """
    pseudonym_vault = PseudonymVault.read(Path(vault))
    input_path = resolve_input_path(str(input_path))
    if str(out) == PIPE or is_url(str(out)):
        raise ConfigurationError("--out: original values can only be written to a local file or folder")
    require_separate_output(input_path, str(out))
    sources, is_folder = find_copy_sources(input_path, format_)
    require_matching_format(str(out), sources, is_folder)
    return run_with_hidden_error_text(
        "values were restored", _restore_files, sources, is_folder, str(out), pseudonym_vault, Path(vault)
    )


def _restore_files(
    sources: list[Source], is_folder: bool, out: str, pseudonym_vault: PseudonymVault, vault_path: Path
) -> dict[str, Any]:
    rows, counts = 0, Counter[str]()
    with open_unfinished_copy(out, sources, {"vault": os.path.abspath(vault_path)}) as work:
        if (previous_summary := work.load_summary(out)) is not None:
            return previous_summary
        for source in sources:
            target_path = work.staging_path / source.name if is_folder else work.staging_path
            make_folder(target_path.parent)
            name = source.name if is_folder else Path(out).name
            file_rows, file_counts = _unmask_file(source, target_path, name, pseudonym_vault, vault_path)
            rows, counts = rows + file_rows, counts + file_counts
        unknown = counts.pop("unknown", 0)
        summary = {"rows": rows, "unmasked": dict(counts.most_common()), "put_back": counts.total(), "unknown": unknown}
        work.finish(out, summary)
    return summary


def _unmask_file(
    source: Source, target: Path, name: str, vault: PseudonymVault, vault_path: Path
) -> tuple[int, Counter[str]]:
    counts: Counter[str] = Counter()
    rows = 0

    def make_edits(row: int, text: str) -> list[Edit]:
        tokens = list(_TOKEN.finditer(text))
        known = [token for token in tokens if token[0] in vault.values]
        counts.update(token[0][1:].rpartition("_")[0] for token in known)
        counts["unknown"] += len(tokens) - len(known)
        values = vault.pop_spellings(row, text)
        if len(values) != len(known):
            values = [vault.values[token[0]] for token in known]
        return [Edit(*token.span(), value) for token, value in zip(known, values, strict=True)]

    with RecordLog(Path(f"{vault_path}.log.jsonl")) as log:
        # log before writing: no use may go unlogged
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        log_entry = {"by": getpass.getuser(), "at": now, "file": source.name, "out": Path(name).name}
        log.append("unmask", log_entry)
        with source.open() as file, open_compressed(target, name) as target_file:
            target.chmod(PRIVATE_FILE)
            fields = Fields(tuple(vault.fields))
            reader = choose_reader(source.format, file)(file, source.name, _MAX_ROW_BYTES, fields)

            def iterate_output() -> Iterator[Any]:
                nonlocal rows
                for row in reader.read_rows():
                    if isinstance(row, bytes):
                        yield row
                    elif row.render is None:
                        raise InputError(f"{source.name}, row {row.number}: {row.reason}")
                    else:
                        rows += row.number > 0
                        yield row.render([make_edits(row.number, text) for text in row.texts], {})

            reader.write(target_file, iterate_output())
        log.append("unmasked", {"rows": rows, "tokens": dict(+counts)})
    return rows, counts
