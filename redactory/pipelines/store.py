"""Stores: read and write files at a URL, with errors classified by kind.

``s3://`` uses pyarrow, which every installation has; any other protocol uses fsspec.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError
from redactory.foundation.files import PRIVATE_FILE, PRIVATE_FOLDER, commit_file

S3_SCHEME = "s3://"
_CHUNK = 1 << 20


class StoreProblem(StrEnum):
    """The kinds of store errors, in words."""

    NOT_KNOWN = "unsupported kind of file system"
    NOT_INSTALLED = "the package for this kind of store is not installed"
    NOT_FOUND = "there is no such bucket or folder"
    NOT_PERMITTED = "the credentials are missing, unknown, or not permitted to do this"
    NOT_REACHED = "the store cannot be reached; check the network and the endpoint"
    FAILED = "the store refused"


_MESSAGE_PATTERNS = (
    (r"AWS Error .*?(NO_SUCH|NOT_FOUND|404)|^Bucket '", StoreProblem.NOT_FOUND),
    (r"AWS Error .*?(ACCESS|INVALID_CLIENT|SIGNATURE|TOKEN|401|403)", StoreProblem.NOT_PERMITTED),
    (r"AWS Error (NETWORK_CONNECTION|REQUEST_TIMEOUT)", StoreProblem.NOT_REACHED),
    (r"AWS Error", StoreProblem.FAILED),
)
"""pyarrow has one class for all S3 errors; the service's code is only in the message."""
_ERROR_TYPES: tuple[tuple[type[Exception], StoreProblem], ...] = (
    (ImportError, StoreProblem.NOT_INSTALLED),
    (FileNotFoundError, StoreProblem.NOT_FOUND),
    (PermissionError, StoreProblem.NOT_PERMITTED),
    (ConnectionError, StoreProblem.NOT_REACHED),
    (TimeoutError, StoreProblem.NOT_REACHED),
    (ValueError, StoreProblem.NOT_KNOWN),
)


class StoreError(RunStateError):
    """An operation of a store failed; ``kind`` gives the reason, and its own message is never passed on."""

    def __init__(self, url: str, kind: StoreProblem, cause: str) -> None:
        super().__init__(f"{url}: {kind.value} ({cause})")
        self.kind = kind


def is_url(value: object) -> bool:
    """Return whether ``value`` is a URL and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", str(value), re.IGNORECASE) is not None


@contextmanager
def _translate_store_errors(url: str) -> Iterator[None]:
    """Turn any error of a file system into a :class:`StoreError` that names ``url``."""
    try:
        yield
    except RedactoryError:
        raise
    except Exception as error:  # each file system has errors of its own, whose messages may say anything
        if not is_url(url):
            raise
        raised = StoreError(remove_credentials(url), classify_store_error(error), describe_store_error(url, error))
    else:
        return
    raise raised


def classify_store_error(error: Exception) -> StoreProblem:
    """Return the kind of a file system error."""
    # patterns first: fsspec reports an unknown credential ("the key does not exist") as a missing file
    by_message = (kind for pattern, kind in _MESSAGE_PATTERNS if re.search(pattern, str(error)))
    by_type = (kind for type_, kind in _ERROR_TYPES if isinstance(error, type_))
    return next(by_message, None) or next(by_type, StoreProblem.FAILED)


def describe_store_error(url: str, error: Exception) -> str:
    """Return the class of an error, or the package that the store needs (a fixed sentence of fsspec)."""
    scheme = url.partition("://")[0].lower()
    if isinstance(error, ImportError):
        from fsspec.registry import known_implementations

        return str(known_implementations.get(scheme, {}).get("err") or type(error).__name__)
    unknown = isinstance(error, ValueError) and "Protocol not known" in str(error)
    return f"fsspec does not support '{scheme}'" if unknown else type(error).__name__


def remove_credentials(url: str) -> str:
    """Return ``url`` without the user name and password before the ``@`` of its host."""
    return re.sub(r"(?<=://)[^/]*@", "", url)


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL or path, and the path in it."""
    import fsspec

    if url.startswith(S3_SCHEME):
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import S3FileSystem

        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return ArrowFSWrapper(S3FileSystem(endpoint_override=endpoint)), url.removeprefix(S3_SCHEME)
    filesystem, inner = fsspec.core.url_to_fs(url)
    return filesystem, inner


def list_files_recursively(filesystem: Any, folder: str) -> list[str]:
    """List all files below ``folder``, if it exists; raises on errors, which fsspec's ``find`` would ignore."""
    try:
        tree = list(filesystem.walk(folder, detail=True, on_error="raise"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    file_names = (entry["name"] for _, _, files in tree for entry in files.values())
    return sorted(name for name in file_names if not name.endswith("/"))


@dataclass(frozen=True)
class Store:
    """The files below one URL or folder, by relative name; ``url`` is without secrets."""

    url: str
    filesystem: Any
    root: str

    @classmethod
    def from_url(cls, url: str) -> Store:
        """Open the store of a URL; ``StoreError`` if no file system is known for it."""
        with _translate_store_errors(url):
            filesystem, root = open_filesystem(url.rstrip("/"))
            if not root.strip("/"):
                raise StoreError(remove_credentials(url), StoreProblem.NOT_FOUND, "no folder is named")
            return cls(remove_credentials(url.rstrip("/")), filesystem, root.rstrip("/"))

    @classmethod
    def from_folder(cls, folder: Path) -> Store:
        """Open a folder on this machine, whose errors are those of the system."""
        from fsspec.implementations.local import LocalFileSystem

        return cls(str(folder), LocalFileSystem(), folder.absolute().as_posix())

    def list_names(self) -> set[str]:
        """Return the names of all files."""
        with _translate_store_errors(self.url):
            self.filesystem.invalidate_cache()
            paths = list_files_recursively(self.filesystem, self.root)
            return {PurePosixPath(name).relative_to(self.root).as_posix() for name in paths}

    def get_file_size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        with _translate_store_errors(self.url), suppress(FileNotFoundError):
            return int(self.filesystem.info(f"{self.root}/{name}")["size"])
        return None

    def get_file_mode(self, name: str) -> int:
        """Return the mode of a file; that of a private one where files have none."""
        with _translate_store_errors(self.url):
            return int(self.filesystem.info(f"{self.root}/{name}").get("mode", PRIVATE_FILE)) & 0o777

    @contextmanager
    def _open_file(self, name: str) -> Iterator[BinaryIO]:
        with _translate_store_errors(self.url), self.filesystem.open(f"{self.root}/{name}", "rb") as file:
            yield file

    def read_file(self, name: str) -> bytes | None:
        """Read a small file completely; None if it does not exist."""
        if self.get_file_size(name) is None:
            return None
        with self._open_file(name) as file:
            return file.read()

    def compute_digest(self, name: str) -> str:
        """Return the hex SHA-256 of a file, read in blocks."""
        digest = hashlib.sha256()
        with self._open_file(name) as file:
            while block := file.read(_CHUNK):
                digest.update(block)
        return digest.hexdigest()

    def copy_file(self, source: Store, name: str, digest: str) -> int:
        """Copy a file of ``source`` to the same name, and read it back; return its size in bytes.

        ``CheckFailed`` if it is missing, or if its copy has another sha256 than ``digest``.
        """
        if (size := source.get_file_size(name)) is None:
            raise CheckFailed(f"{source.url}/{name} is missing")
        with source._open_file(name) as file:
            self.write_file(name, file, source.get_file_mode(name))
        if self.compute_digest(name) != digest:
            raise CheckFailed(
                f"{source.url}/{name} changed after sealing, or was not copied completely to {self.url}; try again"
            )
        return size

    def upload_file(self, path: Path, name: str) -> None:
        """Write the file ``path`` as ``name``, as :meth:`write_file`, with its mode."""
        with path.open("rb") as source:
            self.write_file(name, source, path.stat().st_mode & 0o777)

    def write_file(self, name: str, source: BinaryIO, mode: int = PRIVATE_FILE) -> None:
        """Write a file atomically: in a folder, where it gets ``mode``, as in an object store."""
        from fsspec.implementations.local import LocalFileSystem

        target = f"{self.root}/{name}"
        with _translate_store_errors(self.url):
            if not isinstance(self.filesystem, LocalFileSystem):
                with self.filesystem.open(target, "wb") as file:
                    shutil.copyfileobj(source, file, _CHUNK)
                return
            Path(target).parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            with commit_file(Path(target), mode) as temporary, temporary.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)

    def remove_file(self, name: str) -> None:
        """Remove a file."""
        with _translate_store_errors(self.url):
            self.filesystem.rm_file(f"{self.root}/{name}")
