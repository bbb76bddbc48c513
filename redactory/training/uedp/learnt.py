"""Points as a training with units reads them: a language model's rows, or rows with a class each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import InputError
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.training.classes import class_numbers
from redactory.training.points import NO_CLASS, EncodedPoints, LabelledPoints
from redactory.training.publictext import PublicText
from redactory.training.tokenizer import TextCodec
from redactory.training.uedp.bounded import bounded
from redactory.training.uedp.entities import EntityNames
from redactory.training.uedp.lists import entity_names, read_units
from redactory.training.uedp.originals import Originals
from redactory.training.units.settings import UNITS_PROTECTED

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


@dataclass(frozen=True)
class Learnt:
    """``points``, and which of them contribute nothing: those without a class, and dropped ones.

    Formal guarantees: a point's silence follows from its own text, whole, and its own class: a null point
    stays null, and silence moves no other point.
    """

    points: EncodedPoints | LabelledPoints
    silent: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that contribute."""
        rows = np.arange(len(self.points), dtype=np.int64)
        return rows if self.silent is None else rows[~self.silent]


def originals_of(run: RunFolder, settings: TrainSettings) -> Originals:
    """What of the vault the trainer learns from; contribution bounding is done here.

    Copies that are merged (``units.copies``) are left out of every trainer, of a baseline too.
    """
    merged = settings.units.copies == "merge"
    if settings.trainer not in UNITS_PROTECTED and not merged:
        return Originals(run, masked=_masked(settings))
    incidence = read_units(run, settings.units)
    if settings.trainer == "uedp-bounded":
        incidence = incidence.take(bounded(incidence, settings).kept)
    return Originals(run, incidence.points, _masked(settings), incidence)


def _masked(settings: TrainSettings) -> EntityNames | None:
    return entity_names(settings.units) if settings.trainer == "de-identification" else None


def learnt_of(originals: Originals, settings: TrainSettings, tokenizer: TextCodec) -> Learnt:
    """``originals`` as the task reads them."""
    return learnt(originals.texts(), settings, tokenizer, lambda: originals.classes(settings.classes))


def pretraining_of(text: PublicText, settings: TrainSettings, tokenizer: TextCodec) -> Learnt:
    """The public text as the task reads it; ``InputError`` where no row of it can be learnt from."""

    def classes() -> NDArray[np.int64]:
        return class_numbers((label for _, label in text.rows()), settings.classes)

    found = learnt(text.texts(), settings, tokenizer, classes)
    if not len(found.rows):
        raise InputError(f"train.public_text: {text.path.name} has no row for task {settings.task}")
    return found


def learnt(
    texts: Iterable[str],
    settings: TrainSettings,
    tokenizer: TextCodec,
    classes: Callable[[], NDArray[np.int64]],
) -> Learnt:
    """``texts`` as the task reads them, each cut to ``max_tokens``; ``classes`` is asked for by a classifier.

    ``crt-drop`` silences a text with a mask.  The whole text is asked, before it is encoded and cut: where
    the mask falls behind the cut, the tokens before it can differ between the two worlds all the same
    (``docs/guarantees.md``, "Dropping masked points").
    """
    masked: list[bool] = []

    def noted() -> Iterator[str]:
        for text in texts:
            masked.append(MASK in text)
            yield text

    points = EncodedPoints.from_texts(noted(), tokenizer, settings.max_tokens)
    if settings.task == "classify":
        numbers = classes()
        return Learnt(LabelledPoints(points, numbers), numbers == NO_CLASS)
    return Learnt(points, np.array(masked, bool) if settings.trainer == "crt-drop" else None)
