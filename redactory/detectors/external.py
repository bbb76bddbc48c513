"""Find engines by entry point, and adapt simple ones of other packages, after checking their contract.

Every engine, ours too, is a class that a package registers under the entry point group ``redactory.engines``. The
configuration names one of another package under ``detect.engines``, with its options. It may have the methods of
:class:`redactory.detectors.engine.Engine` and a class attribute ``settings`` for its options. A simpler one has only
``read``. Redactory creates it with ``language`` and the options. ``read(texts)`` returns
one list per text of ``(start, end, label, score)``: code points [start, end) and a score in [0, 1]. The class attribute
``labels`` lists what it can find. If it includes None, a tuple with label None gives P(non-entity) of a token. Optional
attributes:

``language``           of the running text that it was made for
``files``              options that name files or folders: identified by content, not by path
``batch_independent``  True: may get many texts at once, and reads each as it would alone

``labels`` may be a function of the options.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
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

from pydantic import ValidationError

from redactory.detectors.engine import Capability, EngineOutput, NonEntityScore, Span
from redactory.detectors.settings import KNOWN_LABELS, DetectSettings, get_kind
from redactory.foundation.canonical import file_sha256, folder_sha256, get_package_version
from redactory.foundation.errors import ConfigurationError, RedactoryError, did_you_mean, join_words, shorten_name
from redactory.foundation.processes import ENGINE_LOCK
from redactory.foundation.settings import format_validation_error

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
    """Adapter for a simple engine; passes one text at a time, unless the engine declares ``batch_independent``."""

    def __init__(self, settings: EngineRequest, language: str) -> None:
        self._name = settings.name
        kind, labels = _load_class(settings)
        self._labels, self._public_kinds = labels, frozenset[str]()
        with _wrap_engine_errors(self._name, "it cannot be created with these options"):
            self._engine = kind(language=language, **settings.options)
        self._is_batched = bool(getattr(kind, "batch_independent", False))
        with _wrap_engine_errors(self._name, "it cannot read simple words"):
            # alone, and in another order or batch
            first, second = [self.read([text])[0] for text in PROBE_TEXTS], self.read(PROBE_TEXTS[::-1])[::-1]
        if first != second:
            advice = "; do not declare batch_independent" if self._is_batched else ""
            raise _make_engine_error(
                self._name, f"it returns a different result for the same text the second time{advice}"
            )

    @classmethod
    def collect_fingerprint(cls, settings: EngineRequest, language: str) -> dict[str, Any]:
        """Return package, version, code digest and requirements; the options, and digests of the files they name."""
        kind, _ = _load_class(settings)
        files = {name: settings.options[name] for name in getattr(kind, "files", ()) if name in settings.options}
        package = find_entry_point(settings.name).dist
        # the folder of the package that contains the class, or its file; ours has a version, and large models
        module, top = sys.modules[kind.__module__], sys.modules[kind.__module__.partition(".")[0]]
        is_ours = kind.__module__.startswith("redactory.")
        code = Path(str(module.__file__ if is_ours else getattr(top, "__file__", None) or module.__file__))
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
        non_blank = [text for text in texts if text.strip()]
        with suppress_output():
            batches = [non_blank] if self._is_batched else [[text] for text in non_blank]
            answers = [answer for batch in batches if batch for answer in self._engine.read(list(batch))]
            if len(answers) != len(non_blank):
                raise EngineContractError("expected one answer per text")
            outputs = [add_public_scores(self._convert_answer(answer), self._public_kinds) for answer in answers]
        by_text = iter(outputs)
        return [next(by_text) if text.strip() else EngineOutput() for text in texts]

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


def add_public_scores(output: EngineOutput, public_kinds: Collection[str]) -> EngineOutput:
    """Add P(public) for spans of ``public_kinds``, equal to their scores."""
    scores = (
        NonEntityScore(s.start, s.end, s.score, s.detector) for s in output.spans if get_kind(s.label) in public_kinds
    )
    return EngineOutput(output.spans, (*output.non_entity_scores, *scores), output.allowed_ranges, output.failure)


@functools.lru_cache(maxsize=4)
def _list_entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # reading the metadata of every installed package takes a tenth of a second
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def list_installed_engines() -> list[str]:
    """The names of the engines that other packages offer."""
    return sorted({entry.name for entry in _list_entry_points(tuple(sys.path))} - DetectSettings.model_fields.keys())


def load_engine_class(name: str) -> type[Any]:
    """Load the class of an engine; ``ConfigurationError`` for one of another package that cannot be loaded."""
    entry = find_entry_point(name)
    with _wrap_engine_errors(name, "its class cannot be loaded"):
        kind: type[Any] = entry.load()
    return kind


def find_entry_point(name: str) -> EntryPoint:
    """Find the entry point of an engine; ``ConfigurationError`` unless exactly one package offers it."""
    key = f"detect.{name}" if name in DetectSettings.model_fields else f"detect.engines.{name}"
    matches = [entry_point for entry_point in _list_entry_points(tuple(sys.path)) if entry_point.name == name]
    if len(matches) > 1:
        packages = ", ".join(sorted(entry_point.dist.name for entry_point in matches if entry_point.dist))
        raise ConfigurationError(f"{key}: several packages offer it ({packages}); keep one")
    if not matches:
        if name in DetectSettings.model_fields:
            raise ConfigurationError(
                f"{key}: its entry point is not installed; install Redactory again (in a checkout: make install)"
            )
        installed = list_installed_engines()
        raise ConfigurationError(
            f"{key}: no installed package offers an engine of this name; installed: "
            f"{', '.join(installed) or 'none'}{did_you_mean(name, installed)}"
        )
    return matches[0]


def parse_options(name: str, kind: type[Any], options: Mapping[str, Any]) -> Any:
    """Validate the options of an engine with its class attribute ``settings``."""
    try:
        return kind.settings.model_validate(dict(options))
    except ValidationError as error:
        fields = kind.settings.model_fields
        problems = [
            f"detect.engines.{name}.{'.'.join(map(shorten_name, problem['loc']))}: "
            + (
                f"unknown option{did_you_mean(str(problem['loc'][-1]), fields)}"
                if problem["type"] == "extra_forbidden"
                else format_validation_error(problem)
            )
            for problem in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigurationError("; ".join(problems)) from None


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
    kind = load_engine_class(name)
    _reject_unknown_options(kind, settings)
    with _wrap_engine_errors(name, "the labels that it declares cannot be loaded"):
        labels = kind.labels(**settings.options) if callable(kind.labels) else kind.labels
        label_set = frozenset(labels)
    if isinstance(labels, str) or not all(label is None or _LABEL.fullmatch(label) for label in label_set):
        raise _make_engine_error(name, "its labels are not a list of names in capitals, digits and _")
    if not label_set - {None}:
        raise _make_engine_error(name, "its class declares no labels, so it finds nothing")
    return kind, label_set


def _reject_unknown_options(kind: type[Any], settings: EngineRequest) -> None:
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:  # some classes of C modules have no signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    options = parameters.keys() - {"language"}
    for option in settings.options.keys() - options:
        hint = did_you_mean(option, options) or f"; its options: {join_words(sorted(options)) or 'none'}"
        raise ConfigurationError(f"detect.engines.{settings.name}.{shorten_name(option)}: unknown option{hint}")


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
