"""Engines of other packages: found by their entry point, and held to what an engine promises.

A package offers a class under the entry point group ``redactory.engines``; the configuration names it under
``detect.engines``, with its options.  Redactory makes it with ``language`` and the options, and asks
``read(texts)`` for one list a text of ``(start, end, label, score)``: code points [start, end) and a score in
[0, 1].  The class says in ``labels`` what it can find.  Where None is among them, a tuple with the label None
says with which probability a token is plain.  It may say more:

``language``           of the running text that it was made for
``files``              options that name files or folders: known by their content, wherever they lie
``batch_independent``  True: may be handed many texts at once

``labels`` may be a function of the options, for a class that finds what it is told to.
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

from redactory.detectors.engine import ENGINE_ERROR, Finds, Plain, Reading, Span
from redactory.detectors.settings import KNOWN_LABELS, kind_of
from redactory.foundation.canonical import file_sha256, folder_sha256, version_of
from redactory.foundation.errors import ConfigurationError, RedactoryError, shorten
from redactory.foundation.processes import ONE_THREAD

GROUP = "redactory.engines"
PROBES = (
    "Anna Smith lives in Berlin and works for Acme Corporation.",
    "ok",
    "Please call (212) 555-0187 or write to anna@example.org before 3 May 2021; the code is AB-1234.",
    "thank you, it works now " * 20,
)
"""What every engine reads when it is loaded, to see whether it keeps its promises."""
_LABEL = re.compile("[A-Z][A-Z0-9_]*")


class Asked(NamedTuple):
    """One engine that the configuration names, and its options."""

    name: str
    options: Mapping[str, Any]


class BrokenPromise(ValueError):
    """An engine's answer is none; the message holds nothing of it."""


class ExternalEngine:
    """An engine of another package, as one of ours.

    It is asked for one text at a time, unless it says that a text's batch does not matter; then the first
    batch is read both ways, and the engine is taken at its word only where the answers are the same.
    """

    def __init__(self, settings: Asked, language: str) -> None:
        self._name = settings.name
        kind, labels = _class(settings)
        self._labels, self._public = labels, frozenset[str]()
        with _refusing(self._name, "it cannot be created with these options"):
            self._engine = kind(language=language, **settings.options)
        self._together = bool(getattr(kind, "batch_independent", False))
        self._tried = False
        self._prove()

    @classmethod
    def identity(cls, settings: Asked, language: str) -> dict[str, Any]:
        """Package, version, code and requirements; the options, and the contents of the files they name."""
        kind, _ = _class(settings)
        files = {name: settings.options[name] for name in getattr(kind, "files", ()) if name in settings.options}
        package = _entry(settings.name).dist
        # the folder of the package that the class lies in, or its file
        own, top = sys.modules[kind.__module__], sys.modules[kind.__module__.partition(".")[0]]
        code = Path(str(getattr(top, "__file__", None) or own.__file__))
        return {
            "package": package and package.name,
            "version": package and package.version,
            "versions": dict(_required(package)) if package else {},
            "code": _content(code.parent if code.name == "__init__.py" else code),
            "options": {name: value for name, value in settings.options.items() if name not in files},
            "files": {name: _given(settings.name, name, value) for name, value in files.items()},
        }

    @classmethod
    def finds(cls, settings: Asked, language: str) -> list[Finds]:
        """The labels that the class says it finds, in running text of the language that it says."""
        kind, labels = _class(settings)
        named = frozenset(label for label in labels if label is not None)
        made_for = getattr(kind, "language", None)
        part = f"engine {settings.name}"
        return [Finds(part, named, made_for, named - KNOWN_LABELS, "tokens" if None in labels else "names")]

    def fold(self, kinds: Collection[str]) -> None:
        """From now on what it finds of these kinds is as surely nothing else as its score says."""
        self._public = frozenset(kinds)

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; nothing that the engine logs or prints is seen."""
        with quiet():
            if self._together and self._tried:
                return self._ask(texts)
            alone = [self._alone(text) for text in texts]
            if self._together and len(texts) > 1:
                self._together, self._tried = self._ask(texts) == alone, True
            return alone

    def _alone(self, text: str) -> Reading:
        try:
            return self._ask([text])[0]
        except Exception:
            # whatever its message quotes, it ends here
            return Reading(failure=ENGINE_ERROR)

    def _ask(self, texts: Sequence[str]) -> list[Reading]:
        asked = [text for text in texts if text.strip()]
        answers = list(self._engine.read(list(asked))) if asked else []
        if len(answers) != len(asked):
            raise BrokenPromise("expected one answer per text")
        readings = (with_doubts(self._reading(answer), self._public) for answer in answers)
        return [next(readings) if text.strip() else Reading() for text in texts]

    def _reading(self, answer: Iterable[Any]) -> Reading:
        spans, plain = [], []
        for start, end, label, score in answer:
            if label not in self._labels:
                raise BrokenPromise("it returned a label that is not among its labels")
            if not 0 <= score <= 1:
                raise BrokenPromise("it returned a score that is not between 0 and 1")
            place = operator.index(start), operator.index(end)
            if label is None:
                plain.append(Plain(*place, float(score), self._name))
            else:
                spans.append(Span(*place, str(label), float(score), self._name))
        return Reading(tuple(spans), tuple(plain))

    def _prove(self) -> None:
        """``ConfigurationError`` where the engine cannot read, or reads a text now so and now otherwise."""
        with _refusing(self._name, "it cannot read simple words"):
            once = [self._ask([text])[0] for text in PROBES]
            again = [self._ask([text])[0] for text in reversed(PROBES)][::-1]
            together = self._ask(PROBES) if self._together else once
        if once != again:
            raise _refused(self._name, "it returns a different result for the same text the second time")
        if once != together:
            raise _refused(self._name, "it declares batch_independent, but its results differ in a batch and alone")


def with_doubts(reading: Reading, public: Collection[str]) -> Reading:
    """``reading``, in which a hit of a ``public`` kind is as surely nothing else as its score says."""
    doubts = (Plain(s.start, s.end, s.score, s.detector) for s in reading.spans if kind_of(s.label) in public)
    return Reading(reading.spans, (*reading.plain, *doubts), reading.allowed, reading.failure)


# What is installed under a name, and what it stands on.


def installed() -> list[str]:
    """The names under which installed packages offer engines."""
    return sorted({one.name for one in entry_points(group=GROUP)})


def file_options(name: str) -> tuple[str, ...]:
    """The options of an engine that name files or folders, as its class says; nothing is made of it."""
    entry = _entry(name)
    with _refusing(name, "its class cannot be loaded"):
        return tuple(getattr(entry.load(), "files", ()))


def _entry(name: str) -> EntryPoint:
    found = [one for one in entry_points(group=GROUP) if one.name == name]
    if len(found) > 1:
        packages = ", ".join(sorted(one.dist.name for one in found if one.dist))
        raise ConfigurationError(f"detect.engines.{name}: several packages offer it ({packages}); keep one")
    if not found:
        raise ConfigurationError(
            f"detect.engines.{name}: no installed package offers an engine of this name; installed: "
            f"{', '.join(installed()) or 'none'}"
        )
    return found[0]


def _required(package: Distribution) -> Iterator[tuple[str, str]]:
    """The installed versions of what a package says that it requires, extras aside."""
    for requirement in sorted(package.requires or ()):
        name = re.match(r"[\w.-]+", requirement)
        if name and not re.search(r"\bextra\b", requirement.partition(";")[2]):
            # what only other systems require is not there
            with contextlib.suppress(PackageNotFoundError):
                yield name[0], version_of(name[0])


def _class(settings: Asked) -> tuple[type[Any], frozenset[str | None]]:
    """The class and what it can find with these options; nothing is made of it."""
    name = settings.name
    entry = _entry(name)
    with _refusing(name, "its class, or the labels that it declares, cannot be loaded"):
        kind = entry.load()
        labels = kind.labels(**settings.options) if callable(kind.labels) else kind.labels
        found = frozenset(labels)
    if isinstance(labels, str) or not all(label is None or _LABEL.fullmatch(label) for label in found):
        raise _refused(name, "its labels are not a list of names in capitals, digits and _")
    if not found - {None}:
        raise _refused(name, "its class declares no labels, so it finds nothing")
    return kind, found


def _given(name: str, option: str, path: Any) -> str:
    if not isinstance(path, str) or not Path(path).exists():
        raise ConfigurationError(
            f"detect.engines.{name}.{shorten(option)}: there is no such file or folder; give its path"
        )
    return _content(Path(path))


def _content(path: Path) -> str:
    return folder_sha256(path) if path.is_dir() else file_sha256(path)


def _refused(name: str, why: str, error: Exception | None = None) -> ConfigurationError:
    """What is wrong with an engine; of an error only what is known to quote nothing."""
    if isinstance(error, RedactoryError | BrokenPromise):
        why += f": {error}"
    elif error is not None:
        why += f" ({type(error).__name__})"
    return ConfigurationError(f"detect.engines.{name}: {why}")


@contextlib.contextmanager
def _refusing(name: str, why: str) -> Iterator[None]:
    """``ConfigurationError`` where foreign code fails within; nothing that it logs or prints is seen."""
    try:
        with quiet():
            yield
    except Exception as error:
        raise _refused(name, why, error) from None


# Nothing that foreign code logs or prints is seen: it may quote what it reads.


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No log record, no warning and nothing printed within; one thread at a time, since these are all of
    the process's."""
    with ONE_THREAD, open(os.devnull, "w") as nowhere, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(sys.maxsize)
        try:
            with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                yield
        finally:
            logging.disable(level)
