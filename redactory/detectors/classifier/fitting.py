"""Training a transformer: a token classifier on labelled texts, from a local Hugging Face folder.

CRT, appendix A.4, takes an NER model, makes its last layer anew and puts a threshold on its scores; this
is the same with any encoder that is at hand, and with scores that are calibrated afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from redactory.detectors.classifier.model import loaded, window_of, without_progress_bar
from redactory.detectors.classifier.rows import ReadRow, RowReader, Window, batches_of, padded
from redactory.detectors.settings import FitSettings
from redactory.detectors.tagger.calibration import UNKNOWN, Reliability, temperature_of
from redactory.detectors.tagger.fitting import PLAIN, LabelledText, recase, slant
from redactory.detectors.torch_reading import closed_reading, silence
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, silent

if TYPE_CHECKING:
    import torch

BASE_DECIDES = frozenset({"language", "width", "depth", "table_rows", "dropout"})
_HEADS = ("classifier", "score")
"""What the model library calls the last layer of its token classifiers."""


class ClassifierSettings(FitSettings):
    """How a model is trained that can read already; what it is built of, the base folder says."""

    epochs: int = Field(3, ge=1, description="Passes over the rows.")
    batch_words: int = Field(1_000, ge=1, description="Word pieces in a step at most, padding included.")
    learning_rate: float = Field(5e-5, gt=0, description="Highest step size; it warms up and falls to zero.")

    @model_validator(mode="after")
    def _the_base_decides_the_rest(self) -> Self:
        idle = sorted(BASE_DECIDES & self.model_fields_set)
        if idle:
            raise ValueError(f"the base folder decides {', '.join(idle)}; leave it out")
        return self


@dataclass(frozen=True)
class Classifier:
    """A model for token classification, and the reader of rows that goes with it."""

    model: Any
    reader: RowReader

    @property
    def head(self) -> torch.nn.Linear:
        """The last layer; ``ConfigurationError`` where the model has no linear one."""
        import torch

        for head in (getattr(self.model, name, None) for name in _HEADS):
            if isinstance(head, torch.nn.Linear) and head.out_features == len(self.reader.labels):
                return head
        kind = type(self.model).__name__
        raise ConfigurationError(f"base: a {kind} has no linear last layer that can be made anew")

    def to_disk(self, folder: Path) -> None:
        """Write what ``detect.transformers.folder`` takes; no path and no word of the rows is in it."""
        # some versions of the library write where a model was loaded from
        self.model.config.name_or_path = ""
        self.reader.tokenizer.backend_tokenizer.no_truncation()
        with silence(), without_progress_bar():
            self.model.save_pretrained(folder)
            self.reader.tokenizer.save_pretrained(folder)


def train_classifier(
    base: Path, rows: Sequence[LabelledText], settings: FitSettings, progress: Progress = silent
) -> Classifier:
    """The model in the folder ``base`` with a new last layer for "O" and the labels of ``rows``.

    Every piece of a word is trained on the word's label, since the engine takes a word's most suspicious
    piece: one that is left out of the loss would speak without having learned to.  Texts over the
    model's length are cut as the engine cuts them.  It trains on the CPU, where the same rows, seed and
    versions give the same bits.  ``ConfigurationError`` where ``base`` holds no encoder with a fast
    tokenizer, or where the training diverges.
    """
    import torch

    draw = random.Random(settings.seed)
    with _reproducible(settings.seed):
        classifier = _untrained(base, rows)
        model, reader = classifier.model.train(), classifier.reader
        optimizer = _optimizer(model, settings.learning_rate)
        order = list(range(len(rows)))
        for epoch in range(settings.epochs):
            draw.shuffle(order)
            recased = (recase(rows[i], settings, draw) for i in order)
            windows = [w for row in recased for w in reader.read(row).windows if max(w.truth) != UNKNOWN]
            batches = batches_of(windows, settings.batch_words, draw)
            for number, batch in enumerate(batches):
                share = (epoch + number / len(batches)) / settings.epochs
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * slant(share)
                _step(model, optimizer, batch)
            progress("fit", epoch + 1, settings.epochs, "epochs")
    if not all(torch.isfinite(weights).all() for weights in model.parameters()):
        raise ConfigurationError("learning_rate: the training diverged; take a smaller one")
    model.eval()
    return classifier


def calibrate_classifier(classifier: Classifier, rows: Sequence[LabelledText]) -> Reliability:
    """Set the temperature that makes ``rows`` most likely (Guo et al. 2017), in the weights themselves.

    The last layer is linear, so that dividing it by the temperature divides the logits.  A word counts
    once, with its most suspicious piece, as the engine reads it.
    """
    import torch

    logits: list[NDArray[np.float64]] = []
    truth: list[int] = []
    with closed_reading():
        for row in map(classifier.reader.read, rows):
            worst = _most_suspicious(classifier.model, row)
            logits += worst.values()
            truth += [row.truth[word] for word in worst]
    if not logits:
        raise InputError("the rows kept for calibration have no word that the base's tokenizer sees")
    plain = classifier.reader.labels.index(PLAIN)
    temperature, reliability = temperature_of(np.stack(logits), np.array(truth), plain)
    with torch.no_grad():
        for weights in classifier.head.parameters():
            weights.div_(temperature)
    return reliability


def _most_suspicious(model: Any, row: ReadRow) -> dict[int, NDArray[np.float64]]:
    """For each word the logits of the piece with the least P(plain), over all windows; "O" is column 0."""
    import torch

    worst: dict[int, tuple[float, NDArray[np.float64]]] = {}
    for window in row.windows:
        inputs = {name: torch.tensor([ids]) for name, ids in window.inputs.items()}
        logits = model(**inputs).logits[0].double()
        plain = torch.softmax(logits, dim=-1)[:, 0].tolist()
        for word, probability, scores in zip(window.words, plain, logits.numpy(), strict=True):
            if word >= 0 and (word not in worst or probability < worst[word][0]):
                worst[word] = probability, scores
    return {word: scores for word, (_, scores) in worst.items()}


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: Sequence[Window]) -> None:
    import torch

    inputs, truth = padded(batch, model.config.pad_token_id or 0)
    logits = model(**inputs).logits
    loss: Any = torch.nn.functional.cross_entropy(logits.transpose(1, 2), truth, ignore_index=UNKNOWN)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _optimizer(model: Any, learning_rate: float) -> torch.optim.Optimizer:
    import torch

    decayed = [weights for weights in model.parameters() if weights.ndim > 1]
    others = [weights for weights in model.parameters() if weights.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate)


@contextlib.contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """One thread, deterministic algorithms and torch's own randomness from ``seed``; put back after."""
    import torch

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]), silence():
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])


def _untrained(base: Path, rows: Sequence[LabelledText]) -> Classifier:
    import torch

    labels = (PLAIN, *sorted({label for row in rows for _, _, label in row.spans}))
    if PLAIN in labels[1:]:
        raise InputError(f"a span is labelled '{PLAIN}', which is the label of what no span holds")
    tokenizer, model = _loaded(base, labels)
    classifier = Classifier(
        model.float(), RowReader(tokenizer, labels, window_of(tokenizer, model.config, 0))
    )
    head = classifier.head
    torch.nn.init.normal_(head.weight, std=getattr(model.config, "initializer_range", 0.02))
    if head.bias is not None:
        torch.nn.init.zeros_(head.bias)
    return classifier


def _loaded(base: Path, labels: Sequence[str]) -> tuple[Any, Any]:
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    tokenizer, model, info = loaded(base, "base", ignore_mismatched_sizes=True, **names)
    drawn = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    lacking = sorted(key for key in drawn if key.startswith(f"{model.base_model_prefix}."))
    if lacking:
        raise ConfigurationError(
            f"base: the weights lack parts of the encoder, which would be filled at random: {lacking[0]}, …"
        )
    return tokenizer, model
