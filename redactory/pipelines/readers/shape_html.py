"""HTML: what is not surely a tag is text; so are the values of all attributes, comments and scripts.

Escapes are resolved for reading (``&#64;``, ``%40``, in scripts ``\\u0040``), and what is changed is written
in the place of the escapes; all else stays to the letter.
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

from redactory.pipelines.readers.formats import Edits
from redactory.pipelines.readers.shape_documents import (
    MOST,
    Node,
    OneRow,
    Told,
    bounded,
    decoded,
    gathered,
    joined,
    merged,
)
from redactory.redaction.replacements import Edit, edited


def _words(text: str) -> frozenset[str]:
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
IN_TEXT = re.compile(f"{_ENTITY}|{_INVISIBLE}")
IN_VALUES = re.compile(f"{_ENTITY}|{_PERCENT}|{_INVISIBLE}")
IN_SCRIPTS = re.compile(f"{_ENTITY}|{_PERCENT}|{_BACKSLASH}|{_INVISIBLE}")
IN_URLS = re.compile(f"{_PERCENT}|{_INVISIBLE}")


@dataclass(frozen=True)
class View:
    """What is read of something written, and its escapes: (place and length in ``text``, start, end)."""

    text: str
    escapes: Sequence[tuple[int, int, int, int]]

    @classmethod
    def of(cls, written: str, escapes: re.Pattern[str]) -> View:
        """``written`` with escapes resolved; invisible characters are not read."""
        pieces, found, position, at = list[str](), list[tuple[int, int, int, int]](), 0, 0
        for match in bounded(escapes.finditer(written), 4 * MOST):
            said = INVISIBLE.sub("", _resolved(match[0]))
            if said != match[0]:
                at += match.start() - position
                pieces += (written[position : match.start()], said)
                found.append((at, len(said), *match.span()))
                at, position = at + len(said), match.end()
        return cls("".join(pieces) + written[position:], found)

    def written(self, change: Edit, escape: Callable[[str], str] = str) -> Edit:
        """A change of the text as one of what is written."""
        n = bisect_right(self.escapes, change.start, key=itemgetter(0)) - 1
        at, length, first, last = self.escapes[n] if n >= 0 else (0, 0, 0, 0)
        start = first if change.start < at + length else last + change.start - at - length
        n = bisect_left(self.escapes, change.end, key=itemgetter(0)) - 1
        at, length, _, last = self.escapes[n] if n >= 0 else (0, 0, 0, 0)
        return Edit(start, last + max(0, change.end - at - length), escape(change.new), change.kind)


def _resolved(escape: str) -> str:
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
    said = "'" if escape == "\\'" else str(json.loads(f'"{escape}"'))
    return said.encode("utf-8", "replace").decode()


# Tags.

_TAGS = _words(
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
_INLINE = _words(
    """
    a abbr acronym b bdi bdo big blink cite code data del dfn em font i img ins kbd label mark nobr q s samp
    small span strike strong sub sup time tt u var wbr tspan o:p
    """
)
_ATTRIBUTES = _words(
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
_DRAWN = _words("d points viewbox transform x y x1 x2 y1 y2 cx cy r rx ry width height stroke-width")
"""Attributes of lines and curves: of numbers alone they are not read."""
_NUMBERS = re.compile(r"[MmZzLlHhVvCcSsQqTtAaEe\d\s,.()%+-]*(?:px|pt|em)?")
_CODED = _words(
    """
    as autocomplete charset class dir for form headers http-equiv id is itemprop kind lang language media
    method name property rel rev role scope shape slot target type usemap xml:lang
    """
)
"""Attributes that name things for programs: where small letters and short numbers do, they are not read."""
_CODE = re.compile(r"(?:[a-z_:\s/-]|(?<!\d)\d{1,3}(?!\d))*")
_LETTERS = re.compile(r"(?:aria|data|on)(?:-?[a-z]+)+")
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
_MARK = b"\xef\xbb\xbf"
_DATA = re.compile(
    r"data:[\w.+-]{0,60}/?[\w.+-]{0,60}(?:;[\w.+=-]{0,60}){0,4};base64,[A-Za-z0-9+/=%_-]*", re.IGNORECASE
)


class Html(OneRow):
    """A page, in the charset that it says, or in UTF-8."""

    name = "html"
    endings = (".html", ".htm")

    def told(self, data: bytes) -> Told:
        """Its texts; nodes of one sentence are one, each attribute is one."""
        named = _CHARSET.search(data[:4096])
        charset = named[1].decode() if named and not data.startswith(_MARK) else "utf-8"
        text = decoded(data, charset)
        return page_told(text, data, lambda new: new.encode(charset, "xmlcharrefreplace"))


def page_told(text: str, data: bytes, write: Callable[[str], bytes]) -> Told:
    """What a page tells; where nothing changes it is ``data``, and what ``write`` makes of it elsewhere."""
    page = Page(text)

    def render(changes: Edits) -> bytes:
        new = page.changed(changes)
        return data if new == text else write(new)

    return Told(joined(page.groups), [[] for _ in page.groups], render, page.shown, page.taken_out)


class Page:
    """The texts of a page in groups, each of which is read as one; embedded files are taken out."""

    def __init__(self, text: str) -> None:
        self.text, self.taken_out = _DATA.subn("data:,", text)
        groups = list(_Groups(self.text).all())
        self.groups = [nodes for nodes, _ in groups]
        self.shown = frozenset(n for n, (_, is_shown) in enumerate(groups) if is_shown)

    def changed(self, changes: Edits) -> str:
        """The page with changes to its texts."""
        news = []
        for node, edits in gathered(self.groups, changes):
            start, view, escape = node.place
            for edit in edits:
                one = view.written(edit, escape)
                news.append(Edit(start + one.start, start + one.end, one.new))
        return edited(self.text, merged(news))


def _in_bare_value(new: str) -> str:
    return html.escape(new).replace(" ", "&#32;")


def _in_script(new: str) -> str:
    return re.sub(r"[\"'\\]", lambda sign: f"\\u{ord(sign[0]):04x}", new)


def _is_code(name: str, value: str) -> bool:
    return (name in _CODED and _CODE.fullmatch(value) is not None) or (
        name in _DRAWN and _NUMBERS.fullmatch(value) is not None
    )


class _Groups:
    """Goes through a page once; ``flow`` is the sentence that it is in, below it those around a comment."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.flow: list[Node] = []
        self.around: list[list[Node]] = []
        self.script = ""
        """The name of the element, script or style, that it is in."""

    def all(self) -> Iterator[tuple[list[Node], bool]]:
        """Each group that holds a text, and whether it is shown."""
        yield from bounded(one for one in self._all() if any(node.text.strip() for node in one[0]))

    def _all(self) -> Iterator[tuple[list[Node], bool]]:
        position = 0
        for tag in bounded(_TAG.finditer(self.text)):
            name = (tag["name"] or "").lower()
            if name and name not in _TAGS and name.isalnum():
                # nobody knows whether this is one
                continue
            self._text(position, tag.start())
            position = tag.end()
            if name and name not in _TAGS:
                yield [self._value(tag["name"], tag.start("name"))], False
            if tag["mark"]:
                yield from self._mark(tag["mark"])
            elif name == "br":
                self.flow.append(Node("\n"))
            elif name not in _INLINE:
                yield from self._sentence()
            if name in ("script", "style"):
                self.script = "" if tag["end"] else name
            if tag["inner"]:
                yield from self._attributes(tag["inner"], tag.start("inner"))
        self._text(position, len(self.text))
        while self.around:
            yield from self._sentence()
            self.flow = self.around.pop()
        yield from self._sentence()

    def _text(self, start: int, end: int) -> None:
        if start < end:
            view = View.of(self.text[start:end], IN_SCRIPTS if self.script else IN_TEXT)
            self.flow.append(Node(view.text, (start, view, _in_script if self.script else html.escape)))

    def _mark(self, mark: str) -> Iterator[tuple[list[Node], bool]]:
        """A comment does not end the sentence that it stands in."""
        if mark.startswith("<!--") and not mark.endswith("->"):
            self.around.append(self.flow)
            self.flow = []
        elif mark.startswith("--") and self.around:
            yield from self._sentence()
            self.flow = self.around.pop()

    def _sentence(self) -> Iterator[tuple[list[Node], bool]]:
        """What was read; where words touch at a tag, a second time with a space between them."""
        flow, self.flow = self.flow, []
        yield flow, not self.around and not self.script
        if any(a.text[-1:].isalnum() and b.text[:1].isalnum() for a, b in pairwise(flow)):
            yield [one for node in flow for one in (node, Node(" "))], False

    def _attributes(self, inner: str, start: int) -> Iterator[tuple[list[Node], bool]]:
        for found in _ATTRIBUTE.finditer(inner):
            name = found[1].lower()
            if name not in _ATTRIBUTES and not _LETTERS.fullmatch(found[1]):
                yield [self._value(found[1], start + found.start(1))], False
            for group in (2, 3, 4):
                value = found[group]
                if value and not _is_code(name, value):
                    yield [self._value(value, start + found.start(group), name, group == 4)], False

    def _value(self, value: str, start: int, name: str = "", is_bare: bool = True) -> Node:
        view = View.of(value, IN_SCRIPTS if name.startswith("on") else IN_VALUES)
        return Node(view.text, (start, view, _in_bare_value if is_bare else html.escape))
