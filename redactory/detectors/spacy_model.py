"""Load spaCy pipelines and identify them by content, without importing unused libraries."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from redactory.foundation.canonical import folder_sha256, get_package_version, json_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.foundation.processes import ENGINE_LOCK

if TYPE_CHECKING:
    from spacy.language import Language


_UNUSED_PACKAGES = ("torch", "transformers", "stanza")
"""Packages that spaCy (the first) and Presidio (all) import needlessly, at a cost of seconds and much memory."""
_TORCH_PACKAGES = ("spacy_transformers", "spacy_curated_transformers")
"""If one of these is installed, a spaCy pipeline may have PyTorch layers."""


@contextmanager
def hide_unused_packages() -> Iterator[None]:
    """Hide packages that spaCy and Presidio do not need, as if they were not installed.

    Already imported modules stay, and hidden ones can be imported afterwards. Nothing is hidden if spaCy's transformer
    packages are installed. Other threads should not import PyTorch at the same time.
    """
    with ENGINE_LOCK:
        absent = [name for name in _UNUSED_PACKAGES if name not in sys.modules]
        hidden = [] if any(map(importlib.util.find_spec, _TORCH_PACKAGES)) else absent
        # None in sys.modules makes an import fail
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        try:
            yield
        finally:
            for name in hidden:
                del sys.modules[name]


@functools.cache
def import_lean_spacy() -> ModuleType:
    """Import spaCy without unused packages.

    The first pipeline imports every package that offers a component. Presidio offers one, so import it here, while the
    packages are hidden. The first import also skips spaCy's command line, and Presidio's check of its own expressions,
    which compiles each.
    """
    with hide_unused_packages(), ExitStack() as restored:
        if "spacy" not in sys.modules:
            restored.enter_context(_hide_spacy_commands())
        if "presidio_analyzer" not in sys.modules:
            restored.enter_context(_skip_pattern_checks())
        import presidio_analyzer  # noqa: F401
        import spacy

    return spacy


@contextmanager
def _hide_spacy_commands() -> Iterator[None]:
    commands: Any = ModuleType("spacy.cli")
    commands.__path__, commands.info = (
        [],
        lambda *args, **options: importlib.import_module("spacy.cli").info(*args, **options),
    )
    sys.modules.update({"spacy.cli": commands, "spacy.cli.info": commands})
    try:
        yield
    finally:
        del sys.modules["spacy.cli"], sys.modules["spacy.cli.info"]


@contextmanager
def _skip_pattern_checks() -> Iterator[None]:
    """Load Presidio's module of patterns before its package, with a compiler that does nothing until the end."""
    package = importlib.util.find_spec("presidio_analyzer")
    folder = Path(package.origin).parent if package and package.origin else Path()
    spec = importlib.util.spec_from_file_location("presidio_analyzer.pattern", folder / "pattern.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[spec.name] = module
    compiler, module.re = module.re, SimpleNamespace(compile=lambda expression: None, error=ValueError)
    try:
        yield
    finally:
        module.re = compiler
        if loaded := sys.modules.get("presidio_analyzer"):
            vars(loaded)["pattern"] = module


_TAIL_CHARS, _CONTEXT_CHARS = 64, 16
"""Code points at the end of a long word to search for suffixes, and those among them that are only context."""


def speed_up_suffix_search(nlp: Language) -> Language:
    """Make the tokenizer of ``nlp`` search suffixes only at the end of a word.

    By default it searches from the beginning, again for each suffix: quadratic in the length of a word.
    """
    tokenizer: Any = nlp.tokenizer
    search = tokenizer.suffix_search

    def search_suffix(word: str) -> Any:
        if len(word) > 2 * _TAIL_CHARS:
            suffix = search(word[-_TAIL_CHARS:])
            if suffix is None or suffix.start() >= _CONTEXT_CHARS:
                return suffix
        return search(word)

    if search is not None:
        tokenizer.suffix_search = search_suffix
    return nlp


@contextmanager
def enter_memory_zone(*pipelines: Language) -> Iterator[None]:
    """Let one thread read with ``pipelines``, and free on exit what they stored about its texts.

    This bounds memory. A thread that reads inside another's zone would lose the words of its own texts.
    """
    with ENGINE_LOCK, ExitStack() as zones:
        for nlp in pipelines:
            vocab: Any = nlp.vocab
            if vocab.in_memory_zone:
                # a signal or log handler may read while its own thread does
                raise RuntimeError("this pipeline is already in use")
            zones.enter_context(nlp.memory_zone())
        yield


BLANK_PREFIX = "blank:"
_EMBEDDINGS = frozenset({"tok2vec", "transformer"})
SPEECH_PIPES = frozenset({"tagger", "morphologizer", "parser", "attribute_ruler"})
"""The last assigns parts of speech from the others: an auxiliary by its place in the tree."""


def load_pipeline(model: str, with_pos_tags: bool = False) -> Language:
    """Load ``model`` with only the pipes for entities and, ``with_pos_tags``, parts of speech.

    Downloads nothing. ``ConfigurationError`` if it is not installed or unreadable.
    """
    spacy: Any = import_lean_spacy()
    if model.startswith(BLANK_PREFIX):
        return speed_up_suffix_search(spacy.blank(model.removeprefix(BLANK_PREFIX)))
    folder = find_model_folder(model)
    components = spacy.util.load_config(folder / "config.cfg").get("components", {})
    used = {"ner"} | (SPEECH_PIPES if with_pos_tags else set())
    # a recognizer with its own embedding does not need the shared one, which costs as much
    if any("Listener" in str(components.get(name, {}).get("model")) for name in used):
        used |= _EMBEDDINGS
    try:
        return speed_up_suffix_search(spacy.load(folder, exclude=[name for name in components if name not in used]))
    except Exception as error:
        problem = type(error).__name__
        raise ConfigurationError(f"detect.spacy.model: '{model}' cannot be loaded ({problem})") from None


@functools.lru_cache(maxsize=8)
def identify_model(model: str) -> dict[str, str]:
    """Return the manifest identity of ``model``: name, version and sha256 of its files; cached per process."""
    with hide_unused_packages():
        import spacy

    if model.startswith(BLANK_PREFIX):
        version = get_package_version("spacy")
        return {"name": model, "version": version, "sha256": json_sha256([model, version])}
    folder = find_model_folder(model)
    meta = spacy.util.load_meta(folder / "meta.json")
    # identified by its own metadata: the same pipeline may have several paths
    name = f"{meta.get('lang', 'xx')}_{meta.get('name', 'unknown')}"
    version = str(meta.get("version", "unknown"))
    return {"name": name, "version": version, "sha256": folder_sha256(folder)}


def read_model_meta(model: str) -> dict[str, Any]:
    """Read ``meta.json`` of ``model`` if it exists; for a blank model, return only its language."""
    if model.startswith(BLANK_PREFIX):
        return {"lang": model.removeprefix(BLANK_PREFIX)}
    file = find_model_folder(model) / "meta.json"
    meta: dict[str, Any] = read_json(file) if file.is_file() else {}
    return meta


def find_pipeline(language: str) -> str:
    """Find the installed pipeline of ``language`` with entities; ``ConfigurationError`` unless there is exactly one."""
    with hide_unused_packages():
        from spacy.util import get_installed_models

    metas = {name: read_model_meta(name) for name in sorted(get_installed_models())}
    candidates = [n for n, m in metas.items() if m.get("lang") == language and m.get("labels", {}).get("ner")]
    if len(candidates) != 1:
        problem = (
            f"several are installed ({', '.join(candidates)}): name" if candidates else "none is installed: install"
        )
        raise ConfigurationError(
            f"this needs a spaCy pipeline that finds entities of the language '{language}'; {problem} one, or "
            "give its folder after a colon"
        )
    return candidates[0]


def get_package_versions(*packages: str) -> dict[str, str]:
    """The installed version of each package."""
    return {package: get_package_version(package) for package in packages}


def find_model_folder(model: str) -> Path:
    """Return the folder with the pipeline's ``config.cfg``, from a path or an installed package's name."""
    path = Path(model)
    if (path / "config.cfg").is_file():
        return path
    spec = importlib.util.find_spec(model) if model.isidentifier() else None
    if spec is not None and spec.origin is not None:
        configs = sorted(Path(spec.origin).parent.glob("*/config.cfg"))
        if configs:
            return configs[0].parent
    raise ConfigurationError(
        f"detect.spacy.model: no spaCy pipeline '{model}' is installed here and no folder of that name "
        "holds a config.cfg; install the package, or give a path or blank:LANGUAGE"
    )
