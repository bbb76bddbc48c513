"""Hidden forms: a text as people see it, so that engines find what its characters hide from programs.

Characters that do not show and accents are left out; letters and digits of mathematics, of full width or in
circles, letters of other alphabets that look Latin, and HTML entities are what they look like.  So are
no-break and thin spaces, hyphens and dashes between digits and capitals.  What is spaced out ("M a r y") is
closed up.  Each character that is seen keeps its place in the text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from array import array
from dataclasses import dataclass

from redactory.foundation.canonical import hash_of

_UNSHOWN = (
    "\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\u0300-\u036f\u0483-\u0489\u20d0-\u20f0"
)
_STYLED = "\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff\U0001f110-\U0001f149"
_ENTITY = r"&(?:#\d{2,7}|#[xX][\da-fA-F]{2,6}|commat|period|sol|colon|hyphen|dash|lowbar|num);"
_LIKE = str.maketrans(
    "асеорхуіјѕԁԛԝһАВСЕНІЈКМОРЅТХУοιαρντυκΑΒΕΗΙΚΜΝΟΡΤΧΥΖ․‐꞉⁄", "aceopxyijsdqwhABCEHIJKMOPSTXYoiapvtukABEHIKMNOPTXYZ.-:/"
)
_WORD = re.compile(r"[\w․‐꞉⁄]+")
_SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
_GAP = re.compile(rf"(?<=[\dA-Z])[{_SPACES}‐‑‒–−](?=[\dA-Z])")
"""Where numbers and codes are cut in groups, by another sign than a space or hyphen."""
_SPACED = re.compile(rf"(?<![^\s(\"'“‘:])[^\W_](?:[ {_SPACES}]{{1,3}}[\w@.'+-](?![^\s.,;:!?)\"'”’])){{2,}}")
_SINGLE_GAP = re.compile(rf"(?<=\S)[ {_SPACES}](?=\S)|(?<=\s)\s")
_ANY = re.compile(
    # what does not show hides something only beside what ASCII has: in other scripts, and in emoji, it joins
    rf"(?<=[!-~])[{_UNSHOWN}]|[{_UNSHOWN}](?=[!-~])|[{_STYLED}]|{_ENTITY}"
    rf"|[{''.join(map(chr, _LIKE))}]|{_GAP.pattern}"
)
_UNIT = re.compile(rf"{_ENTITY}|.", re.DOTALL)
_DROPPED = re.compile(f"[{_UNSHOWN}]")
_FORMS = re.compile(f"[{_STYLED}]")
HIDDEN_SHA256 = hash_of([_ANY.pattern, sorted(_LIKE.items()), _SPACED.pattern])
"""What changes how a text is seen, besides Python's own version."""


@dataclass(frozen=True, slots=True)
class Seen:
    """``text`` as it is seen; its i-th character begins at code point ``origins[i]`` of the source.

    ``origins`` has one more entry, the length of the source.
    """

    text: str
    origins: array[int]


def seen(text: str) -> Seen | None:
    """``text`` as it is seen; None where that is no other text.  A function of the text alone."""
    hides = not (text.isascii() and "&" not in text) and _ANY.search(text)
    if not hides and not _SPACED.search(text):
        return None
    latin = _GAP.sub(lambda gap: " " if gap[0].isspace() else "-", _WORD.sub(_as_latin, text))
    closed = _closed(latin)
    units = [
        (match.start(), "" if match.start() in closed else _as_seen(match.group())) for match in _UNIT.finditer(latin)
    ]
    shown = "".join(sign for _, sign in units)
    return Seen(shown, array("q", [*(start for start, sign in units if sign), len(text)])) if shown != text else None


def _closed(text: str) -> set[int]:
    """The places of spaces between letters that are spaced out.

    One that words may lie on either side of stays: one of several, and that before a capital.
    """
    places = set[int]()
    for run in _SPACED.finditer(text):
        signs = run[0].split()
        named = [sign for sign in signs if sign.isalnum()]
        least = 7 if all(sign.isdigit() for sign in named) else 3 if "".join(signs).istitle() else 4
        if len(named) >= least and 3 * len(named) >= 2 * len(signs):
            places.update(
                gap.start()
                for gap in _SINGLE_GAP.finditer(text, *run.span())
                if not (text[gap.start() - 1].islower() and text[gap.end()].isupper())
                or text[gap.start() - 1].isspace()
            )
    return places


def _as_latin(word: re.Match[str]) -> str:
    """A word of which every letter looks Latin, in Latin letters; another as it is."""
    written = word.group()
    own = written.translate(_LIKE)
    shown = _FORMS.sub(lambda sign: unicodedata.normalize("NFKC", sign[0]), _DROPPED.sub("", own))
    return own if shown.isascii() else written


def _as_seen(unit: str) -> str:
    """What is seen of one character or entity: a character, or nothing."""
    if len(unit) > 1:
        unit = html.unescape(unit)[:1]
    if _DROPPED.match(unit):
        return ""
    form = unicodedata.normalize("NFKC", unit) if _FORMS.match(unit) else unit
    return form if len(form) == 1 else unit
