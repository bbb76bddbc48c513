"""Public text that no step learns from, and the loss on it after every epoch.

Formal guarantees: what is measured is a function of public text and of weights that noisy steps released, so
it is post-processing and may be shown (``docs/guarantees.md``, "Side channels", items 9 and 14).  Which rows
of the public side are held out is decided by coins of their own: the side is the same in both worlds.
Measuring uses up no draw, so a training is the same, to the bit, whether its loss is looked at or not.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json, write_json
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.accounting.epsilons import finite_or_none
from redactory.training.chat import ChatCodec
from redactory.training.data import IntArray, PublicText, open_public_text, read_public_texts
from redactory.training.model import LanguageModel, TextClassifier
from redactory.training.settings import TRAINERS, TrainSettings

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FORMAT, HELD_OUT_KEY = "redactory-held-out/1", "train.held_out"
_MAX_TEXTS = 2_000
"""Of more texts, so many are measured, evenly spread: an epoch is not to wait for its measurement."""
NO_ROWS: IntArray = np.empty(0, np.int64)


@dataclass(frozen=True)
class HeldOutText:
    """Texts, with their classes where they have one; ``rows`` are those that training leaves out.

    They are rows of the run's public side for a trainer that learns from it, else of ``train.public_text``;
    of a file of its own nothing is left out.
    """

    texts: tuple[str, ...]
    classes: tuple[str | None, ...]
    rows: IntArray = field(default_factory=NO_ROWS.copy)

    @classmethod
    def from_settings(
        cls, run: RunFolder, settings: TrainSettings, stream: RandomStream, public_text: PublicText | None
    ) -> HeldOutText | None:
        """What ``train.held_out`` asks for, None without; ``ConfigurationError`` where that is no text."""
        if settings.held_out is None:
            return None
        rows = NO_ROWS
        if isinstance(settings.held_out, Path):
            file_text = open_public_text(run, settings.held_out, HELD_OUT_KEY, settings.chat is not None)
            assert file_text is not None
            selected = list(file_text.read_rows())
        else:
            if TRAINERS[settings.trainer].noise_free_folders[:1] == ("public",):
                every: list[tuple[str, str | None]] = [
                    (candidate, None) for candidate in read_public_texts(run, settings.example_format)
                ]
            else:
                every = [] if public_text is None else list(public_text.read_rows())
            rows = np.flatnonzero(stream.uniform("held out", 0, len(every)) < settings.held_out)
            selected = [every[row] for row in rows]
        selected = [
            candidate
            for candidate in selected
            if candidate[0].split() and (not settings.classes or candidate[1] in settings.classes)
        ]
        if not selected:
            raise ConfigurationError(f"{HELD_OUT_KEY}: no text is held out; set a larger share, or another file")
        selected = selected[:: math.ceil(len(selected) / _MAX_TEXTS)]
        return cls(tuple(text for text, _ in selected), tuple(name for _, name in selected), rows)


@dataclass
class HeldOutCurve:
    """The loss of ``model`` on ``held_out`` by the number of steps made; kept in ``path`` as JSON.

    Of a language model nats a word; of a classifier nats a text, its share of errors, and the share of texts
    that it says its commonest class for.  ``events``, where given, get the same, and what ``extra_scalars`` says.
    """

    path: Path
    model: LanguageModel | TextClassifier
    held_out: HeldOutText
    events: SummaryWriter | None = None
    extra_scalars: Callable[[], Mapping[str, float]] = dict
    rows: list[dict[str, Any]] = field(default_factory=list)

    def resume(self, steps: int) -> str:
        """Take up what was measured in the first ``steps`` steps, and measure where that is nothing."""
        saved_rows = read_curve(self.path)
        self.rows = [row for row in saved_rows if row["step"] <= steps]
        return self.progress_text if self.rows else self.measure(steps)

    def measure(self, steps: int) -> str:
        """Measure after ``steps`` steps, and keep it; what a progress line says of it."""
        measured = (
            self._measure_language_model() if isinstance(self.model, LanguageModel) else self._measure_classifier()
        )
        self.rows.append({"step": steps, **measured})
        unit = "nats a word" if isinstance(self.model, LanguageModel) else "nats a text"
        write_json(self.path, {"format": FORMAT, "unit": unit, "texts": len(self.held_out.texts), "rows": self.rows})
        if self.events is not None:
            held_out = {f"held out/{name}": value for name, value in measured.items() if value is not None}
            for name, value in {**held_out, **self.extra_scalars()}.items():
                # no clock: how long an epoch took would tell how many points were drawn
                self.events.add_scalar(name, value, steps, walltime=float(steps))
            self.events.flush()
        return self.progress_text

    @property
    def progress_text(self) -> str:
        """The last row, as a progress line has it."""
        loss = self.rows[-1]["loss"]
        return ", held-out loss " + ("not finite" if loss is None else f"{loss:.3f}")

    def _measure_language_model(self) -> dict[str, Any]:
        assert isinstance(self.model, LanguageModel)
        texts, codec = self.held_out.texts, self.model.tokenizer
        scores = self.model.token_log_probs(texts)
        words = [len(text.split()) for text in texts]
        if isinstance(codec, ChatCodec):
            marks = (np.array([*codec.encode_with_loss_mask(text)[1], False], bool) for text in texts)
            scores = [values[loss_mask] for values, loss_mask in zip(scores, marks, strict=True)]
            words = list(map(codec.count_loss_words, texts))
        return {"loss": finite_or_none(-sum(float(values.sum()) for values in scores) / max(1, sum(words)))}

    def _measure_classifier(self) -> dict[str, Any]:
        assert isinstance(self.model, TextClassifier)
        scores = self.model.log_probs(self.held_out.texts)
        names: list[str | None] = list(self.model.classes)
        true, predicted = np.array([names.index(name) for name in self.held_out.classes]), scores.argmax(1)
        return {
            "loss": finite_or_none(float(-scores[np.arange(len(true)), true].mean())),
            "error_rate": float((predicted != true).mean()),
            # where every text has one class, to say it for all is right
            "most_said": None if len(set(true.tolist())) < 2 else float(np.bincount(predicted).max() / len(predicted)),
        }


def make_event_writer(folder: Path | None) -> SummaryWriter | None:
    """Write TensorBoard event files into ``folder``; ``ConfigurationError`` without the package tensorboard.

    Formal guarantees: only what was released or is a constant is written: the loss on held-out public text,
    step sizes, the noise.  Nothing that is computed from private text before noise (a norm, a batch's size).
    """
    if folder is None:
        return None
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigurationError(
            "train.tensorboard needs tensorboard: pip install 'redactory[plots]', or remove the key"
        )
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def read_curve(path: Path) -> list[dict[str, Any]]:
    """The rows of a curve that was kept; none where there is no file."""
    rows: list[dict[str, Any]] = read_json(path)["rows"] if path.exists() else []
    return rows
