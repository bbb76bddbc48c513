"""Public text that no step learns from, and the loss on it after every epoch.

Formal guarantees: a measurement is a function of public text and of weights that noisy steps released, so it is
post-processing and may be shown (``docs/guarantees.md``, "Side channels", items 9 and 14). Separate random draws decide
which public rows are held out; the public split is equal in both worlds. Measuring consumes no draw of the training, so
the training has the same bits with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.chat import ChatCodec
from redactory.training.data import IntArray, PublicText, open_public_text, read_public_texts
from redactory.training.model import LanguageModel, TextClassifier
from redactory.training.settings import TRAINERS, TrainSettings

FORMAT, HELD_OUT_KEY = "redactory-held-out/1", "train.held_out"
_MAX_TEXTS = 2_000
"""Maximum number of measured texts, evenly spread, so that measuring does not delay an epoch."""
MIN_CHOSEN_TEXTS = 20
"""Fewest texts that the recipe holds out: fewer cost more training text than their loss is worth."""
NO_ROWS: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True)
class HeldOutText:
    """Held-out texts with their classes, if any; training omits the ``rows`` they come from.

    The rows are of the run's public split for a trainer that learns from it, otherwise of ``train.public_text``; a
    separate file omits none.
    """

    texts: tuple[str, ...]
    classes: tuple[str | None, ...]
    rows: IntArray = field(default_factory=NO_ROWS.copy)

    @classmethod
    def from_settings(
        cls, run: RunFolder, settings: TrainSettings, stream: RandomStream, public_text: PublicText | None
    ) -> HeldOutText | None:
        """Select the texts of ``train.held_out``; None if unset, or chosen by the recipe and too few to measure with.

        ``ConfigurationError`` if there are none.
        """
        if settings.held_out is None:
            return None
        rows = NO_ROWS
        if isinstance(settings.held_out, Path):
            file_text = open_public_text(run, settings.held_out, HELD_OUT_KEY, settings.chat is not None)
            assert file_text is not None
            selected = list(file_text.read_rows())
        else:
            if TRAINERS[settings.trainer].noise_free_folders[:1] == ("public",):
                all_rows: list[tuple[str, str | None]] = [
                    (candidate, None) for candidate in read_public_texts(run, settings.example_format)
                ]
            else:
                all_rows = [] if public_text is None else list(public_text.read_rows())
            rows = np.flatnonzero(stream.uniform("held out", 0, len(all_rows)) < settings.held_out)
            selected = [all_rows[row] for row in rows]
        selected = [
            candidate
            for candidate in selected
            if candidate[0].split() and (not settings.classes or candidate[1] in settings.classes)
        ]
        if len(selected) < MIN_CHOSEN_TEXTS and settings.is_chosen("held_out"):
            return None
        if not selected:
            raise ConfigurationError(f"{HELD_OUT_KEY}: no text is held out; set a larger share, or another file")
        selected = selected[:: math.ceil(len(selected) / _MAX_TEXTS)]
        return cls(tuple(text for text, _ in selected), tuple(name for _, name in selected), rows)


@dataclass
class HeldOutCurve:
    """The loss of ``model`` on ``held_out`` by the number of finished steps; stored in ``path`` as JSON.

    For a language model nats per word; for a classifier nats per text, the error rate, and the share of texts for which
    it predicts its most frequent class.
    """

    path: Path
    model: LanguageModel | TextClassifier
    held_out: HeldOutText
    rows: list[dict[str, Any]] = field(default_factory=list)

    def load_or_measure(self, steps: int) -> str:
        """Load the measurements of the first ``steps`` steps; measure now if there are none."""
        saved_rows = read_curve_rows(self.path)
        self.rows = [row for row in saved_rows if row["step"] <= steps]
        return self.progress_text if self.rows else self.measure_loss(steps)

    def measure_loss(self, steps: int, is_before_noise: bool = False) -> str:
        """Measure after ``steps`` steps, store the result, and return it for the progress line.

        ``is_before_noise``: between an epoch's noise-free steps and its noisy ones.
        """
        measurement = (
            self._measure_language_model() if isinstance(self.model, LanguageModel) else self._measure_classifier()
        )
        self.rows.append({"step": steps, **measurement, **({"before_noise": True} if is_before_noise else {})})
        unit = "nats a word" if isinstance(self.model, LanguageModel) else "nats a text"
        write_json(self.path, {"format": FORMAT, "unit": unit, "texts": len(self.held_out.texts), "rows": self.rows})
        return self.progress_text

    @property
    def progress_text(self) -> str:
        """The last measurement as text for the progress line."""
        loss = self.rows[-1]["loss"]
        return ", held-out loss " + ("not finite" if loss is None else f"{loss:.3f}")

    def _measure_language_model(self) -> dict[str, Any]:
        assert isinstance(self.model, LanguageModel)
        texts, codec = self.held_out.texts, self.model.tokenizer
        scores = self.model.compute_token_log_probs(texts)
        words = [len(text.split()) for text in texts]
        if isinstance(codec, ChatCodec):
            loss_masks = (np.array([*codec.encode_with_loss_mask(text)[1], False], bool) for text in texts)
            scores = [values[loss_mask] for values, loss_mask in zip(scores, loss_masks, strict=True)]
            words = [sum(len(turn.split()) for turn in codec.extract_turns_in_loss(text)) for text in texts]
        return {"loss": _keep_finite(-sum(float(values.sum()) for values in scores) / max(1, sum(words)))}

    def _measure_classifier(self) -> dict[str, Any]:
        assert isinstance(self.model, TextClassifier)
        scores = self.model.compute_class_log_probs(self.held_out.texts)
        names: list[str | None] = list(self.model.classes)
        true_classes, predicted = np.array([names.index(name) for name in self.held_out.classes]), scores.argmax(1)
        return {
            "loss": _keep_finite(float(-scores[np.arange(len(true_classes)), true_classes].mean())),
            "error_rate": float((predicted != true_classes).mean()),
            # if all texts have one class, predicting it always is correct
            "most_said": None
            if len(set(true_classes.tolist())) < 2
            else float(np.bincount(predicted).max() / len(predicted)),
        }


def read_curve_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a stored curve; empty without a file."""
    rows: list[dict[str, Any]] = read_json(path)["rows"] if path.exists() else []
    return rows


def find_saved_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Find the measurement of the weights that are saved: the least loss at the end of an epoch."""
    ends = [row for row in rows[1:] if not row.get("before_noise")] or rows
    return min(ends, key=lambda row: math.inf if row["loss"] is None else row["loss"])


def _keep_finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
