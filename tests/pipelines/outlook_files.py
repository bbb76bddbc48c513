"""Write small Outlook messages: an OLE file with the streams of each property."""

from __future__ import annotations

import struct
from collections.abc import Mapping

Property = str | bytes | int
Tree = dict[str, "bytes | Tree"]
SUBJECT, CLASS, BODY, HTML, RTF = 0x0037, 0x001A, 0x1000, 0x1013, 0x1009
SENDER_NAME, SENDER_ADDRESS, TRANSPORT_HEADERS, MESSAGE_ID, SENT = 0x0C1A, 0x5D01, 0x007D, 0x1035, 0x0039
DISPLAY_NAME, SMTP_ADDRESS, RECIPIENT_TYPE, ATTACHMENT_NAME, ATTACHMENT_DATA = 0x3001, 0x39FE, 0x0C15, 0x3707, 0x3701
CODE_PAGE = 0x3FDE
_FREE, _END, _FAT_SECTOR, _NONE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFF
_SECTOR, _SMALL, _CUTOFF = 512, 64, 4096


def write_msg(
    properties: Mapping[int, Property],
    recipients: list[Mapping[int, Property]] = [],  # noqa: B006
    attachments: list[Mapping[int, Property]] = [],  # noqa: B006
) -> bytes:
    """Write a message; its class is IPM.Note, and its body code page UTF-8, unless ``properties`` say otherwise."""
    tree = _make_storage({CLASS: "IPM.Note", CODE_PAGE: 65001, **properties}, 32)
    for kind, children in (("recip", recipients), ("attach", attachments)):
        tree |= {f"__{kind}_version1.0_#{n:08X}": _make_storage(child, 8) for n, child in enumerate(children)}
    return write_ole(tree)


def _make_storage(properties: Mapping[int, Property], header: int) -> Tree:
    streams: Tree = {}
    table = bytes(header)
    for number, value in properties.items():
        if isinstance(value, int):
            kind = 0x0040 if number == SENT else 0x0003
            table += struct.pack("<HHIQ", kind, number, 6, value)
            continue
        kind, data = (0x001F, value.encode("utf-16-le")) if isinstance(value, str) else (0x0102, value)
        table += struct.pack("<HHIII", kind, number, 6, len(data), 0)
        streams[f"__substg1.0_{number:04X}{kind:04X}"] = data
    return {"__properties_version1.0": table, **streams}


def write_ole(tree: Tree) -> bytes:
    """Write an OLE file of the streams and storages in ``tree``."""
    sectors, fat, small, small_fat = list[bytes](), list[int](), bytearray(), list[int]()

    def add(data: bytes) -> int:
        first = len(sectors)
        pieces = [data[at : at + _SECTOR].ljust(_SECTOR, b"\0") for at in range(0, len(data), _SECTOR)]
        sectors.extend(pieces)
        fat.extend([*range(first + 1, first + len(pieces)), _END] if pieces else [])
        return first if pieces else _END

    def add_stream(data: bytes) -> int:
        if len(data) >= _CUTOFF:
            return add(data)
        first, count = len(small_fat), -(-len(data) // _SMALL)
        small.extend(data.ljust(count * _SMALL, b"\0"))
        small_fat.extend([*range(first + 1, first + count), _END] if count else [])
        return first if count else _END

    entries: list[list[int | str]] = [["Root Entry", 5, _NONE, _NONE, 0, 0]]

    def add_entries(parent: int, children: Tree) -> None:
        previous = parent
        for name in sorted(children, key=lambda name: (len(name), name.upper())):
            child = children[name]
            index = len(entries)
            entries[previous][3 if previous == parent else 2] = index
            is_stream = isinstance(child, bytes)
            start, size = (add_stream(child), len(child)) if isinstance(child, bytes) else (0, 0)
            entries.append([name, 2 if is_stream else 1, _NONE, _NONE, start, size])
            previous = index
            if isinstance(child, dict):
                add_entries(index, child)

    add_entries(0, tree)
    entries[0][4:] = [add(bytes(small)), len(small)]
    directory = b""
    for name, kind, right, child, start, size in entries:
        encoded = str(name).encode("utf-16-le") + b"\0\0"
        directory += struct.pack("<64sHBBIII", encoded, len(encoded), kind, 1, _NONE, right, child)
        directory += bytes(36) + struct.pack("<II", start, size) + bytes(4)
    first_directory = add(directory)
    first_small_fat = add(struct.pack(f"<{len(small_fat)}I", *small_fat))
    small_fat_sectors = -(-4 * len(small_fat) // _SECTOR)
    count = 1
    while count * _SECTOR // 4 < len(fat) + count:
        count += 1
    first_fat = len(sectors)
    fat += [_FAT_SECTOR] * count
    fat += [_FREE] * (count * _SECTOR // 4 - len(fat))
    header = struct.pack(
        "<8s16sHHHHHHIIIIIIIIII",
        *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), 0x3E, 3, 0xFFFE, 9, 6, 0, 0, 0),
        *(count, first_directory, 0, _CUTOFF, first_small_fat, small_fat_sectors, _END, 0),
    )
    header += struct.pack("<109I", *range(first_fat, first_fat + count), *[_FREE] * (109 - count))
    return header + b"".join(sectors) + struct.pack(f"<{len(fat)}I", *fat)
