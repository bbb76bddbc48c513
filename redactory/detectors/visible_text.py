"""Render a text as people see it, so that engines find what its characters hide from programs.

Invisible characters and accents are dropped. Mathematical, full-width and circled letters and digits, letters of other
alphabets that look Latin, HTML entities, and no-break and thin spaces, hyphens and dashes between digits and capitals
become what they look like. Spaced-out words ("M a r y") are closed up. Each visible character keeps its source offset.
"""

from __future__ import annotations

import html
import re
import unicodedata
from array import array

from redactory.detectors.engine import MappedText
from redactory.foundation.canonical import json_sha256

_INVISIBLE = (
    "\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\u0300-\u036f\u0483-\u0489\u20d0-\u20f0"
)
_STYLED_LETTERS = "\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff\U0001f110-\U0001f149"
_HTML_ENTITY = r"&(?:#\d{2,7}|#[xX][\da-fA-F]{2,6}|commat|period|sol|colon|hyphen|dash|lowbar|num);"
_LOOKALIKES = str.maketrans(
    "асеорхуіјѕԁԛԝһАВСЕНІЈКМОРЅТХУοιαρντυκΑΒΕΗΙΚΜΝΟΡΤΧΥΖ․‐꞉⁄", "aceopxyijsdqwhABCEHIJKMOPSTXYoiapvtukABEHIKMNOPTXYZ.-:/"
)
_WORD_PATTERN = re.compile(r"[\w․‐꞉⁄]+")
_SPECIAL_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_GROUP_SEPARATOR = re.compile(rf"(?<=[\dA-Z])[{_SPECIAL_SPACES}‐‑‒–−](?=[\dA-Z])")
"""Characters, other than spaces and hyphens, that separate groups of numbers and codes."""
_SPACED_WORD = re.compile(
    rf"(?<![^\s(\"'“‘:])[^\W_](?:[ {_SPECIAL_SPACES}]{{1,3}}[\w@.'+-](?![^\s.,;:!?)\"'”’])){{2,}}"
)
_SINGLE_SPACE = re.compile(rf"(?<=\S)[ {_SPECIAL_SPACES}](?=\S)|(?<=\s)\s")
_CONCEALING = re.compile(
    # invisible characters hide something only beside ASCII; in other scripts and emoji they join
    rf"(?<=[!-~])[{_INVISIBLE}]|[{_INVISIBLE}](?=[!-~])|[{_STYLED_LETTERS}]|{_HTML_ENTITY}"
    rf"|[{''.join(map(chr, _LOOKALIKES))}]|{_GROUP_SEPARATOR.pattern}"
)
_CHARACTER = re.compile(rf"{_HTML_ENTITY}|.", re.DOTALL)
_INVISIBLE_CHARACTER = re.compile(f"[{_INVISIBLE}]")
_STYLED_LETTER = re.compile(f"[{_STYLED_LETTERS}]")
VISIBLE_TEXT_SHA256 = json_sha256([_CONCEALING.pattern, sorted(_LOOKALIKES.items()), _SPACED_WORD.pattern])
"""Digest of what determines the rendering, besides Python's version."""


def render_visible(text: str) -> MappedText | None:
    """Return ``text`` as seen; None if it is unchanged. A function of the text alone."""
    conceals = not (text.isascii() and "&" not in text) and _CONCEALING.search(text)
    if not conceals and not _SPACED_WORD.search(text):
        return None
    latin = _WORD_PATTERN.sub(_replace_lookalikes, text)
    latin = _GROUP_SEPARATOR.sub(lambda gap: " " if gap[0].isspace() else "-", latin)
    closed = _find_letter_spaces(latin)
    pieces = [
        (match.start(), "" if match.start() in closed else _render_character(match.group()))
        for match in _CHARACTER.finditer(latin)
    ]
    visible = "".join(sign for _, sign in pieces)
    if visible == text:
        return None
    return MappedText(visible, array("q", [*(start for start, sign in pieces if sign), len(text)]))


def _find_letter_spaces(text: str) -> set[int]:
    """Find the spaces inside spaced-out words, except possible word boundaries (several, or before a capital)."""
    places = set[int]()
    for run in _SPACED_WORD.finditer(text):
        signs = run[0].split()
        letters = [sign for sign in signs if sign.isalnum()]
        least = 7 if all(sign.isdigit() for sign in letters) else 3 if "".join(signs).istitle() else 4
        if len(letters) >= least and 3 * len(letters) >= 2 * len(signs):
            places.update(
                gap.start()
                for gap in _SINGLE_SPACE.finditer(text, *run.span())
                if not (text[gap.start() - 1].islower() and text[gap.end()].isupper())
                or text[gap.start() - 1].isspace()
            )
    return places


def _replace_lookalikes(word: re.Match[str]) -> str:
    original = word.group()
    translated = original.translate(_LOOKALIKES)
    visible = _STYLED_LETTER.sub(
        lambda sign: unicodedata.normalize("NFKC", sign[0]), _INVISIBLE_CHARACTER.sub("", translated)
    )
    return translated if visible.isascii() else original


def _render_character(character: str) -> str:
    """Return what is seen of one character or entity: a character, or nothing."""
    if len(character) > 1:
        character = html.unescape(character)[:1]
    if _INVISIBLE_CHARACTER.match(character):
        return ""
    form = unicodedata.normalize("NFKC", character) if _STYLED_LETTER.match(character) else character
    return form if len(form) == 1 else character
