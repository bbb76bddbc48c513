"""The documentation hangs together: links, navigation, generated pages, what must and must not occur."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from redactory.detectors import detector
from redactory.detectors.rules import RULES
from redactory.pipelines.curation.config import Config
from redactory.pipelines.readers import documents, formats
from redactory.redaction.mask import MASK_REASON
from tests.docs.pages import DOCS, EVERYTHING, PAGES, README, ROOT, generator, name_of

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|tmp|root|home|Users|opt|mnt)/")


def test_every_key_of_the_configuration_is_in_the_reference() -> None:
    sections = _sections(generator().configuration())
    for path, model in generator().sections(Config, ""):
        for key in model.model_fields:
            assert f"\n| `{key}` |" in sections[path or "Top level"], f"{path}.{key}"


def test_every_command_is_in_the_reference_and_the_readme() -> None:
    reference, readme = generator().command_line(), README.read_text(encoding="utf-8")
    names = [name for name, _ in generator().commands()]
    assert "curate" in names
    for name in names:
        assert f"## `redactory {name}`\n" in reference
        assert re.search(rf"`(redactory )?{name}\b", readme), name


def test_every_reason_code_is_explained() -> None:
    page = generator().reason_codes()
    codes = {
        value
        for module in (documents, formats, detector)
        for name, value in vars(module).items()
        if name.isupper()
        and not name.endswith("_DETECTOR")
        and isinstance(value, str)
        and re.fullmatch("[a-z_]+", value)
    }
    assert {"broken_json", "too_long", "engine_error"} <= codes
    codes |= {MASK_REASON, *(f"rule:{rule.upper()}" for rule in RULES)}
    for code in codes:
        assert f"| `{code}` |" in page, code


def test_the_site_lists_every_page() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(_leaves(settings["nav"]))
    written = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*written, *generator().pages()])
    assert not set(written) & set(generator().pages()), "made when the site is built, and not to be committed"
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


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(entry)
