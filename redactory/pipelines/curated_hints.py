"""What a finished curation should make its owner look at: rows that were not used, a side that is empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import some

_SHOWN = 3
MENDS = {
    "broken_document": "The document cannot be read; open it, and save it anew.",
    "broken_json": "This is no JSON; write one object a line.",
    "broken_row": "The fields are not those of the first line; look at separators and quotation marks.",
    "document_without_text": "The pages hold images alone; recognise their text first (OCR).",
    "duplicate_id": "An earlier row has the same id (input.id).",
    "empty_text": "The text is empty (input.text).",
    "embedded_data": "A text is an image or a sound as base64, which cannot be looked at; take it out.",
    "encrypted_document": "The document is encrypted; save it without a password.",
    "kept_not_plain": "A column of input.keep holds no string, number, true or false; name one below it.",
    "kept_too_long": "A column of input.keep holds more than 1,024 characters; texts belong into input.text.",
    "link_outside": "A link leads out of the input's folder; name the file itself, or remove the link.",
    "linked_folder": "A link to a folder is not followed; name that folder in input.path too.",
    "missing_id": "Nothing stands in the column of the id (input.id).",
    "missing_text": "Nothing stands in the column of the text; name the right one (input.text).",
    "new_field": "A field that none of the first 1,000 rows had, so nobody judged it; give --keep-columns.",
    "expanding_file": "The file expands to far more data than its size suggests, or has too many blank "
    "lines; if you trust it, raise input.max_expansion or remove the blank lines.",
    "not_a_file": "An entry of the folder is a pipe, a device or a broken link; remove it.",
    "not_an_object": 'This is JSON, but no object; write one a line, like {"text": "…"}.',
    "personal_key": "A key that first appears after row 1,000 looks personal; rename it, or give "
    "--keep-columns.",
    "repeated_key": "A JSON object has a key twice, and readers differ in which they take; keep one.",
    "row_too_long": "The row is longer than input.max_row_bytes; split it, or raise the limit.",
    "separator_in_text": "A field holds U+001E or U+001F, which stand between texts; take it out.",
    "text_is_bytes": "The column of the text holds bytes that are not UTF-8; cast it to strings.",
    "text_is_list": "The column of the text holds lists; cast each to one string, or name what is in "
    "them, as in notes[*] (input.text, --text).",
    "text_not_string": "What stands in a field of the text is no text; name others (input.text, --text).",
    "too_many_elements": "The document has too many elements (tags, parts, header fields, drawing "
    "operators); split it.",
    "too_long": "The text is longer than input.max_chars; split it, or raise the limit.",
    "unreadable_file": "The file is cut off, damaged or not what its ending says; copy it again, or fix it.",
    "undecodable": "The text does not match its declared character set (UTF-8 if none is declared); convert "
    "the file (iconv -t UTF-8).",
}
"""Why a row is rejected, in words, by its reason code; the codes that are not here speak for themselves."""


def rejected_as(reason: str, count: int) -> str:
    """How many rows were rejected for ``reason``, and the mend where one is known."""
    return f"Rejected as {reason}: {count:,}. {MENDS.get(reason, '')}".rstrip()


def text_chosen(column: str) -> str:
    """Say which column is read because there is no text."""
    return f"The text is read from '{column}', since no row has the column 'text' (input.text)."


def curated_hints(result: dict[str, Any]) -> Iterator[str]:
    """Sentences, none where nothing strikes; ``result`` is what ``redactory curate`` prints."""
    commonest = sorted(result["rejected_by_reason"].items(), key=lambda entry: -entry[1])[:_SHOWN]
    if "text_chosen" in result:
        yield text_chosen(result["text_chosen"])
    for reason, count in commonest:
        yield rejected_as(reason, count)
    if names := result.get("roles_left_out"):
        yield (
            f"Roles that may be names are left out of the shards, of {some(names, 'example')}: "
            "input.accept_personal: [role] lets them in."
        )
    if (own := result.get("route")) is not None:
        yield from _counted(own, nothing=not result["public"])
    if not result["rows"]:
        yield "The input has no rows: see whether input.path names the right files."
    elif not result["documents"]:
        yield "No row could be used: 'redactory curate --dry-run' shows the first of them."
    elif own is not None:
        return
    elif result["public"] and not result["private"] + result["quarantined"]:
        yield (
            "Every point is public: nothing was found to protect. See whether detect.language is that of the "
            "text; 'redactory scan --explain TEXT' shows what is found in one."
        )
    elif result["private"] and not result["public"] + result["quarantined"]:
        yield (
            "Every point is private: a model has no public text to learn words from. 'redactory scan "
            "--explain TEXT' shows why; the rules are set in detect.conservative."
        )


def _counted(own: dict[str, Any], nothing: bool) -> Iterator[str]:
    """What decided the sides, by constants alone: no count is looked up."""
    from redactory.training.counted import planned

    yield (
        f"Public by count: what about {own['threshold']:,} users or more wrote (epsilon "
        f"{format_upper(own['epsilon'])}, delta {format_upper(own['delta'])}, at most "
        f"{own['texts_per_user']:,} texts of each). A row that names no user is a user of its own. The "
        "numbers above follow from private text: keep them with the run."
    )
    if nothing:
        found = planned(own["epsilon"], own["delta"], own["texts_per_user"])["others"]
        with_others = ", ".join(f"with {what} about {users:,}" for what, users in found.items())
        yield (
            f"No text is public: none has about {own['threshold']:,} users. It takes more rows, or a lower "
            f"threshold ({with_others}); each further selection spends again."
        )
