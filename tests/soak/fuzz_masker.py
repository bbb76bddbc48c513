"""Text and spans to fate: no marked character survives, nothing else is lost."""

from __future__ import annotations

import atheris

with atheris.instrument_imports(include=["redactory.redaction.mask", "redactory.redaction.sides"]):
    from redactory.redaction import route

from redactory.detectors import Detection, Span
from redactory.redaction import MASK
from tests.pipelines.oracles import masked_as_marked
from tests.soak.fuzzing import fuzz

EXECUTIONS, LONGEST = 400_000, 400


def target(data: bytes) -> None:
    """The head gives the spans, the rest the text."""
    given = atheris.FuzzedDataProvider(data)
    ends = [given.ConsumeInt(1) & 0xFF for _ in range(2 * given.ConsumeIntInRange(0, 8))]
    flagged, failed = given.ConsumeBool(), given.ConsumeIntInRange(0, 15) == 15
    text = given.ConsumeUnicodeNoSurrogates(given.remaining_bytes()).replace("\0", "<MASK>")
    pairs = ((min(a, b), min(max(a, b), len(text))) for a, b in zip(ends[::2], ends[1::2], strict=True))
    spans = tuple(Span(start, end, "L", 1.0, "d") for start, end in pairs if start < end)
    whole = (Span(0, len(text), "W", 0.5, "d"),) if flagged and text else ()
    fate = route(text, Detection(spans, whole, "engine_error" if failed else None))
    if failed:
        assert (fate.side, fate.text, fate.failure) == ("private", "", "engine_error")
        return
    assert (fate.side == "private") == bool(spans or whole or MASK in text)
    assert masked_as_marked(text, spans, fate)
    assert fate.masks <= len(spans)


def seeds() -> list[bytes]:
    """Heads of some spans before texts of masks, parts of masks and other signs."""
    texts = ("Anna lives in Rome.", "<MASK> and <MA<MASK>SK>", "e\u0301 \u202e\u200b 🙂 <MASK> \u3000<MASK>")
    return [text.encode("utf-32-le") + bytes(head) for text in texts for head in ((2, 5, 1, 3, 8), range(16))]


if __name__ == "__main__":
    fuzz(target, seeds(), EXECUTIONS, LONGEST)
