"""Read and write Word files: all XML parts of the package are read, and the other parts are removed.

A paragraph's runs form one text; with tracked changes, its previous version is another, and so are field
instructions. Text outside paragraphs and attributes are read too, except for numbers, codes and the names of fonts
and built-in styles.
"""

from __future__ import annotations

import base64
import io
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

from lxml import etree

from redactory.pipelines.readers.document_formats import (
    BROKEN_DOCUMENT,
    ENCRYPTED_DOCUMENT,
    INVISIBLE,
    MAX_ELEMENTS,
    TOO_MANY_ELEMENTS,
    URL_ESCAPES,
    Node,
    ParsedDocument,
    TextGroup,
    UnreadableDocument,
    WholeFileFormat,
    limit_count,
    split_words,
)
from redactory.pipelines.readers.formats import ROW_TOO_LONG
from redactory.redaction.replacements import ReplacedSpan

_MAX_UNPACKED_FACTOR = 4
"""Maximum unpacked size of the parts that are read, as a multiple of the row limit."""
_MAX_MARKUP = 8 * MAX_ELEMENTS
"""Maximum tags and attributes of a part; Word needs many per text."""
_OLE_MAGIC = b"\xd0\xcf\x11\xe0"
"""First bytes of a Word file that is encrypted or older than 2007."""
_XML = (".xml", ".rels", ".vml")
_BLANK_IMAGE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
"""An image with one transparent pixel."""
_BLANK_DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg"/>'


class WordFormat(WholeFileFormat):
    """A Word package; author fields are structural spans."""

    name = "docx"
    endings = (".docx",)

    def parse(self, data: bytes) -> ParsedDocument:
        """Parse the texts of all parts."""
        packed = read_xml_parts(data, self.limit)
        parts = {name: _XmlPart(name, part) for name, part in packed.items() if name.lower().endswith(_XML)}
        if not parts.keys() & {"[Content_Types].xml", "word/document.xml"}:
            raise UnreadableDocument(BROKEN_DOCUMENT)
        removed = packed.keys() - parts.keys()
        new_names = _choose_neutral_names(removed)
        for part in parts.values() if new_names else ():
            part.update_link_targets(new_names)

        def serialize() -> bytes:
            buffer = io.BytesIO()
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
                for name in packed:
                    blank = _BLANK_DRAWING if name.lower().endswith(".svg") else _BLANK_IMAGE
                    new = parts[name].serialize() if name in parts else blank
                    file.writestr(zipfile.ZipInfo(new_names.get(name, name)), new, zipfile.ZIP_DEFLATED)
            return buffer.getvalue()

        groups = limit_count(
            group for part in parts.values() for group in part.read_text_groups() if group.text.strip()
        )
        return ParsedDocument(list(groups), serialize, len(removed))


def read_xml_parts(data: bytes, limit: int) -> dict[str, bytes]:
    """Read the XML parts of a package by name, others empty; ``UnreadableDocument`` if names repeat or it is too large.

    ``limit`` is the row limit in bytes.
    """
    if data.startswith(_OLE_MAGIC):
        raise UnreadableDocument(ENCRYPTED_DOCUMENT)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        if any(info.flag_bits & 1 for info in infos):
            raise UnreadableDocument(ENCRYPTED_DOCUMENT)
        read = {info.filename for info in infos if info.filename.lower().endswith(_XML)}
        if sum(info.file_size for info in infos if info.filename in read) > _MAX_UNPACKED_FACTOR * limit:
            raise UnreadableDocument(ROW_TOO_LONG)
        if len({info.filename.lower() for info in infos}) < len(infos):
            raise UnreadableDocument(BROKEN_DOCUMENT)
        return {info.filename: archive.read(info) if info.filename in read else b"" for info in infos}


def parse_xml(data: bytes, max_markup: int | None = None) -> Any:
    """Parse a part without comments and instructions, which nobody sees; ``UnreadableDocument`` for a DTD."""
    if data.count(b"<") + data.count(b"=") > (max_markup or _MAX_MARKUP):
        raise UnreadableDocument(TOO_MANY_ELEMENTS)
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    root = etree.fromstring(data, parser)
    if root.getroottree().docinfo.doctype:
        raise UnreadableDocument(BROKEN_DOCUMENT)
    return root


# Names of parts.


def _choose_neutral_names(names: Iterable[str]) -> dict[str, str]:
    """Choose neutral names for parts, because a person may have chosen theirs."""
    endings = {name: re.search(r"\.[A-Za-z0-9]{1,5}$", name) for name in sorted(names)}
    return {
        name: posixpath.join(posixpath.dirname(name), f"part{number}{ending[0] if ending else '.bin'}")
        for number, (name, ending) in enumerate(endings.items(), 1001)
    }


# Contents of a part.

_AUTHOR_NAMES = split_words("author initials lastModifiedBy creator Manager Company userId")
_BREAKS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_IGNORED_ELEMENTS = split_words("rFonts font altName lsdException latin ea cs sym buFont mathFont compatSetting")
"""Elements with attributes for fonts, built-in styles and settings, which are not read."""
_TEXT_ELEMENTS = split_words(
    """
    alias tag docVar default listEntry listItem statusText helpText docPart placeholder category lvlText
    query connectString dataSource udl mappedName column property textpath hyperlink bookmarkStart attr
    """
)
"""Elements whose attributes are all read."""
_TEXT_ATTRIBUTES = split_words(
    """
    descr title alt userId author initials name displayText tooltip label string instr src href docLocation
    displayName userName email date dateUtc
    """
)
_CODE_VALUE = re.compile(r"[\w.:%#{}+/,;()=!$&*~'-]{0,80}|(?:\b[a-z]+\d*\b ?){1,20}|[\d\s.,-]{0,200}", re.ASCII)
_GUID = re.compile(r"\{[0-9A-Fa-f-]{36}\}")
_RELATIONSHIP_ID = re.compile(r"rId\d{1,5}", re.ASCII)
"""Word's id of a link to a part or address; not masked, because the other end of the link is not masked either."""
_SIZE_ELEMENTS = split_words("posOffset pctWidth pctHeight pctPosHOffset pctPosVOffset")
_BUILTIN_VALUE = re.compile(r"-?\d{1,9}|Normal(?:\.dotm?)?|Microsoft (?:Office |Macintosh )?Word|(?:true|false)")
"""Property values that Word itself writes."""
LOCAL_PATH = re.compile(r"file:|[A-Za-z]:[\\/]|\\\\", re.IGNORECASE)
_PLACEHOLDER_DATE = "1970-01-01T00:00:00Z"


@dataclass
class _Paragraph:
    """The runs of a paragraph: current, previous (before tracked changes), and field instructions."""

    current: list[Node] = field(default_factory=list)
    previous: list[Node] = field(default_factory=list)
    instructions: list[Node] = field(default_factory=list)
    is_tracked: bool = False


class _XmlPart:
    """An XML part of a document."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.root = name, parse_xml(data)
        self.is_custom_xml = re.match(r"customXml/(?!_rels/|itemProps)", name) is not None
        self.builtin_styles = frozenset(_collect_builtin_style_names(self.root))

    def serialize(self) -> bytes:
        """Serialize the part."""
        return bytes(etree.tostring(self.root, encoding="UTF-8", standalone=True, with_tail=False))

    def update_link_targets(self, names: Mapping[str, str]) -> None:
        """Update links to renamed parts."""
        folder = posixpath.dirname(posixpath.dirname(self.name))
        for element in self.root.iter("{*}Relationship", "{*}Override"):
            key = "PartName" if element.get("PartName") else "Target"
            target = unquote(element.get(key, ""))
            place = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            if place in names:
                element.set(key, "/" + names[place])

    def read_text_groups(self) -> Iterator[TextGroup]:
        """Read all texts of the part."""
        paragraphs = [_Paragraph()]
        depths = Counter[str]()
        for event, element in etree.iterwalk(self.root, events=("start", "end")):
            tag = _strip_namespace(element.tag)
            depths[tag] += 1 if event == "start" else -1
            if event == "start":
                yield from self._read_attributes(element, tag)
                if tag == "p":
                    paragraphs.append(_Paragraph())
                yield from self._read_element(element, tag, paragraphs, depths)
                continue
            if tag == "p":
                paragraph = paragraphs.pop()
                yield TextGroup(paragraph.current, is_visible=self.name.startswith("word/") and not depths["Fallback"])
                yield TextGroup(paragraph.previous if paragraph.is_tracked else [])
                yield TextGroup(paragraph.instructions)
            if element.tail and element is not self.root:
                yield TextGroup([self._make_node(element, "tail")])

    def _read_element(
        self, element: Any, tag: str, paragraphs: list[_Paragraph], depths: Counter[str]
    ) -> Iterator[TextGroup]:
        """Add the text of an element to its paragraph, or yield it as a separate text."""
        paragraph = paragraphs[-1]
        if tag in _BREAKS:
            paragraph.current.append(Node(_BREAKS[tag]))
            paragraph.previous.append(Node(_BREAKS[tag]))
        if not element.text:
            return
        if len(paragraphs) > 1 and tag in ("instrText", "delInstrText"):
            paragraph.instructions.append(self._make_node(element, "text", URL_ESCAPES))
        elif len(paragraphs) > 1 and tag in ("t", "delText"):
            node = self._make_node(element, "text")
            is_deleted = bool(depths["del"] or depths["moveFrom"] or tag == "delText")
            paragraph.is_tracked |= is_deleted
            if not is_deleted:
                paragraph.current.append(node)
            if is_deleted or not (depths["ins"] or depths["moveTo"]):
                paragraph.previous.append(node)
        elif not (
            (tag in _SIZE_ELEMENTS or self.name == "docProps/app.xml")
            and _BUILTIN_VALUE.fullmatch(element.text.strip())
        ):
            yield _label_group(self._make_node(element, "text", URL_ESCAPES), "PERSON" if tag in _AUTHOR_NAMES else "")

    def _make_node(self, element: Any, attribute: str, escapes: re.Pattern[str] = INVISIBLE) -> Node:
        is_date = any(_strip_namespace(key) == "type" and "W3CDTF" in value for key, value in element.attrib.items())

        def write_text(new: str) -> None:
            setattr(element, attribute, _PLACEHOLDER_DATE if is_date else new)
            if new != new.strip() and "wordprocessingml" in element.tag:
                element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")

        return Node(getattr(element, attribute), write_text, escapes)

    def _read_attributes(self, element: Any, tag: str) -> Iterator[TextGroup]:
        for key, value in element.attrib.items():
            name = _strip_namespace(key)
            if not self._is_text_attribute(element, tag, name, value):
                continue
            # Word cannot open a file with an invalid date
            is_date = name in ("date", "dateUtc")
            write = partial(element.attrib.pop, key) if is_date else partial(element.set, key)
            node = Node(value, write, URL_ESCAPES)
            is_place = name == "Target" and LOCAL_PATH.match(node.text)
            yield _label_group(node, "PERSON" if name in _AUTHOR_NAMES else "IDENTIFIER" if is_place else "")

    def _is_text_attribute(self, element: Any, tag: str, name: str, value: str) -> bool:
        if tag in _IGNORED_ELEMENTS or _GUID.fullmatch(value) or (name == "id" and _RELATIONSHIP_ID.fullmatch(value)):
            return False
        if tag == "Relationship":
            return name == "Target" and element.get("TargetMode") == "External"
        if tag == "name" and name == "val":
            return value.casefold().removesuffix(" char") not in self.builtin_styles
        if tag in _TEXT_ELEMENTS or name in _TEXT_ATTRIBUTES or self.is_custom_xml:
            return True
        return not _CODE_VALUE.fullmatch(value)


def _label_group(node: Node, label: str) -> TextGroup:
    """Make a group of a node, which as a whole is a structural span if it has a label."""
    return TextGroup([node], [ReplacedSpan(0, len(node.text), label)] if label else [])


def _collect_builtin_style_names(root: Any) -> Iterator[str]:
    """Collect the names of the built-in styles."""
    for style in root.iter("{*}style"):
        if not any(_strip_namespace(key) == "customStyle" for key in style.attrib):
            for name in style.iterchildren("{*}name"):
                yield from (value.casefold() for value in name.attrib.values())


def _strip_namespace(name: Any) -> str:
    return name.rpartition("}")[2] if isinstance(name, str) else ""
