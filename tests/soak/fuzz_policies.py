"""Text to fate, by the engines and policies of a configuration that says nothing."""

from __future__ import annotations

import atheris

with atheris.instrument_imports(include=["redactory.detectors", "redactory.redaction"]):
    from redactory.detectors import Detector, DetectSettings
    from redactory.redaction import route

from redactory.redaction import MASK
from tests.pipelines.oracles import masked_as_marked
from tests.soak.fuzzing import fuzz

EXECUTIONS, LONGEST = 4_000, 300
DETECTOR = Detector(DetectSettings())
OTHER = "Write to mary.smith@example.org, or call 212-555-0101."


def target(data: bytes) -> None:
    """The bytes are the text, where they are one; every second code point would be no text else."""
    text = data.decode("utf-8", "replace").replace("\0", "\ufffd")
    if not text.strip():
        return
    (found,) = DETECTOR.detect([text])
    assert found.failure in (None, "pattern_timeout")
    fate = route(text, found)
    marked = [*found.strict, *found.conservative]
    assert all(0 <= span.start < span.end <= len(text) for span in marked)
    assert (fate.side == "private") == bool(marked or found.failure or MASK in text)
    assert found.failure or masked_as_marked(text, found.strict, fate)
    if found.failure is None and data[0] % 8 == 0:
        # a text's fate does not hang on the texts beside it
        assert [*DETECTOR.detect([OTHER, text])][1] == found


def seeds() -> list[bytes]:
    """Texts with hits of many kinds, and signs that are none to see."""
    texts = (
        OTHER,
        "Mr. John O'Brien of 12 Main St., Apt. 4, was born on 03/04/1985.",
        "GB82 WEST 1234 5698 7654 32, 4111 1111 1111 1111, 078-05-1120, fe80::1, http://a.b/c?d=e",
        "n\u200bo\u00ad \u202ethgir ot tfel\u202c, e\u0301, ﬁ, а, Ⅷ, １２３, 👩\u200d👩\u200d👧 <MASK>",
        "it is fine, and so is this.",
        "\\ \" ' ` $(x) {0} %s [a](b) ((((((((",
    )
    return [text.encode() for text in texts]


if __name__ == "__main__":
    fuzz(target, seeds(), EXECUTIONS, LONGEST)
