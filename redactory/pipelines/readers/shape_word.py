"""Word files: a package of XML parts, of which all are read; other parts are taken out.

A paragraph's runs are one text, as it is now and, where changes are tracked, as it was before; a field's
instructions are another.  So is each text that is in no paragraph, and each attribute that may say something:
all but numbers, codes and the names of fonts and built-in styles.
"""

from __future__ import annotations

import base64
import io
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from redactory.pipelines.readers.formats import ROW_TOO_LONG, Edits
from redactory.pipelines.readers.shape_documents import (
    BROKEN,
    ENCRYPTED,
    MOST,
    TOO_MANY,
    Node,
    OneRow,
    Told,
    Unreadable,
    bounded,
    gathered,
    joined,
    library,
    merged,
)
from redactory.pipelines.readers.shape_html import IN_URLS, INVISIBLE, View
from redactory.redaction.replacements import Found, edited


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNPACKED = 4
"""Times the limit of a row that the parts that are read may have together."""
_MARKUP = 8 * MOST
"""Tags and attributes of a part: Word needs many for a text."""
_OLD_OFFICE = b"\xd0\xcf\x11\xe0"
"""How a Word file begins that is encrypted, or of before 2007."""
_XML = (".xml", ".rels", ".vml")
_BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""An image of one transparent dot."""
_BLANK_DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


class Word(OneRow):
    """The package; authors are names for sure."""

    name = "docx"
    endings = (".docx",)

    def told(self, data: bytes) -> Told:
        """The texts of all its parts."""
        packed = self._parts(data)
        parts = {name: _Part.of(name, part) for name, part in packed.items() if name.lower().endswith(_XML)}
        if not parts.keys() & {"[Content_Types].xml", "word/document.xml"}:
            raise Unreadable(BROKEN)
        taken_out = packed.keys() - parts.keys()
        names = _plain_names(taken_out)
        for part in parts.values() if names else ():
            part.rename(names)
        groups = list(bounded(group for part in parts.values() for group in part.groups()))

        def render(changes: Edits) -> bytes:
            for node, edits in gathered([group.nodes for group in groups], changes):
                part, written, view, put = node.place
                part.is_new = True
                put(edited(written, merged([view.written(edit) for edit in edits])))
            made = io.BytesIO()
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
                for name, old in packed.items():
                    blank = _BLANK_DRAWING if name.lower().endswith(".svg") else _BLANK
                    new = parts[name].written(old) if name in parts else blank
                    file.writestr(zipfile.ZipInfo(names.get(name, name)), new, zipfile.ZIP_DEFLATED)
            return made.getvalue()

        texts = joined([group.nodes for group in groups])
        sure = [
            [Found(0, len(text), group.sure)] if group.sure else [] for group, text in zip(groups, texts, strict=True)
        ]
        shown = frozenset(n for n, group in enumerate(groups) if group.is_shown)
        return Told(texts, sure, render, shown, len(taken_out))

    def _parts(self, data: bytes) -> dict[str, bytes]:
        """Each part by its name, of others than XML nothing; ``Unreadable`` where two have one name.

        Or where there is more than can be held.
        """
        if data.startswith(_OLD_OFFICE):
            raise Unreadable(ENCRYPTED)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as packed:
                infos = [info for info in packed.infolist() if not info.is_dir()]
                if any(info.flag_bits & 1 for info in infos):
                    raise Unreadable(ENCRYPTED)
                read = {info.filename for info in infos if info.filename.lower().endswith(_XML)}
                if sum(info.file_size for info in infos if info.filename in read) > _UNPACKED * self.limit:
                    raise Unreadable(ROW_TOO_LONG)
                if len({info.filename.lower() for info in infos}) < len(infos):
                    raise Unreadable(BROKEN)
                return {info.filename: packed.read(info) if info.filename in read else b"" for info in infos}
        except Unreadable:
            raise
        except Exception:
            # whatever a broken archive makes of the parser
            raise Unreadable(BROKEN) from None


# Names of parts.

_USUAL = re.compile(
    r"(?:image|media|hdphoto|video|audio|font|oleObject|embedding|thumbnail|vba\w{4,8}|activeX|bin|ink|item"
    r"|printerSettings|package|Microsoft_[A-Za-z_]{4,40}|part|afchunk|chunk)\d*\.\w{1,5}",
    re.IGNORECASE | re.ASCII,
)


def _plain_names(names: Iterable[str]) -> dict[str, str]:
    """Other names for parts whose name may say what a person called a file."""
    odd = sorted(name for name in names if not _USUAL.fullmatch(posixpath.basename(name)))
    endings = [re.search(r"\.[A-Za-z0-9]{1,5}$", name) for name in odd]
    return {
        name: posixpath.join(posixpath.dirname(name), f"part{n}{ending[0] if ending else '.bin'}")
        for n, (name, ending) in enumerate(zip(odd, endings, strict=True), 1001)
    }


# What a part says.

_AUTHORS = _words("author initials lastModifiedBy creator Manager Company userId")
_BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_NEVER = _words("rFonts font altName lsdException latin ea cs sym buFont mathFont compatSetting")
"""Elements whose attributes name fonts, built-in styles and settings."""
_ALWAYS = _words(
    """
    alias tag docVar default listEntry listItem statusText helpText docPart placeholder category lvlText
    query connectString dataSource udl mappedName column property textpath hyperlink bookmarkStart attr
    """
)
"""Elements whose attributes may all say something."""
_SAYING = _words(
    """
    descr title alt userId author initials name displayText tooltip label string instr src href docLocation
    displayName userName email date dateUtc
    """
)
_CODE = re.compile(r"[\w.:%#{}+/,;()=!$&*~'-]{0,80}|(?:\b[a-z]+\d*\b ?){1,20}|[\d\s.,-]{0,200}", re.ASCII)
_GUID = re.compile(r"\{[0-9A-Fa-f-]{36}\}")
_LINK = re.compile(r"rId\d{1,5}", re.ASCII)
"""What Word calls a link to a part or an address: its other end is not masked either."""
_SIZES = _words("posOffset pctWidth pctHeight pctPosHOffset pctPosVOffset")
_OF_WORD = re.compile(r"-?\d{1,9}|Normal(?:\.dotm?)?|Microsoft (?:Office |Macintosh )?Word|(?:true|false)")
"""What Word itself writes as a property."""
_ON_A_DISK = re.compile(r"file:|[A-Za-z]:[\\/]|\\\\", re.IGNORECASE)
_SOME_DAY = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class _Group:
    """Nodes that are read as one text, with the label of all of it where that is sure."""

    nodes: list[Node]
    sure: str = ""
    is_shown: bool = False


@dataclass
class _Paragraph:
    """The runs of a paragraph: as they are, as they were, and what fields are told to show."""

    now: list[Node] = field(default_factory=list)
    before: list[Node] = field(default_factory=list)
    told: list[Node] = field(default_factory=list)
    is_tracked: bool = False


class _Part:
    """A part that is XML; ``is_new`` once it is to be written anew."""

    def __init__(self, name: str, root: Any, is_new: bool) -> None:
        self.name, self.root, self.is_new = name, root, is_new
        self.is_of_user = re.match(r"customXml/(?!_rels/|itemProps)", name) is not None
        self.built_in = frozenset(_names_of_styles(root))

    @classmethod
    def of(cls, name: str, data: bytes) -> _Part:
        """The part without comments and instructions, which nobody sees; ``Unreadable`` of one with a DTD."""
        if data.count(b"<") + data.count(b"=") > _MARKUP:
            raise Unreadable(TOO_MANY)
        etree = library("lxml.etree", "documents")
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        try:
            root = etree.fromstring(data, parser)
        except (etree.XMLSyntaxError, ValueError):
            raise Unreadable(BROKEN) from None
        about = root.getroottree().docinfo
        if about.internalDTD is not None or about.doctype:
            raise Unreadable(BROKEN)
        more = root.xpath("//comment()|//processing-instruction()")
        etree.strip_tags(root, etree.Comment, etree.PI)
        is_odd = bool(more) or (about.encoding or "UTF-8").upper() not in ("UTF-8", "US-ASCII")
        return cls(name, root, is_odd)

    def written(self, old: bytes) -> bytes:
        """The part as it is now."""
        if not self.is_new:
            return old
        etree = library("lxml.etree", "documents")
        return bytes(etree.tostring(self.root, encoding="UTF-8", standalone=True, with_tail=False))

    def rename(self, names: Mapping[str, str]) -> None:
        """Point at parts under their new names."""
        folder = posixpath.dirname(posixpath.dirname(self.name))
        for element in self.root.iter("{*}Relationship", "{*}Override"):
            key = "PartName" if element.get("PartName") else "Target"
            target = unquote(element.get(key, ""))
            place = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            if place in names:
                element.set(key, "/" + names[place])
                self.is_new = True

    def groups(self) -> Iterator[_Group]:
        """All that it says."""
        etree = library("lxml.etree", "documents")
        open_ = [_Paragraph()]
        deleted = inserted = repeated = 0
        for event, element in etree.iterwalk(self.root, events=("start", "end")):
            tag = _local(element.tag)
            step = 1 if event == "start" else -1
            deleted += step * (tag in ("del", "moveFrom"))
            inserted += step * (tag in ("ins", "moveTo"))
            repeated += step * (tag == "Fallback")
            if event == "start":
                yield from self._attributes(element, tag)
                if tag == "p":
                    open_.append(_Paragraph())
                if tag in _BREAKS:
                    open_[-1].now.append(Node(_BREAKS[tag]))
                    open_[-1].before.append(Node(_BREAKS[tag]))
                yield from self._said(element, tag, open_, deleted, inserted)
                continue
            if tag == "p":
                one = open_.pop()
                is_shown = self.name.startswith("word/") and not repeated
                yield from self._of_paragraph(one, is_shown)
            if element.tail and element.tail.strip() and element is not self.root:
                yield _Group([self._node(element, "tail")])

    def _said(self, element: Any, tag: str, open_: list[_Paragraph], deleted: int, inserted: int) -> Iterator[_Group]:
        """What an element says itself: in its paragraph, or by itself."""
        if not element.text:
            return
        within = len(open_) > 1
        if within and tag in ("instrText", "delInstrText"):
            open_[-1].told.append(self._node(element, "text", IN_URLS))
        elif within and tag in ("t", "delText"):
            node = self._node(element, "text")
            is_deleted = bool(deleted) or tag == "delText"
            open_[-1].is_tracked |= is_deleted
            if not is_deleted:
                open_[-1].now.append(node)
            if not inserted or is_deleted:
                open_[-1].before.append(node)
        elif element.text.strip() and not self._is_of_word(tag, element.text.strip()):
            sure = "PERSON" if tag in _AUTHORS else ""
            yield _Group([self._node(element, "text", IN_URLS)], sure)

    @staticmethod
    def _of_paragraph(one: _Paragraph, is_shown: bool) -> Iterator[_Group]:
        for nodes, shown in ((one.now, is_shown), (one.before if one.is_tracked else [], False), (one.told, False)):
            if any(node.text.strip() for node in nodes):
                yield _Group(nodes, "", shown)

    def _is_of_word(self, tag: str, text: str) -> bool:
        is_place = tag in _SIZES or self.name == "docProps/app.xml"
        return is_place and _OF_WORD.fullmatch(text) is not None

    def _node(self, element: Any, where: str, escapes: re.Pattern[str] = INVISIBLE) -> Node:
        written = getattr(element, where)
        view = View.of(written, escapes)
        is_day = any(_local(key) == "type" and "W3CDTF" in value for key, value in element.attrib.items())

        def put(new: str) -> None:
            setattr(element, where, _SOME_DAY if is_day else new)
            if new != new.strip() and "wordprocessingml" in element.tag:
                element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")

        return Node(view.text, (self, written, view, put))

    def _attributes(self, element: Any, tag: str) -> Iterator[_Group]:
        for key, value in element.attrib.items():
            name = _local(key)
            if not value.strip() or not self._is_read(element, tag, name, value):
                continue
            view = View.of(value, IN_URLS)

            def put(new: str, element: Any = element, key: str = key, name: str = name) -> None:
                # what is no date would make the file one that cannot be opened
                if name in ("date", "dateUtc"):
                    element.attrib.pop(key, None)
                else:
                    element.set(key, new)

            is_place = name == "Target" and _ON_A_DISK.match(view.text)
            sure = "PERSON" if name in _AUTHORS else "IDENTIFIER" if is_place else ""
            yield _Group([Node(view.text, (self, value, view, put))], sure)

    def _is_read(self, element: Any, tag: str, name: str, value: str) -> bool:
        if tag in _NEVER or _GUID.fullmatch(value) or (name == "id" and _LINK.fullmatch(value)):
            return False
        if tag == "Relationship":
            return name == "Target" and element.get("TargetMode") == "External"
        if tag == "name" and name == "val":
            return value.casefold().removesuffix(" char") not in self.built_in
        if tag in _ALWAYS or name in _SAYING or self.is_of_user:
            return True
        return not _CODE.fullmatch(value)


def _names_of_styles(root: Any) -> Iterator[str]:
    """What Word calls the styles that are not the user's own."""
    for style in root.iter("{*}style"):
        if not any(_local(key) == "customStyle" for key in style.attrib):
            for name in style.iterchildren("{*}name"):
                yield from (value.casefold() for value in name.attrib.values())


def _local(name: Any) -> str:
    return name.rpartition("}")[2] if isinstance(name, str) else ""
