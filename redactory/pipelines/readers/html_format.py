"""Read and write HTML: text, attribute values, scripts and styles.

The page is parsed into a tree (:mod:`lxml.html`) and written anew from it, without comments, embedded files, and
the names of unknown tags and attributes, in which somebody could hide text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from lxml import etree, html
from lxml.html import defs

from redactory.pipelines.readers.document_formats import (
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
)
from redactory.pipelines.readers.formats import BYTE_ORDER_MARK


def split_words(text: str) -> frozenset[str]:
    """Split a table of words."""
    return frozenset(text.split())


_TAGS = defs.tags | split_words(
    """
    bdi data dialog frame main nobr noframes picture search slot template o:p
    circle clippath defs desc ellipse g image line lineargradient mask path pattern polygon polyline
    radialgradient rect stop symbol text textpath tspan use mi mn mo mrow ms mtext semantics annotation
    """
)
_INLINE = (
    defs.phrase_tags | defs.font_style_tags | defs.special_inline_tags | defs.nonstandard_tags
) - defs.block_tags | split_words("bdi data label mark nobr o:p script style time tspan wbr")
"""Tags that do not end a sentence."""
_DRAWING_ATTRIBUTES = split_words("d points viewbox transform x y x1 x2 y1 y2 cx cy r rx ry stroke-width")
_NUMERIC_VALUE = re.compile(r"[MmZzLlHhVvCcSsQqTtAaEe\d\s,.()%+-]*(?:px|pt|em)?")
_CODE_ATTRIBUTES = split_words(
    "class dir for form headers http-equiv id itemprop lang media method name property rel rev role scope slot "
    "target type usemap"
)
"""Attributes with names for programs: not read if they hold only lower-case letters and short numbers."""
_CODE_VALUE = re.compile(r"(?:[a-z_:\s/-]|(?<!\d)\d{1,3}(?!\d))*")
_ATTRIBUTES = (defs.safe_attrs | defs.link_attrs | _DRAWING_ATTRIBUTES | _CODE_ATTRIBUTES) | split_words(
    """
    allow allowfullscreen async autocomplete autofocus autoplay bgcolor bordercolor content contenteditable
    controls crossorigin decoding defer download draggable face fetchpriority fill formmethod frameborder hidden
    imagesizes imagesrcset inert inputmode integrity itemid itemref itemscope itemtype kind link list loading
    loop low high optimum marginheight marginwidth max min minlength multiple muted nonce novalidate open
    pattern ping placeholder poster preload referrerpolicy required reversed sandbox scheme scrolling sizes
    spellcheck srcdoc srclang srcset step stroke style text translate version vlink wrap xml:lang
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
    parser = html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, default_doctype=False)
    root = etree.fromstring(source.encode(), parser)
    if any(error.level == etree.ErrorLevels.FATAL for error in parser.error_log):
        # the tree may lack what follows
        raise UnreadableDocument(TOO_MANY_ELEMENTS)
    root = html.Element("html") if root is None else root
    doctype = "<!DOCTYPE html>" if root.getroottree().docinfo.doctype else None

    def serialize() -> bytes:
        written = etree.tostring(root, encoding="unicode", method="html", doctype=doctype, with_tail=False)
        return str(written).encode(charset, "xmlcharrefreplace")

    groups = limit_count(group for group in _read_text_groups(root) if group.text.strip())
    return ParsedDocument(list(groups), serialize, removed_parts)


def _read_text_groups(root: Any) -> Iterator[TextGroup]:
    """Remove unknown names, and read all texts and attribute values of a tree."""
    sentence: list[Node] = []
    # a list, because the tree changes meanwhile
    for event, element in list(limit_count(etree.iterwalk(root, events=("start", "end")))):
        if element.tag not in _TAGS:
            element.tag = "span"
        if element.tag not in _INLINE:
            yield from _end_sentence(sentence)
            sentence = []
        if event == "start":
            yield from _read_attributes(element)
            if element.tag in ("script", "style") and element.text:
                node = Node(element.text, _make_writer(setattr, element, "text"), SCRIPT_ESCAPES, _escape_script_string)
                yield TextGroup([node])
            else:
                sentence += [Node("\n")] if element.tag == "br" else []
                sentence.append(Node(element.text or "", _make_writer(setattr, element, "text")))
        elif element is not root:
            sentence.append(Node(element.tail or "", _make_writer(setattr, element, "tail")))
    yield from _end_sentence(sentence)


def _make_writer(write: Callable[..., Any], *arguments: Any) -> Callable[[str], None]:
    return lambda new: write(*arguments, _UNWRITABLE.sub("\ufffd", new))


def _end_sentence(sentence: list[Node]) -> Iterator[TextGroup]:
    """Yield the sentence; if words touch at a tag, yield it again with a space between them."""
    sentence = [node for node in sentence if node.text]
    yield TextGroup(sentence, is_visible=True)
    if any(a.text[-1:].isalnum() and b.text[:1].isalnum() for a, b in pairwise(sentence)):
        yield TextGroup([item for node in sentence for item in (node, Node(" "))])


def _read_attributes(element: Any) -> Iterator[TextGroup]:
    attributes = dict(limit_count(element.attrib.items()))
    known = {
        key: value for key, value in attributes.items() if key in _ATTRIBUTES or _PREFIXED_ATTRIBUTE.fullmatch(key)
    }
    if len(known) < len(attributes):
        # one with odd letters can only be removed with all others
        element.attrib.clear()
        element.attrib.update(known)
    for key, value in known.items():
        if (key in _CODE_ATTRIBUTES and _CODE_VALUE.fullmatch(value)) or (
            key in _DRAWING_ATTRIBUTES and _NUMERIC_VALUE.fullmatch(value)
        ):
            continue
        escapes, escape = (SCRIPT_ESCAPES, _escape_script_string) if key.startswith("on") else (VALUE_ESCAPES, str)
        yield TextGroup([Node(value, _make_writer(element.set, key), escapes, escape)])


def _escape_script_string(new: str) -> str:
    return re.sub(r"[\"'\\]", lambda match: f"\\u{ord(match[0]):04x}", new)
