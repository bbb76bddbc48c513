"""Hidden forms: what is seen of a text, and that its places are those of the text as it is."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.detectors import Detector, DetectSettings
from redactory.detectors.engine import EngineOutput, Span
from redactory.detectors.visible_text import render_visible

_WAYS = (
    lambda sign: f"{sign}\u200b",
    lambda sign: f"\u200f{sign}",
    lambda sign: f"{sign}\u0336\u0301",
    lambda sign: f"&#{ord(sign):02};",
    lambda sign: chr(ord(sign) + 0xFEE0),
    lambda sign: {"a": "а", "o": "ο", "E": "Ε", "5": "𝟻"}.get(sign, sign),
    lambda sign: sign,
)
_WORDS = st.text("abo5E@.-xyz", min_size=1, max_size=12)


@given(_WORDS, st.lists(st.sampled_from(_WAYS), min_size=12, max_size=12), _WORDS)
def test_a_place_of_what_is_seen_covers_what_hides_it(secret: str, ways: list[object], before: str) -> None:
    hidden = "".join(way(sign) for way, sign in zip(ways, secret, strict=False))  # type: ignore[operator]
    text = f"{before} {hidden} after"
    view = render_visible(text)
    if view is None:
        assert hidden == secret
        return
    assert view.text == f"{before} {secret} after"
    start, end = len(before) + 1, len(before) + 1 + len(secret)
    (span,) = EngineOutput((Span(start, end, "X", 1.0, "x"),)).remap_offsets(view.origins.__getitem__).spans
    # unshown signs before the first sign that shows hide nothing of it
    assert text[len(before) + 1 : span.start].strip("\u200f") == ""
    assert span.end == len(before) + 1 + len(hidden)


@given(st.text(max_size=40) | st.text("a5&#;64\u200b\u0301аＡ\u202e", max_size=40))
def test_every_place_lies_in_the_text(text: str) -> None:
    view = render_visible(text)
    if view is None:
        return
    bounds = list(view.origins)
    assert len(bounds) == len(view.text) + 1
    assert bounds == [*sorted(set(bounds[:-1])), len(text)]
    assert not view.text or bounds[-2] < len(text)


_SPACE = st.sampled_from([" ", "\u00a0", "\u2009", "\u202f"])


@given(st.lists(st.from_regex("[a-z]{4,9}|[A-Z][a-z]{2,8}|[0-9]{7,9}", fullmatch=True), min_size=1, max_size=3), _SPACE)
def test_what_is_spaced_out_is_seen_closed_up(words: list[str], space: str) -> None:
    for between, after in itertools.product((2, 3), (" then", ", yes", "!", ")", "")):
        spaced = (space * between).join(space.join(word) for word in words)
        text = f"it is ({spaced}{after}"
        view = render_visible(text)
        assert view is not None
        assert view.text.split() == f"it is ({' '.join(words)}{after}".split()
        start = view.text.rindex(words[-1])
        first, end = view.origins[start], view.origins[start + len(words[-1])]
        assert text[first:end].rstrip() == space.join(words[-1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("M a r y S m i t h", "Mary Smith"),
        ("m a r y @ e x a m p l e . c o m", "mary@example.com"),
        ("AB\u00a012\u00a034\u00a056\u00a0C", "AB 12 34 56 C"),
        ("943\u2009476\u20095919", "943 476 5919"),
        ("078\u201305\u20131120", "078-05-1120"),
        ("4111\u20111111\u22121111\u20101111", "4111-1111-1111-1111"),
    ],
)
def test_groups_and_letters_are_seen_as_they_are_read(text: str, shown: str) -> None:
    view = render_visible(text)
    assert view is not None
    assert view.text == shown


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3 4 5 6",
        "x y z",
        "a + b - c",
        "Mr.\u00a0Smith paid \u2013 as always",
        "plain",
        "R&D &amp; more",
        "c’est déjà l’été",
        "می\u200cخواهم",
        "👨\u200d👩\u200d👧",
        "добрый день",
        "m² ½ µm",
    ],
)
def test_lawful_signs_hide_nothing(text: str) -> None:
    assert render_visible(text) is None


def test_hidden_secrets_are_masked_whole_and_read_the_same_in_any_batch() -> None:
    texts = [
        "just write to m\u200br\u200b.lee@ex\u00adample.com\u200b when you can",
        "just write to &#109;r.lee&#64;example.com when you can",
        "it is \uff14111 1111 1111 1111, thanks",
        "it is AB\u00a012\u00a034\u00a056\u00a0C, thanks",
        "it is m a r y . s m i t h @ e x a m p l e . c o m thanks",
    ]
    detector = Detector(DetectSettings())
    found = list(detector.detect(texts))
    for text, detection, secret in zip(
        texts,
        found,
        (
            "m\u200br\u200b.lee@ex\u00adample.com\u200b",
            "&#109;r.lee&#64;example.com",
            "\uff14111 1111 1111 1111",
            "AB\u00a012\u00a034\u00a056\u00a0C",
            "m a r y . s m i t h @ e x a m p l e . c o m",
        ),
        strict=True,
    ):
        start = text.index(secret)
        assert any(s.start <= start and start + len(secret) <= s.end for s in detection.strict), secret
        assert [*detector.detect([text])] == [detection]
