"""The documentation hangs together: links, navigation, generated pages, what must and must not occur."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from redactory.detectors import detector
from redactory.detectors.rules import RULES
from redactory.flows.cli import app
from redactory.pipelines.config import Config
from redactory.pipelines.readers import documents, formats
from redactory.redaction.sides import MASK_REASON
from tests.docs.pages import DOCS, EVERYTHING, PAGES, README, ROOT, name_of

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|tmp|root|home|Users|opt|mnt)/")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """``docs/generate.py``."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_those_of_the_code(generate: ModuleType) -> None:
    pages = generate.pages()
    assert len(pages) == 4
    for page, content in pages.items():
        told = f"{name_of(page)} is out of date: run python docs/generate.py"
        assert page.read_text(encoding="utf-8") == content, told


def test_every_key_of_the_configuration_is_in_the_reference() -> None:
    sections = _sections((DOCS / "reference" / "configuration.md").read_text(encoding="utf-8"))
    for path, model in _models(Config, ""):
        for key in model.model_fields:
            assert f"\n| `{key}` |" in sections[path or "Top level"], f"{path}.{key}"


def test_every_command_is_in_the_reference_and_the_readme(generate: ModuleType) -> None:
    reference = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    names = [name for name, _ in generate.commands(app)]
    assert "curate" in names
    assert "evaluate canary" in names
    for name in names:
        assert f"## `redactory {name}`\n" in reference
        assert f"| `redactory {name}" in readme


def test_every_reason_code_is_explained() -> None:
    page = (DOCS / "reference" / "reason-codes.md").read_text(encoding="utf-8")
    codes = {
        value
        for module in (documents, formats, detector)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and re.fullmatch("[a-z_]+", value)
    }
    assert {"broken_json", "too_long", "engine_error"} <= codes
    codes |= {MASK_REASON, *(f"rule:{rule.upper()}" for rule in RULES)}
    for code in codes:
        assert f"| `{code}` |" in page, code


def test_the_site_lists_every_page() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(_leaves(settings["nav"]))
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    assert settings["theme"]["font"] is False


@pytest.mark.parametrize("page", EVERYTHING, ids=name_of)
def test_no_machine_is_named(page: Path) -> None:
    assert not MACHINE_PATHS.search(page.read_text(encoding="utf-8"))


def test_a_machine_path_would_be_found() -> None:
    assert MACHINE_PATHS.search("see /home/ann/run")
    assert not MACHINE_PATHS.search("see docs/tmp and /etc/redactory")


def test_every_page_has_one_title() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, name_of(page)


def _sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## `?([^`\n]+)`?$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _models(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        kinds = list(_kinds(field.annotation))
        for kind in kinds:
            named = f" ({kind.model_fields['kind'].annotation.__args__[0]})" if len(kinds) > 1 else ""
            yield from _models(kind, f"{path}.{name}".lstrip(".") + named)


def _kinds(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _kinds(part)


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(entry)
