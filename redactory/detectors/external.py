"""Load engines of other packages by entry point, and check that they keep the engine contract.

A package registers a class under the entry point group ``redactory.engines``; the configuration names it under
``detect.engines``, with its options. Redactory creates it with ``language`` and the options. ``read(texts)`` returns
one list per text of ``(start, end, label, score)``: code points [start, end) and a score in [0, 1]. The class attribute
``labels`` lists what it can find. If it includes None, a tuple with label None gives P(non-entity) of a token. Optional
attributes:

``language``           of the running text that it was made for
``files``              options that name files or folders: identified by content, not by path
``batch_independent``  True: may get many texts at once

``labels`` may be a function of the options.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from redactory.detectors.engine import ENGINE_ERROR, Capability, EngineOutput, NonEntityScore, Span
from redactory.detectors.settings import KNOWN_LABELS, get_kind
from redactory.foundation.canonical import file_sha256, folder_sha256, get_package_version
from redactory.foundation.errors import ConfigurationError, RedactoryError, shorten_name
from redactory.foundation.processes import ENGINE_LOCK

ENTRY_POINT_GROUP = "redactory.engines"
PROBE_TEXTS = (
    "Anna Smith lives in Berlin and works for Acme Corporation.",
    "ok",
    "Please call (212) 555-0187 or write to anna@example.org before 3 May 2021; the code is AB-1234.",
    "thank you, it works now " * 20,
)
"""Texts that every engine reads after loading, to check the contract."""
_LABEL = re.compile("[A-Z][A-Z0-9_]*")


class EngineRequest(NamedTuple):
    """One engine that the configuration names, and its options."""

    name: str
    options: Mapping[str, Any]


class EngineContractError(ValueError):
    """An engine returned an invalid answer; the message quotes nothing of it."""


class ExternalEngine:
    """Adapter for an engine of another package.

    It passes one text at a time, unless the engine declares ``batch_independent``. Then the first batch is read both
    ways, and batches are used only if the answers agree.
    """

    def __init__(self, settings: EngineRequest, language: str) -> None:
        self._name = settings.name
        kind, labels = _load_class(settings)
        self._labels, self._public_kinds = labels, frozenset[str]()
        with _wrap_engine_errors(self._name, "it cannot be created with these options"):
            self._engine = kind(language=language, **settings.options)
        self._is_batched = bool(getattr(kind, "batch_independent", False))
        self._is_batching_verified = False
        self._check_contract()

    @classmethod
    def collect_fingerprint(cls, settings: EngineRequest, language: str) -> dict[str, Any]:
        """Return package, version, code digest and requirements; the options, and digests of the files they name."""
        kind, _ = _load_class(settings)
        files = {name: settings.options[name] for name in getattr(kind, "files", ()) if name in settings.options}
        package = _find_entry_point(settings.name).dist
        # the folder of the package that contains the class, or its file
        module, top = sys.modules[kind.__module__], sys.modules[kind.__module__.partition(".")[0]]
        code = Path(str(getattr(top, "__file__", None) or module.__file__))
        return {
            "package": package and package.name,
            "version": package and package.version,
            "versions": dict(_iter_requirement_versions(package)) if package else {},
            "code": _hash_path(code.parent if code.name == "__init__.py" else code),
            "options": {name: value for name, value in settings.options.items() if name not in files},
            "files": {name: _hash_option_path(settings.name, name, value) for name, value in files.items()},
        }

    @classmethod
    def list_capabilities(cls, settings: EngineRequest, language: str) -> list[Capability]:
        """The labels that the engine class declares, in running text of its declared language."""
        kind, labels = _load_class(settings)
        named = frozenset(label for label in labels if label is not None)
        made_for = getattr(kind, "language", None)
        part = f"engine {settings.name}"
        return [Capability(part, named, made_for, named - KNOWN_LABELS, "tokens" if None in labels else "names")]

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Trust the score of spans of these kinds, so that they can be public."""
        self._public_kinds = frozenset(kinds)

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; suppress everything that the engine logs or prints."""
        with suppress_output():
            if self._is_batched and self._is_batching_verified:
                return self._read_batch(texts)
            outputs = [self._read_single(text) for text in texts]
            if self._is_batched and len(texts) > 1:
                self._is_batched, self._is_batching_verified = self._read_batch(texts) == outputs, True
            return outputs

    def _read_single(self, text: str) -> EngineOutput:
        try:
            return self._read_batch([text])[0]
        except Exception:
            # the message may quote text: drop it
            return EngineOutput(failure=ENGINE_ERROR)

    def _read_batch(self, texts: Sequence[str]) -> list[EngineOutput]:
        non_blank = [text for text in texts if text.strip()]
        answers = list(self._engine.read(list(non_blank))) if non_blank else []
        if len(answers) != len(non_blank):
            raise EngineContractError("expected one answer per text")
        outputs = (add_public_scores(self._convert_answer(answer), self._public_kinds) for answer in answers)
        return [next(outputs) if text.strip() else EngineOutput() for text in texts]

    def _convert_answer(self, answer: Iterable[Any]) -> EngineOutput:
        spans, plain = [], []
        for start, end, label, score in answer:
            if label not in self._labels:
                raise EngineContractError("it returned a label that is not among its labels")
            if not 0 <= score <= 1:
                raise EngineContractError("it returned a score that is not between 0 and 1")
            offsets = operator.index(start), operator.index(end)
            if label is None:
                plain.append(NonEntityScore(*offsets, float(score), self._name))
            else:
                spans.append(Span(*offsets, str(label), float(score), self._name))
        return EngineOutput(tuple(spans), tuple(plain))

    def _check_contract(self) -> None:
        """Raise ``ConfigurationError`` if the engine cannot read, or reads the same text in two ways."""
        with _wrap_engine_errors(self._name, "it cannot read simple words"):
            first = [self._read_batch([text])[0] for text in PROBE_TEXTS]
            second = [self._read_batch([text])[0] for text in reversed(PROBE_TEXTS)][::-1]
            batched = self._read_batch(PROBE_TEXTS) if self._is_batched else first
        if first != second:
            raise _make_engine_error(self._name, "it returns a different result for the same text the second time")
        if first != batched:
            raise _make_engine_error(
                self._name, "it declares batch_independent, but its results differ in a batch and alone"
            )


def add_public_scores(output: EngineOutput, public_kinds: Collection[str]) -> EngineOutput:
    """Add P(public) for spans of ``public_kinds``, equal to their scores."""
    scores = (
        NonEntityScore(s.start, s.end, s.score, s.detector) for s in output.spans if get_kind(s.label) in public_kinds
    )
    return EngineOutput(output.spans, (*output.non_entity_scores, *scores), output.allowed_ranges, output.failure)


def list_installed_engines() -> list[str]:
    """The names of the engines that installed packages offer."""
    return sorted({entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP)})


def list_file_options(name: str) -> tuple[str, ...]:
    """List the options of an engine that name files or folders; create nothing."""
    entry = _find_entry_point(name)
    with _wrap_engine_errors(name, "its class cannot be loaded"):
        return tuple(getattr(entry.load(), "files", ()))


def _find_entry_point(name: str) -> EntryPoint:
    matches = [entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP) if entry_point.name == name]
    if len(matches) > 1:
        packages = ", ".join(sorted(entry_point.dist.name for entry_point in matches if entry_point.dist))
        raise ConfigurationError(f"detect.engines.{name}: several packages offer it ({packages}); keep one")
    if not matches:
        raise ConfigurationError(
            f"detect.engines.{name}: no installed package offers an engine of this name; installed: "
            f"{', '.join(list_installed_engines()) or 'none'}"
        )
    return matches[0]


def _iter_requirement_versions(package: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the installed versions of a package's requirements, without extras."""
    for requirement in sorted(package.requires or ()):
        name = re.match(r"[\w.-]+", requirement)
        if name and not re.search(r"\bextra\b", requirement.partition(";")[2]):
            with contextlib.suppress(PackageNotFoundError):
                yield name[0], get_package_version(name[0])


def _load_class(settings: EngineRequest) -> tuple[type[Any], frozenset[str | None]]:
    """Return the class and the labels for these options; create no instance."""
    name = settings.name
    entry = _find_entry_point(name)
    with _wrap_engine_errors(name, "its class, or the labels that it declares, cannot be loaded"):
        kind = entry.load()
        labels = kind.labels(**settings.options) if callable(kind.labels) else kind.labels
        label_set = frozenset(labels)
    if isinstance(labels, str) or not all(label is None or _LABEL.fullmatch(label) for label in label_set):
        raise _make_engine_error(name, "its labels are not a list of names in capitals, digits and _")
    if not label_set - {None}:
        raise _make_engine_error(name, "its class declares no labels, so it finds nothing")
    return kind, label_set


def _hash_option_path(name: str, option: str, path: Any) -> str:
    if not isinstance(path, str) or not Path(path).exists():
        raise ConfigurationError(
            f"detect.engines.{name}.{shorten_name(option)}: there is no such file or folder; give its path"
        )
    return _hash_path(Path(path))


def _hash_path(path: Path) -> str:
    return folder_sha256(path) if path.is_dir() else file_sha256(path)


def _make_engine_error(name: str, reason: str, error: Exception | None = None) -> ConfigurationError:
    if isinstance(error, RedactoryError | EngineContractError):
        reason += f": {error}"
    elif error is not None:
        reason += f" ({type(error).__name__})"
    return ConfigurationError(f"detect.engines.{name}: {reason}")


@contextlib.contextmanager
def _wrap_engine_errors(name: str, reason: str) -> Iterator[None]:
    """Turn failures of foreign code into ``ConfigurationError``; suppress its logs and output."""
    try:
        with suppress_output():
            yield
    except Exception as error:
        raise _make_engine_error(name, reason, error) from None


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress logs, warnings and prints, which may quote text; process-wide, so one thread at a time."""
    with ENGINE_LOCK, open(os.devnull, "w") as devnull, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(sys.maxsize)
        try:
            with contextlib.redirect_stdout(devnull), contextlib.redirect_stderr(devnull):
                yield
        finally:
            logging.disable(level)
