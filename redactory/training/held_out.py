"""Public text that no step learns from, and the loss on it after every epoch.

Formal guarantees: a measurement is a function of public text and of weights that noisy steps released, so it is
post-processing and may be shown (``docs/guarantees.md``, "Side channels", items 9 and 14). Separate random draws decide
which public rows are held out; the public split is equal in both worlds. Measuring consumes no draw of the training, so
all steps have the same bits with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.chat import ChatCodec
from redactory.training.data import IntArray, PublicText, open_public_text, read_classes, read_public_texts
from redactory.training.model import LanguageModel, TextClassifier
from redactory.training.settings import TRAINERS, TrainSettings

FORMAT, HELD_OUT_KEY = "redactory-held-out/1", "train.held_out"
_MAX_TEXTS = 2_000
"""Maximum number of measured texts, evenly spread, so that measuring does not delay an epoch."""
MIN_CHOSEN_TEXTS = 20
"""Fewest texts that the recipe holds out: fewer cost more training text than their loss is worth."""
_LOG_TEMPERATURES = (-3.0, 5.0)
"""Range of the logarithm of a classifier's temperature."""
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
        rows, all_rows = NO_ROWS, list[tuple[str, str | None]]()
        if isinstance(settings.held_out, Path):
            file_text = open_public_text(run, settings.held_out, HELD_OUT_KEY, settings.chat is not None)
            assert file_text is not None
            selected = list(file_text.read_rows())
        else:
            if TRAINERS[settings.trainer].noise_free_folders[:1] == ("public",):
                texts, is_classifier = read_public_texts(run, settings.example_format), settings.task == "classify"
                classes = read_classes(run, run.public) if is_classifier else repeat(None)
                all_rows = list(zip(texts, classes, strict=is_classifier))
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

        ``is_before_noise``: noisy steps follow in the same epoch, or no epoch began yet.
        """
        measurement = (
            self._measure_language_model() if isinstance(self.model, LanguageModel) else self._measure_classifier()
        )
        self.rows.append({"step": steps, **measurement, **({"before_noise": True} if is_before_noise else {})})
        self._write()
        return self.progress_text

    def calibrate_classifier(self) -> None:
        """Divide the logits by the temperature with the least loss on the held-out texts (Guo et al. 2017).

        Both are stored with the measurement of the saved weights. The true class counts as (n + 1)/(n + 2) of n texts,
        the rest is spread over all classes (after Platt 1999), so that a few correct predictions do not look certain.
        Nothing changes if that makes the loss larger, or if the logits are not those of the network's last layer.
        """
        if not isinstance(self.model, TextClassifier):
            return
        layer = self.model.network.find_output_layer()
        if layer is None:
            return
        scores, true_classes = self._score_classes()
        smoothing = 1.0 / (len(true_classes) + 2)
        targets = np.full(scores.shape, smoothing / scores.shape[1])
        targets[np.arange(len(true_classes)), true_classes] += 1.0 - smoothing

        def compute_loss(log_temperature: float) -> float:
            scaled = scores / math.exp(log_temperature)
            return float(-(targets * log_softmax(scaled, axis=1)).sum(1).mean())

        temperature = math.exp(minimize_scalar(compute_loss, bounds=_LOG_TEMPERATURES, method="bounded").x)
        weights = [parameter.detach().clone() for parameter in layer.parameters(recurse=False)]
        set_layer(layer, [values / temperature for values in weights])
        is_divided = np.allclose(self._score_classes()[0], log_softmax(scores / temperature, axis=1), atol=1e-3)
        row, loss = find_saved_row(self.rows), self._measure_classifier()["loss"]
        if not is_divided or loss is None or row["loss"] is None or loss > row["loss"]:
            set_layer(layer, weights)
            return
        calibrated = {**row, "temperature": temperature, "calibrated_loss": loss}
        self.rows = [calibrated if other is row else other for other in self.rows]
        self._write()

    def _write(self) -> None:
        unit = "nats a word" if isinstance(self.model, LanguageModel) else "nats a text"
        write_json(self.path, {"format": FORMAT, "unit": unit, "texts": len(self.held_out.texts), "rows": self.rows})

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
        scores, true_classes = self._score_classes()
        predicted = scores.argmax(1)
        return {
            "loss": _keep_finite(float(-scores[np.arange(len(true_classes)), true_classes].mean())),
            "error_rate": float((predicted != true_classes).mean()),
            # if all texts have one class, predicting it always is correct
            "most_said": None
            if len(set(true_classes.tolist())) < 2
            else float(np.bincount(predicted).max() / len(predicted)),
        }

    def _score_classes(self) -> tuple[NDArray[np.float64], IntArray]:
        """Return the log probabilities of the classes of the held-out texts, and their true classes by number."""
        assert isinstance(self.model, TextClassifier)
        names: list[str | None] = list(self.model.classes)
        true_classes = np.array([names.index(name) for name in self.held_out.classes], np.int64)
        return self.model.compute_class_log_probs(self.held_out.texts), true_classes


@torch.no_grad()
def set_layer(layer: nn.Module, values: Sequence[Tensor]) -> None:
    """Set the parameters of ``layer`` itself, in order."""
    for parameter, new in zip(layer.parameters(recurse=False), values, strict=True):
        parameter.copy_(new)


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
