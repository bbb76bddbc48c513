"""Hidden forms: a text as people see it, so that engines find what its characters hide from programs.

Characters that do not show and accents are left out; letters and digits of mathematics, of full width or in
circles, letters of other alphabets that look Latin, and HTML entities are what they look like.  Each
character that is seen keeps its place in the text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from array import array
from dataclasses import dataclass

from redactory.detectors.engine import Reading
from redactory.foundation.canonical import hash_of

_UNSHOWN = (
    "\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\u0300-\u036f\u0483-\u0489\u20d0-\u20f0"
)
_STYLED = "\u2460-\u24ff\uff01-\uff5e\U0001d400-\U0001d7ff\U0001f110-\U0001f149"
_ENTITY = r"&(?:#\d{2,7}|#[xX][\da-fA-F]{2,6}|commat|period|sol|colon|hyphen|dash|lowbar|num);"
_LIKE = str.maketrans(
    "асеорхуіјѕԁԛԝһАВСЕНІЈКМОРЅТХУοιαρντυκΑΒΕΗΙΚΜΝΟΡΤΧΥΖ․‐꞉⁄",
    "aceopxyijsdqwhABCEHIJKMOPSTXYoiapvtukABEHIKMNOPTXYZ.-:/",
)
_WORD = re.compile(r"[\w․‐꞉⁄]+")
_ANY = re.compile(
    # what does not show hides something only beside what ASCII has: in other scripts, and in emoji, it joins
    rf"(?<=[!-~])[{_UNSHOWN}]|[{_UNSHOWN}](?=[!-~])|[{_STYLED}]|{_ENTITY}"
    rf"|[{''.join(map(chr, _LIKE))}]"
)
_UNIT = re.compile(rf"{_ENTITY}|.", re.DOTALL)
_DROPPED = re.compile(f"[{_UNSHOWN}]")
_FORMS = re.compile(f"[{_STYLED}]")
HIDDEN_SHA256 = hash_of([_ANY.pattern, sorted(_LIKE.items())])
"""What changes how a text is seen, besides Python's own version."""


@dataclass(frozen=True, slots=True)
class Seen:
    """``text`` as it is seen; its i-th character begins at code point ``origins[i]`` of the source.

    ``origins`` has one more entry, the length of the source.
    """

    text: str
    origins: array[int]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The code points [start, end) of the source behind a place of ``text``, hidden ones included."""
        return self.origins[start], self.origins[end]

    def back(self, reading: Reading) -> Reading:
        """``reading`` of ``text``, with the places of the source."""
        if reading.failure is not None:
            return reading
        ends = self.origins
        return Reading(
            tuple(one._replace(start=ends[one.start], end=ends[one.end]) for one in reading.spans),
            tuple(one._replace(start=ends[one.start], end=ends[one.end]) for one in reading.plain),
            tuple(self.place(*place) for place in reading.allowed),
        )


def seen(text: str) -> Seen | None:
    """``text`` as it is seen; None where that is no other text.  A function of the text alone."""
    if (text.isascii() and "&" not in text) or not _ANY.search(text):
        return None
    latin = _WORD.sub(_as_latin, text)
    units = [(match.start(), _as_seen(match.group())) for match in _UNIT.finditer(latin)]
    shown = "".join(sign for _, sign in units)
    return (
        Seen(shown, array("q", [*(start for start, sign in units if sign), len(text)]))
        if shown != text
        else None
    )


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
