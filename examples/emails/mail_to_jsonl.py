"""A folder of .eml files as JSON lines that Redactory reads.

    python mail_to_jsonl.py mail mail.jsonl

A message becomes {id, user_id, text}: its Message-ID, the address of its sender, and its subject and plain
text without what it quotes.  No other header is kept: who else got a message, and by which machines it came,
is about people and teaches a model nothing.  What is no message, or has no sender or no text, is counted, and
its file named.
"""

from __future__ import annotations

import email
import json
import os
import sys
from collections import Counter
from email import policy
from email.message import EmailMessage
from email.utils import parseaddr
from pathlib import Path


def row_of(message: EmailMessage) -> dict[str, str] | str:
    """The message as a row, or why it cannot be one."""
    sender = parseaddr(str(message.get("From", "")))[1].lower()
    if "@" not in sender:
        return "no sender"
    part = message.get_body(("plain",))
    try:
        text = "" if part is None else own_words(part.get_content())
    except LookupError:
        return "a character set that nobody knows"
    if not text:
        return "no plain text"
    row = {"user_id": sender, "text": f"{message.get('Subject', '')}\n\n{text}"}
    # without an id, the file and the row name the document
    return {"id": str(message["Message-ID"]).strip(), **row} if message["Message-ID"] else row


def own_words(text: str) -> str:
    """What the sender wrote: without the lines quoted from somebody else, and the line above them."""
    kept: list[str] = []
    for line in text.splitlines():
        if not line.startswith(">"):
            kept.append(line)
        elif kept and kept[-1].endswith("wrote:"):
            kept.pop()
    return "\n".join(kept).strip()


def main(folder: str, out: str) -> None:
    """Read every .eml file below ``folder`` in the order of their names."""
    left: Counter[str] = Counter()
    rows = 0
    # letters are for nobody else on this machine
    os.umask(0o077)
    with open(out, "w", encoding="utf-8") as file:
        for path in sorted(Path(folder).rglob("*.eml")):
            row = row_of(email.message_from_bytes(path.read_bytes(), policy=policy.default))
            if isinstance(row, str):
                left[row] += 1
                print(f"left out: {path.name}, {row}", file=sys.stderr)
                continue
            rows += 1
            print(json.dumps(row, ensure_ascii=False), file=file)
    print(f"{rows} messages; left out: {dict(left) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
