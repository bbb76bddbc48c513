"""What the building of the site does not see: links of pages outside of it, names of files, pictures.

``mkdocs build --strict`` checks the links and anchors within ``docs/``.  README, CHANGELOG and the examples
link into that tree and are no part of the site; they are read on code hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import DOCS, EVERYTHING, ROOMS, ROOT, anchors, generated, links, name_of, prose

_TAG = re.compile(r"""<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)\s*=\s*["']([^"']+)["']""")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_NAMED = re.compile(rf"`((?:{'|'.join(set(ROOMS) - {'container'})})/[\w./-]+)(?:::\w+)?`")
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_ELSEWHERE = re.compile(r"https://[\w.-]+(?:/\S*)?|mailto:\S+")

PICTURES = sorted((DOCS / "images").iterdir())
DRAWN = [picture for picture in PICTURES if picture.suffix == ".svg"]


def faults(page: Path, text: str) -> Iterator[str]:
    """What is wrong with the links in a page's prose, and with the files that it names."""
    for link in [*links(text), *_TAG.findall(text), *_REFERENCE.findall(text)]:
        fault = _fault(page, link)
        if fault:
            yield f"{link}: {fault}"
    for named in _NAMED.findall(text):
        if not (ROOT / named).exists():
            yield f"`{named}`: no such file"


def _fault(page: Path, link: str) -> str | None:
    if ":" in link.split("/")[0]:
        return None if _ELSEWHERE.fullmatch(link) else "neither https nor a path"
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    # what is made for the site is no file, and only the site's own pages lead to it
    built = DOCS in page.parents and target in generated()
    if not (target.exists() or built) or ROOT not in target.parents:
        return "no such file"
    if DOCS in page.parents and DOCS not in target.parents:
        return "leads out of the site"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", EVERYTHING, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(faults(page, prose(page))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](nowhere.md)", "no such file"),
        ("[a](tutorial.md#no-such-heading)", "no such heading"),
        ("[a](#not-here)", "no such heading"),
        ("![a](images/missing.svg)", "no such file"),
        ('<img src="images/missing.svg">', "no such file"),
        ("[a][b]\n\n[b]: nowhere.md", "no such file"),
        ("[a](../README.md)", "leads out of the site"),
        ("[a](../../elsewhere)", "no such file"),
        ("[a](http://example.com)", "neither https nor a path"),
        ("`docs/nowhere.md`", "no such file"),
    ],
)
def test_a_broken_link_would_be_noticed(text: str, fault: str) -> None:
    assert [found.rpartition(": ")[2] for found in faults(DOCS / "index.md", text)] == [fault]


def test_good_links_are_none() -> None:
    assert _fault(DOCS / "index.md", "tutorial.md#1-a-key") is None
    assert _fault(ROOT / "README.md", "docs/guarantees.md#substitution") is None
    assert _fault(DOCS / "index.md", "https://example.com/a#b") is None


def test_every_picture_is_shown_with_words_beside_it() -> None:
    shown = {}
    for page in EVERYTHING:
        for words, source in _PICTURE.findall(prose(page)):
            shown[(page.parent / source).resolve()] = words
    for picture in PICTURES:
        assert shown.get(picture), f"{name_of(picture)} is on no page, or there without words"


def test_pictures_are_small() -> None:
    assert PICTURES
    assert all(picture.stat().st_size < 300_000 for picture in PICTURES)


@pytest.mark.parametrize("picture", DRAWN, ids=name_of)
def test_a_drawing_stands_alone_on_light_and_dark_pages(picture: Path) -> None:
    written = picture.read_text(encoding="utf-8")
    drawing = ElementTree.fromstring(written)
    tags = {element.tag.rpartition("}")[2] for element in drawing.iter()}
    assert {"title", "desc", "style"} <= tags
    assert not tags & {"image", "script", "foreignObject", "use"}
    assert "prefers-color-scheme: dark" in written
    assert written.count("http") == 1, "asks for something outside itself"
    width, height = (float(number) for number in drawing.attrib["viewBox"].split()[2:])
    first = next(element for element in drawing if element.tag.endswith("rect"))
    assert first.attrib["class"] == "paper", "no ground of its own"
    assert (float(first.attrib["width"]), float(first.attrib["height"])) == (width - 1, height - 1)


def test_drawings_have_one_set_of_colours() -> None:
    styles = {re.search(r"<style>.*?</style>", d.read_text(encoding="utf-8"), re.DOTALL)[0] for d in DRAWN}  # type: ignore[index]
    assert len(DRAWN) > 3
    assert len(styles) == 1
