"""Hints after a curation: rejected rows, or an empty split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import pluralize

_MAX_REASONS = 3
FIXES = {
    "broken_document": "The document cannot be read; open it, and save it again.",
    "broken_json": "This is not JSON; write one object per line.",
    "broken_row": "The fields are not those of the first line; check separators and quotation marks.",
    "document_without_text": "The pages contain only images; recognise their text first (OCR). Of an Outlook message: "
    "its text is only rich text; save it as HTML or plain text.",
    "duplicate_id": "An earlier row has the same id (input.id).",
    "empty_text": "The text is empty (input.text).",
    "embedded_data": "A text is an image or a sound as base64, which cannot be checked; remove it.",
    "encrypted_document": "The document is encrypted or signed; save it without a password or signature.",
    "kept_not_plain": "A column of input.metadata_columns is not a string, number, true or false; name a field in it.",
    "kept_too_long": "A column of input.metadata_columns has more than 1,024 characters; texts belong in input.text.",
    "link_outside": "A link leads outside the input's folder; name the file itself, or remove the link.",
    "linked_folder": "Links to folders are not followed; add that folder to input.path.",
    "missing_id": "The id column is empty (input.id).",
    "missing_text": "The text column is empty; name the right one (input.text).",
    "expanding_file": "The file expands to far more data than its size suggests, or has too many blank "
    "lines; if you trust it, raise input.max_expansion or remove the blank lines.",
    "not_a_file": "An entry of the folder is a pipe, a device or a broken link; remove it.",
    "not_a_message": "An Outlook item other than a message (contact, appointment, task) is not read; save it in "
    "another format.",
    "not_an_object": 'This JSON is not an object; write one per line, like {"text": "…"}.',
    "repeated_key": "A JSON object has a key twice, and readers differ in which one they use; keep one.",
    "row_too_long": "The row or document is larger than input.max_row_bytes allows; split it, or raise the limit.",
    "separator_in_text": "A field contains U+001E or U+001F, which separate texts; remove it.",
    "text_is_bytes": "The text column holds bytes that are not UTF-8; cast it to strings.",
    "text_is_list": "The text column holds lists; cast each to one string, or name their entries, as in "
    "notes[*] (input.text, --text-column).",
    "text_not_string": "A text field does not hold text; name other fields (input.text, --text-column).",
    "too_many_elements": "The document has too many elements (tags, parts, header fields, drawing "
    "operators); split it.",
    "too_long": "The text is longer than input.max_chars; split it, or raise the limit.",
    "undeclared_field": "A field that first holds text after row 1,000 is neither masked nor declared; name it "
    "(--text-column, --column), or give --keep-other-columns.",
    "unreadable_file": "The file is truncated, damaged or not what its name says; copy it again, or fix it.",
    "undecodable": "The text does not match its declared character set (UTF-8 if none is declared); give "
    "--encoding NAME (input.encoding), or convert the file (iconv -t UTF-8).",
}
"""Descriptions of rejection codes; other codes are self-explanatory."""


def describe_rejection(reason: str, count: int) -> str:
    """Describe how many rows were rejected for ``reason``, with a fix if one is known."""
    return f"Rejected as {reason}: {count:,}. {FIXES.get(reason, '')}".rstrip()


def describe_text_column(column: str) -> str:
    """Say which column is read because there is no text column."""
    return f"The text is read from '{column}', since no row has the column 'text' (input.text)."


def list_curation_hints(result: dict[str, Any]) -> Iterator[str]:
    """Yield hints for ``result``, the output of ``redactory curate``; none if nothing is unusual."""
    commonest = sorted(result["rejected_by_reason"].items(), key=lambda entry: -entry[1])[:_MAX_REASONS]
    if "text_chosen" in result:
        yield describe_text_column(result["text_chosen"])
    for reason, count in commonest:
        yield describe_rejection(reason, count)
    if names := result.get("roles_left_out"):
        yield (
            f"Roles that may be names are left out of the shards, in {pluralize(names, 'example')}; to keep them "
            "set input.allow_personal_columns: [role]."
        )
    if (route := result.get("route")) is not None:
        yield from _describe_selection(route, is_empty=not result["public"])
    elif 0 < result["public"] + result["private"] < result["duplicate"] and "index" not in result["dedup"]:
        yield "Most examples are duplicates: dedup: {mode: none} keeps them, which helps a training on private text."
    if not result["rows"]:
        yield "The input has no rows: check that input.path names the right files."
    elif not result["documents"]:
        yield "No row could be used: 'redactory curate --dry-run' shows the first rejected ones."
    elif route is not None:
        return
    elif result["public"] and not result["private"] + result["quarantined"]:
        yield (
            "Every example is public: nothing was found to protect. Check that detect.language matches the "
            "text; 'redactory scan --explain TEXT' shows what is found in a text."
        )
    elif result["private"] and not result["public"] + result["quarantined"]:
        yield (
            "Every example is private: a model has no public text to learn words from. 'redactory scan "
            "--explain TEXT' shows why; the rules are set in detect.conservative."
        )


def _describe_selection(route: dict[str, Any], is_empty: bool) -> Iterator[str]:
    """Describe the rules that decided the splits from constants alone; no count is read."""
    from redactory.training.count_selection import plan_count_selection

    yield (
        f"Public by count: texts of about {route['threshold']:,} users or more (epsilon "
        f"{format_upper(route['epsilon'])}, delta {format_upper(route['delta'])}, at most "
        f"{route['texts_per_user']:,} texts each). A row without a user counts as a separate user. The "
        "numbers above are based on private text: keep them with the run."
    )
    if is_empty:
        thresholds = plan_count_selection(route["epsilon"], route["delta"], route["texts_per_user"])["others"]
        alternatives = ", ".join(f"with {setting} about {users:,}" for setting, users in thresholds.items())
        yield (
            f"No text is public: none has about {route['threshold']:,} users. Use more rows, or a lower "
            f"threshold ({alternatives}); each further selection spends again."
        )
