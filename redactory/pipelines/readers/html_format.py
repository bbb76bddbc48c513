"""Read and write HTML: text, attribute values, scripts and styles.

The page is parsed into a tree (:mod:`lxml.html`) and written anew from it, without comments, embedded files, and
the names of unknown tags and attributes, in which somebody could hide text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from lxml import etree, html
from lxml.html import defs

from redactory.pipelines.readers.document_formats import (
    MAX_ELEMENTS,
    SCRIPT_ESCAPES,
    TOO_MANY_ELEMENTS,
    VALUE_ESCAPES,
    Node,
    ParsedDocument,
    TextGroup,
    UnreadableDocument,
    WholeFileFormat,
    decode_text,
    limit_count,
    split_words,
)
from redactory.pipelines.readers.formats import BYTE_ORDER_MARK

_TAGS = defs.tags | split_words(
    """
    bdi data dialog frame main nobr noframes picture search slot template
    circle clippath defs desc ellipse g image line lineargradient mask path pattern polygon polyline
    radialgradient rect stop symbol text textpath tspan use mi mn mo mrow ms mtext semantics annotation
    """
)
_INLINE = (
    defs.phrase_tags | defs.font_style_tags | defs.special_inline_tags | defs.nonstandard_tags
) - defs.block_tags | split_words("bdi data label mark nobr script style time tspan wbr")
"""Tags that do not end a sentence."""
_DRAWING_ATTRIBUTES = split_words("d points viewbox transform x y x1 x2 y1 y2 cx cy r rx ry stroke-width")
_NUMERIC_VALUE = re.compile(r"[MmZzLlHhVvCcSsQqTtAaEe\d\s,.()%+-]*(?:px|pt|em)?")
_CODE_ATTRIBUTES = split_words(
    "class dir for form headers http-equiv id itemprop lang media method name property rel rev role scope slot "
    "target type usemap"
)
"""Attributes with names for programs: not read if they hold only lower-case letters and short numbers."""
_CODE_VALUE = re.compile(r"(?:[a-z_:\s/-]|(?<!\d)\d{1,3}(?!\d))*")
_ATTRIBUTES = (
    defs.safe_attrs | defs.link_attrs - {"xlink:href"} | _DRAWING_ATTRIBUTES | _CODE_ATTRIBUTES
) | split_words(
    """
    allow allowfullscreen async autocomplete autofocus autoplay bgcolor bordercolor content contenteditable
    controls crossorigin decoding defer download draggable face fetchpriority fill formmethod frameborder hidden
    imagesizes imagesrcset inert inputmode integrity itemid itemref itemscope itemtype kind link list loading
    loop low high optimum marginheight marginwidth max min minlength multiple muted nonce novalidate open
    pattern ping placeholder poster preload referrerpolicy required reversed sandbox scheme scrolling sizes
    spellcheck srcdoc srclang srcset step stroke style text translate version vlink wrap
    """
)
_PREFIXED_ATTRIBUTE = re.compile(r"(?:aria|data|on)(?:-?[a-z]+)+")
_CHARSET = re.compile(rb"""<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?\s*([\w:.-]+)""", re.IGNORECASE)
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that a page may refer to by number, and that the tree does not take."""
_DATA_URL = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:;[\w.+=-]{0,60}){0,4};base64,[A-Za-z0-9+/=%_-]*", re.IGNORECASE
)


class HtmlFormat(WholeFileFormat):
    """A page in its declared charset, or in UTF-8."""

    name = "html"
    endings = (".html", ".htm")

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse the page in its charset."""
        declared = _CHARSET.search(data[:4096])
        charset = declared[1].decode() if declared else "utf-8"
        charset = "utf-8-sig" if data.startswith(BYTE_ORDER_MARK) else charset
        return parse_html(decode_text(data, charset), charset)


def parse_html(page: str, charset: str = "utf-8") -> ParsedDocument:
    """Parse a page: the nodes of a sentence form one text, each attribute value another."""
    source, removed_parts = _DATA_URL.subn("data:,", page)
    builder = _PageBuilder()
    root = etree.fromstring(source.encode(), html.HTMLParser(encoding="utf-8", target=builder))

    def serialize() -> bytes:
        written = etree.tostring(root, encoding="unicode", method="html", doctype=builder.written_doctype)
        return str(written).encode(charset, "xmlcharrefreplace")

    groups = limit_count(group for group in _read_text_groups(root) if group.text.strip())
    return ParsedDocument(list(groups), serialize, removed_parts)


class _PageBuilder(etree.TreeBuilder):  # type: ignore[misc]
    """Build the tree of a page, without comments and unknown names; ``UnreadableDocument`` if it is too large."""

    _MAX_DEPTH = 256

    def __init__(self) -> None:
        super().__init__(insert_comments=False, insert_pis=False)
        self.count = self.depth = 0
        self.written_doctype: str | None = None

    def doctype(self, *_: Any) -> None:
        """Note that the page has a document type."""
        self.written_doctype = "<!DOCTYPE html>"

    def start(self, tag: str, attributes: Mapping[str, str]) -> Any:
        """Start an element."""
        self.count += 1 + len(attributes)
        self.depth += 1
        self._check_size()
        known = {
            name: _UNWRITABLE.sub("\ufffd", value)
            for name, value in attributes.items()
            if name in _ATTRIBUTES or _PREFIXED_ATTRIBUTE.fullmatch(name)
        }
        return super().start(tag if tag in _TAGS else "span", known)

    def data(self, text: str) -> None:
        """Add a text."""
        super().data(_UNWRITABLE.sub("\ufffd", text))

    def end(self, tag: str) -> Any:
        """End an element."""
        self.depth -= 1
        return super().end(tag if tag in _TAGS else "span")

    def close(self) -> Any:
        """Return the root."""
        # of an error in another method, the parser only knows that it stops
        self._check_size()
        return super().close() if self.count else etree.Element("html")

    def _check_size(self) -> None:
        if self.count > 2 * MAX_ELEMENTS or self.depth > self._MAX_DEPTH:
            raise UnreadableDocument(TOO_MANY_ELEMENTS)


def _read_text_groups(root: Any) -> Iterator[TextGroup]:
    """Read all texts and attribute values of a tree."""
    sentence: list[Node] = []
    for event, element in etree.iterwalk(root, events=("start", "end")):
        if element.tag not in _INLINE:
            yield from _end_sentence(sentence)
            sentence = []
        if event == "start":
            yield from _read_attributes(element)
            write = partial(setattr, element, "text")
            if element.tag in ("script", "style"):
                yield TextGroup([Node(element.text or "", write, SCRIPT_ESCAPES, _escape_script_string)])
            else:
                sentence += [Node("\n")] if element.tag == "br" else []
                sentence.append(Node(element.text or "", write))
        else:
            sentence.append(Node(element.tail or "", partial(setattr, element, "tail")))
    yield from _end_sentence(sentence)


def _end_sentence(sentence: list[Node]) -> Iterator[TextGroup]:
    """Yield the sentence; if words touch at a tag, yield it again with a space between them."""
    sentence = [node for node in sentence if node.text]
    yield TextGroup(sentence, is_visible=True)
    if any(a.text[-1:].isalnum() and b.text[:1].isalnum() for a, b in pairwise(sentence)):
        yield TextGroup([item for node in sentence for item in (node, Node(" "))])


def _read_attributes(element: Any) -> Iterator[TextGroup]:
    for name, value in element.attrib.items():
        if (name in _CODE_ATTRIBUTES and _CODE_VALUE.fullmatch(value)) or (
            name in _DRAWING_ATTRIBUTES and _NUMERIC_VALUE.fullmatch(value)
        ):
            continue
        escapes, escape = (SCRIPT_ESCAPES, _escape_script_string) if name.startswith("on") else (VALUE_ESCAPES, str)
        yield TextGroup([Node(value, partial(element.set, name), escapes, escape)])


def _escape_script_string(new: str) -> str:
    return re.sub(r"[\"'\\]", lambda match: f"\\u{ord(match[0]):04x}", new)
