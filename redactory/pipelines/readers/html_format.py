"""Read and write HTML: attribute values, comments, scripts and anything not certainly a tag count as text.

Escapes are resolved for reading (``&#64;``, ``%40``, in scripts ``\\u0040``). An edit replaces the escapes within
it; everything else stays unchanged.
"""

from __future__ import annotations

import html
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from urllib.parse import unquote

from redactory.pipelines.readers.document_formats import (
    MAX_ELEMENTS,
    ExtractedText,
    Node,
    WholeFileFormat,
    assign_edits_to_nodes,
    decode_text,
    join_nodes,
    limit_count,
    merge_edits,
)
from redactory.pipelines.readers.formats import BYTE_ORDER_MARK, Edits
from redactory.redaction.replacements import Edit, apply_edits


def split_words(text: str) -> frozenset[str]:
    """Split a table of words."""
    return frozenset(text.split())


# What is written, and what is read of it.

_INVISIBLE = r"[\xad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
_ENTITY = r"&(?:#0{0,99}[0-9]{1,9};?|#[xX]0{0,99}[0-9a-fA-F]{1,8};?|[A-Za-z][A-Za-z0-9]{1,31};?)"
_PERCENT = r"%[0-7][0-9A-Fa-f]|%[C-Fc-f][0-9A-Fa-f](?:%[89ABab][0-9A-Fa-f]){1,3}"
_BACKSLASH = (
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\u\{[0-9a-fA-F]{1,6}\}"
    r"|\\x[0-9a-fA-F]{2}|\\[nrtbf/\"'\\]"
)
INVISIBLE = re.compile(_INVISIBLE)
TEXT_ESCAPES = re.compile(f"{_ENTITY}|{_INVISIBLE}")
VALUE_ESCAPES = re.compile(f"{_ENTITY}|{_PERCENT}|{_INVISIBLE}")
SCRIPT_ESCAPES = re.compile(f"{_ENTITY}|{_PERCENT}|{_BACKSLASH}|{_INVISIBLE}")
URL_ESCAPES = re.compile(f"{_PERCENT}|{_INVISIBLE}")


@dataclass(frozen=True)
class UnescapedText:
    """Text with resolved escapes, each as (position and length in ``text``, start and end in the source)."""

    text: str
    escapes: Sequence[tuple[int, int, int, int]]

    @classmethod
    def unescape(cls, source: str, pattern: re.Pattern[str]) -> UnescapedText:
        """Resolve the escapes of ``source`` and drop invisible characters."""
        pieces, resolved, position, offset = list[str](), list[tuple[int, int, int, int]](), 0, 0
        for match in limit_count(pattern.finditer(source), 4 * MAX_ELEMENTS):
            replacement = INVISIBLE.sub("", _resolve_escape(match[0]))
            if replacement != match[0]:
                offset += match.start() - position
                pieces += (source[position : match.start()], replacement)
                resolved.append((offset, len(replacement), *match.span()))
                offset, position = offset + len(replacement), match.end()
        return cls("".join(pieces) + source[position:], resolved)

    def map_edit(self, change: Edit, escape: Callable[[str], str] = str) -> Edit:
        """Map an edit of the text to an edit of the source."""
        index = bisect_right(self.escapes, change.start, key=itemgetter(0)) - 1
        offset, length, first, last = self.escapes[index] if index >= 0 else (0, 0, 0, 0)
        start = first if change.start < offset + length else last + change.start - offset - length
        index = bisect_left(self.escapes, change.end, key=itemgetter(0)) - 1
        offset, length, _, last = self.escapes[index] if index >= 0 else (0, 0, 0, 0)
        return Edit(start, last + max(0, change.end - offset - length), escape(change.new), change.kind)


def _resolve_escape(escape: str) -> str:
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%":
        try:
            return unquote(escape, errors="strict")
        except UnicodeDecodeError:
            return escape
    if escape[0] != "\\":
        return ""
    if escape[1] == "x" or escape[:3] == "\\u{":
        number = int(escape[2:].strip("{}"), 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    character = "'" if escape == "\\'" else str(json.loads(f'"{escape}"'))
    return character.encode("utf-8", "replace").decode()


# Tags.

_TAGS = split_words(
    """
    a abbr acronym address applet area article aside audio b base basefont bdi bdo big blink blockquote body
    br button canvas caption center cite code col colgroup data datalist dd del details dfn dialog dir div dl
    dt em embed fieldset figcaption figure font footer form frame frameset h1 h2 h3 h4 h5 h6 head header
    hgroup hr html i iframe img input ins kbd label legend li link listing main map mark marquee menu meta
    meter nav nobr noembed noframes noscript object ol optgroup option output p param picture plaintext pre
    progress q rp rt ruby s samp script search section select slot small source span strike strong style sub
    summary sup svg table tbody td template textarea tfoot th thead time title tr track tt u ul var video wbr
    xmp o:p circle defs desc ellipse g line lineargradient mask path pattern polygon polyline rect stop symbol
    text textpath tspan use math mi mn mo mrow ms mtext semantics annotation
    """
)
_INLINE = split_words(
    """
    a abbr acronym b bdi bdo big blink cite code data del dfn em font i img ins kbd label mark nobr q s samp
    small span strike strong sub sup time tt u var wbr tspan o:p
    """
)
_ATTRIBUTES = split_words(
    """
    abbr accept accept-charset accesskey action align alink allow allowfullscreen alt async autocapitalize
    autocomplete autofocus autoplay axis background bgcolor border bordercolor cellpadding cellspacing char
    charoff charset checked cite class classid clear code codebase codetype color cols colspan compact content
    contenteditable controls coords crossorigin d data datetime declare decoding default defer dir dirname
    disabled download draggable enctype enterkeyhint face fill for form formaction frame frameborder headers
    height hidden high href hreflang hspace http-equiv id imagesizes imagesrcset inert inputmode integrity is
    ismap itemid itemprop itemref itemscope itemtype kind label lang language link list longdesc loop low
    marginheight marginwidth max maxlength media method min minlength multiple muted name nohref nomodule
    nonce noresize noshade novalidate nowrap object open optimum pattern ping placeholder playsinline points
    popover poster preload profile property readonly referrerpolicy rel required rev reversed role rows
    rowspan rules sandbox scheme scope scrolling selected shape size sizes slot span spellcheck src srcdoc
    srclang srcset standby start step stroke stroke-width style summary tabindex target text title transform
    translate type usemap valign value valuetype version viewbox vlink vspace width wrap x xmlns xml:lang
    xmlns:o xmlns:v xmlns:w xlink:href y
    """
)
_DRAWING_ATTRIBUTES = split_words("d points viewbox transform x y x1 x2 y1 y2 cx cy r rx ry width height stroke-width")
"""Attributes of drawings: not read if they hold only numbers."""
_NUMERIC_VALUE = re.compile(r"[MmZzLlHhVvCcSsQqTtAaEe\d\s,.()%+-]*(?:px|pt|em)?")
_CODE_ATTRIBUTES = split_words(
    """
    as autocomplete charset class dir for form headers http-equiv id is itemprop kind lang language media
    method name property rel rev role scope shape slot target type usemap xml:lang
    """
)
"""Attributes with names for programs: not read if they hold only lower-case letters and short numbers."""
_CODE_VALUE = re.compile(r"(?:[a-z_:\s/-]|(?<!\d)\d{1,3}(?!\d))*")
_PREFIXED_ATTRIBUTE = re.compile(r"(?:aria|data|on)(?:-?[a-z]+)+")
_CONDITION = r"\[if(?:[ ()!&|]|\d|\.|mso|ie|vml|[gl]te?|true){1,20}\]"
_TAG = re.compile(
    rf"(?P<mark><!--+>|<!--(?:{_CONDITION}>)?|--!?>|<!\[CDATA\[|\]\]>|<!(?:\[endif\]|{_CONDITION})>)"
    r"|<!doctype\s+html(?:\s+public\s+\"-//w3c//dtd x?html [\w. ]{1,30}//en\"(?:\s+\"http://www\.w3\.org"
    r"/[\w./-]{1,60}\")?)?\s*>|<\?xml\s+version=[\"'][\d.]+[\"'](?:\s+encoding=[\"'][\w-]{1,30}[\"'])?\s*\?>"
    r"|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*+(?:[-:][a-z0-9]++)*+)(?P<inner>"
    r"(?:\s++[^\s\"'<>/=]++(?:\s*+=\s*+(?:\"[^\"<>]*+\"|'[^'<>]*+'|[^\s\"'<>=]++))?)*+)\s*+/?>",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"""([^\s"'<>/=]++)(?:\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_CHARSET = re.compile(rb"""<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?\s*([\w:.-]+)""", re.IGNORECASE)
_DATA_URL = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:;[\w.+=-]{0,60}){0,4};base64,[A-Za-z0-9+/=%_-]*", re.IGNORECASE
)


class HtmlFormat(WholeFileFormat):
    """A page in its declared charset, or in UTF-8."""

    name = "html"
    endings = (".html", ".htm")

    def parse(self, data: bytes) -> ExtractedText:
        """Parse the page: the nodes of a sentence form one text, each attribute value another."""
        declared = _CHARSET.search(data[:4096])
        charset = declared[1].decode() if declared and not data.startswith(BYTE_ORDER_MARK) else "utf-8"
        text = decode_text(data, charset)
        return parse_html(text, data, lambda new: new.encode(charset, "xmlcharrefreplace"))


def parse_html(text: str, data: bytes, encode_page: Callable[[str], bytes]) -> ExtractedText:
    """Parse a page; an unchanged page is rendered as ``data``, a changed one with ``encode_page``."""
    page = HtmlPage(text)

    def render_page(changes: Edits) -> bytes:
        new = page.apply_page_edits(changes)
        return data if new == text else encode_page(new)

    return ExtractedText(
        join_nodes(page.groups), [[] for _ in page.groups], render_page, page.visible_texts, page.removed_parts
    )


class HtmlPage:
    """The text nodes of a page, in groups that are read as one text each; embedded files are removed."""

    def __init__(self, text: str) -> None:
        self.text, self.removed_parts = _DATA_URL.subn("data:,", text)
        groups = list(_PageParser(self.text).parse_text_groups())
        self.groups = [nodes for nodes, _ in groups]
        self.visible_texts = frozenset(n for n, (_, is_shown) in enumerate(groups) if is_shown)

    def apply_page_edits(self, changes: Edits) -> str:
        """Return the page with edits applied to its texts."""
        news = []
        for node, edits in assign_edits_to_nodes(self.groups, changes):
            start, view, escape = node.place
            for edit in edits:
                source_edit = view.map_edit(edit, escape)
                news.append(Edit(start + source_edit.start, start + source_edit.end, source_edit.new))
        return apply_edits(self.text, merge_edits(news))


def _escape_unquoted_value(new: str) -> str:
    return html.escape(new).replace(" ", "&#32;")


def _escape_script_string(new: str) -> str:
    return re.sub(r"[\"'\\]", lambda match: f"\\u{ord(match[0]):04x}", new)


def _is_code_value(name: str, value: str) -> bool:
    return (name in _CODE_ATTRIBUTES and _CODE_VALUE.fullmatch(value) is not None) or (
        name in _DRAWING_ATTRIBUTES and _NUMERIC_VALUE.fullmatch(value) is not None
    )


class _PageParser:
    """Parse a page in one pass; ``sentence`` is the current one, ``outer_sentences`` those around comments."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sentence: list[Node] = []
        self.outer_sentences: list[list[Node]] = []
        self.script_element = ""
        """The current script or style element, or an empty string."""

    def parse_text_groups(self) -> Iterator[tuple[list[Node], bool]]:
        """Yield each group that is not blank, and whether it is visible."""
        yield from limit_count(
            group for group in self._iterate_text_groups() if any(node.text.strip() for node in group[0])
        )

    def _iterate_text_groups(self) -> Iterator[tuple[list[Node], bool]]:
        position = 0
        for tag in limit_count(_TAG.finditer(self.text)):
            name = (tag["name"] or "").lower()
            if name and name not in _TAGS and name.isalnum():
                # perhaps not a tag: read it as text
                continue
            self._append_text_node(position, tag.start())
            position = tag.end()
            if name and name not in _TAGS:
                yield [self._make_value_node(tag["name"], tag.start("name"))], False
            if tag["mark"]:
                yield from self._enter_or_leave_comment(tag["mark"])
            elif name == "br":
                self.sentence.append(Node("\n"))
            elif name not in _INLINE:
                yield from self._end_sentence()
            if name in ("script", "style"):
                self.script_element = "" if tag["end"] else name
            if tag["inner"]:
                yield from self._read_attributes(tag["inner"], tag.start("inner"))
        self._append_text_node(position, len(self.text))
        while self.outer_sentences:
            yield from self._end_sentence()
            self.sentence = self.outer_sentences.pop()
        yield from self._end_sentence()

    def _append_text_node(self, start: int, end: int) -> None:
        if start < end:
            view = UnescapedText.unescape(self.text[start:end], SCRIPT_ESCAPES if self.script_element else TEXT_ESCAPES)
            self.sentence.append(
                Node(view.text, (start, view, _escape_script_string if self.script_element else html.escape))
            )

    def _enter_or_leave_comment(self, marker: str) -> Iterator[tuple[list[Node], bool]]:
        """Handle the start or end of a comment, which does not end the sentence around it."""
        if marker.startswith("<!--") and not marker.endswith("->"):
            self.outer_sentences.append(self.sentence)
            self.sentence = []
        elif marker.startswith("--") and self.outer_sentences:
            yield from self._end_sentence()
            self.sentence = self.outer_sentences.pop()

    def _end_sentence(self) -> Iterator[tuple[list[Node], bool]]:
        """Yield the sentence; if words touch at a tag, yield it again with a space between them."""
        sentence, self.sentence = self.sentence, []
        yield sentence, not self.outer_sentences and not self.script_element
        if any(a.text[-1:].isalnum() and b.text[:1].isalnum() for a, b in pairwise(sentence)):
            yield [item for node in sentence for item in (node, Node(" "))], False

    def _read_attributes(self, inner: str, start: int) -> Iterator[tuple[list[Node], bool]]:
        for match in _ATTRIBUTE.finditer(inner):
            name = match[1].lower()
            if name not in _ATTRIBUTES and not _PREFIXED_ATTRIBUTE.fullmatch(match[1]):
                yield [self._make_value_node(match[1], start + match.start(1))], False
            for group in (2, 3, 4):
                value = match[group]
                if value and not _is_code_value(name, value):
                    yield [self._make_value_node(value, start + match.start(group), name, group == 4)], False

    def _make_value_node(self, value: str, start: int, name: str = "", is_bare: bool = True) -> Node:
        view = UnescapedText.unescape(value, SCRIPT_ESCAPES if name.startswith("on") else VALUE_ESCAPES)
        return Node(view.text, (start, view, _escape_unquoted_value if is_bare else html.escape))
