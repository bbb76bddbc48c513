"""Explain: which engine marked what in one text, and what each policy makes of it."""

from __future__ import annotations

from typing import Any

from redactory.detectors import Detector
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.loading import Given, load_for_texts
from redactory.redaction import route


def explain(text: str, config: Given | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    """What detection does to ``text``, as one point; **the answer quotes the text**.

    Returns {text, side, masked, failure, reasons, marks}; a mark is {start, end, value, label, score,
    detector, masks, makes_private}, those of the engines and of the rules alike, in text order.
    """
    settings = load_for_texts(config)
    with waiting(progress, "load engines"):
        detector = Detector(settings.detect)
    (reading,) = detector.read([text])
    detection = detector.decide(text, reading)
    fate = route(text, detection)
    masked, flagged = set(detection.strict), set(detection.conservative)
    marks = [
        {
            **span._asdict(),
            "value": text[span.start : span.end],
            "masks": span in masked,
            "makes_private": span in masked or span in flagged,
        }
        for span in sorted({*reading.spans, *masked, *flagged})
    ]
    return {
        "text": text,
        "side": "quarantined" if fate.failure else fate.side,
        "masked": fate.text,
        "failure": fate.failure,
        "reasons": list(fate.reasons),
        "marks": marks,
    }
