"""What must hold of any input, whatever made it up: the property tests and the fuzzers ask the same."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from redactory.detectors import Span
from redactory.pipelines.readers import Document, Rejection
from redactory.pipelines.readers.documents import MAX_NAME_LENGTH
from redactory.pipelines.readers.formats import BYTE_ORDER_MARK, MAX_DEPTH, QUARANTINED_BYTES
from redactory.redaction import MASK, RoutingDecision

_REASON = re.compile(r"[a-z_]+")
_UNENCODABLE = re.compile("[\0\ud800-\udfff]")


def is_masked_as_marked(text: str, spans: Sequence[Span], decision: RoutingDecision) -> bool:
    """Whether no marked character and no standing mask is left, and all else stands where it stood."""
    hidden = [False] * len(text)
    for start, end in [s[:2] for s in spans] + [m.span() for m in re.finditer(MASK, text)]:
        hidden[start:end] = [True] * (end - start)
    open_ = re.split("\0+", "".join("\0" if hide else letter for letter, hide in zip(text, hidden, strict=True)))
    # white space between two masks goes with them
    between = [piece for piece in open_[1:-1] if not piece.isspace()]
    return decision.text.split(MASK) == ([open_[0], *between, open_[-1]] if any(hidden) else open_)


def is_usable(entry: Document | Rejection, max_chars: int) -> bool:
    """Whether a later stage can do with an entry what it does: every text and every name is a plain one."""
    if isinstance(entry, Rejection):
        return bool(_REASON.fullmatch(entry.reason)) and len(entry.content) <= QUARANTINED_BYTES
    names = [name for name in (entry.doc_id, entry.user_id) if name is not None]
    plain = not any(_UNENCODABLE.search(text) for text in (entry.text, *names))
    short = len(entry.text) <= max_chars and all(0 < len(name) <= MAX_NAME_LENGTH + 9 for name in names)
    return plain and short and bool(entry.text.strip())


def parse_expected_texts(content: bytes, limit: int) -> list[str | None]:
    """Of each line of JSON that is no blank one, its text where it is a document with nothing but a text."""
    texts: list[str | None] = []
    lines = content.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    for number, line in enumerate(whole):
        if len(line) > limit:
            texts.append(None)
        elif (line if number else line.removeprefix(BYTE_ORDER_MARK)).strip():
            texts.append(_parse_text(line, "utf-8" if number else "utf-8-sig"))
    return texts


def _parse_text(line: bytes, encoding: str) -> str | None:
    try:
        value = json.loads(line.decode(encoding))
    except (ValueError, RecursionError):
        return None
    text = value.get("text") if isinstance(value, dict) and not {"id", "user_id"} & set(value) else None
    flat = line.count(b"{") + line.count(b"[") <= MAX_DEPTH
    fine = flat and isinstance(text, str) and text.strip() and not _UNENCODABLE.search(text)
    return text if fine else None
