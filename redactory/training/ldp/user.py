"""The user's side: sentences go in, messages come out, and nothing else leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.errors import GuaranteeError, InputError
from redactory.foundation.stream import RandomStream
from redactory.training.accounting.spending import Spendings
from redactory.training.ldp.layer import DPLayer
from redactory.training.ldp.message import Message, Purpose
from redactory.training.ldp.sends import Sends, drawn_sends, steps_of
from redactory.training.ldp.settings import LdpSettings

_BLOCK = 256
_SLOT_BYTES = 16

Texts = Sequence[str] | Sequence[tuple[str, str]]
"""Sentences, or with ``pairs`` pairs of them."""
_Rows = Callable[[NDArray[np.int64]], Tensor]


class Encoder(Protocol):
    """What the user's side asks of :class:`redactory.training.ldp.encoder.SentenceEncoder`."""

    @property
    def digest(self) -> str:
        """sha256 of the weights and the tokenizer as they were read."""

    def current_digest(self) -> str:
        """The same, of what they are now."""

    @property
    def spendings(self) -> Spendings:
        """What the encoder's own training spent of its text; () for a public one."""

    def represent(self, texts: Any, kind: Any) -> Tensor:
        """[n, d], [n, L, e], or [n, 2, d] for pairs."""


class UserBudget(Protocol):
    """Where a user books what she sends."""

    def book(self, purpose: Purpose, settings: LdpSettings, sentences: int) -> None:
        """Book all messages of ``sentences`` slots for good, or raise ``BudgetExceeded``."""


class UserSide:
    """One user, with her ``encoder``, the service's ``settings`` and, if given, her ``budget``.

    Noise, coins, order and slots are drawn afresh from the operating system in each call, unless ``stream``
    is a seeded one or ``settings.seed`` is given: test mode, which promises nothing.

    Formal guarantees: what :meth:`training_messages` and :meth:`query_messages` give is, for each sentence or
    pair, the composition of ``participation`` over Gaussian messages of sensitivity 2C, for pairs
    2√2·C, at noise zC; messages of one sentence depend on no other sentence, since the encoder is the
    same before every send (its digest is compared, ``GuaranteeError``).  The budget is booked before the
    first message; a call that is broken off has spent all the same (``docs/guarantees.md``, "Local
    differential privacy").  ``GuaranteeError`` for a budget with an encoder that spent on private text: how
    much of it was this user's is not on record; and for one in test mode.
    """

    def __init__(
        self,
        encoder: Encoder,
        settings: LdpSettings,
        stream: RandomStream | None = None,
        budget: UserBudget | None = None,
    ) -> None:
        if budget is not None and encoder.spendings:
            raise GuaranteeError(
                "budget: this encoder was trained on private text, and how much of a user's is not on "
                "record: take a public encoder"
            )
        if stream is None and settings.seed is not None:
            stream = RandomStream.from_seed(settings.seed)
        self._seeded = stream if stream is not None and stream.seeded else None
        if budget is not None and self._seeded is not None:
            raise GuaranteeError(
                "budget: in test mode (seed) the noise can be computed again, and no epsilon holds that "
                "could be booked: leave out the seed, or the budget"
            )
        noise = settings.noise(encoder.spendings)
        self._settings = settings.model_copy(update={"noise_multiplier": noise})
        self._encoder, self._budget, self._digest = encoder, budget, encoder.digest
        self._layer = DPLayer(settings.clip_norm, noise, self._seeded)
        self._calls = 0
        self._asked: list[str] = []

    @property
    def seeded(self) -> bool:
        """Whether every draw can be computed again from a seed: nothing is promised then."""
        return self._seeded is not None

    def training_messages(self, texts: Texts, labels: Sequence[int]) -> Iterator[Message]:
        """All messages of ``texts`` with their classes' numbers, by step, in an order that is drawn.

        ``InputError`` names the first row whose label is no class's number; nothing was booked then.
        """
        if len(texts) != len(labels):
            raise InputError(f"labels: {len(texts)} texts have {len(labels)} labels; give one each")
        for row, label in enumerate(labels):
            if not 0 <= label < len(self._settings.classes):
                raise InputError(f"row {row + 1}: label is no number of a class: settings.classes has all")
        yield from self._messages("train", texts, [int(label) for label in labels])

    def query_messages(self, texts: Texts) -> Iterator[Message]:
        """The same for questions: without labels, each text in a fresh slot."""
        yield from self._messages("query", texts, [None] * len(texts))

    def read(self, answers: Iterable[dict[str, Any]]) -> list[dict[str, Any] | None]:
        """``answers`` in the order of the texts last asked; None for a text that no coin sent."""
        by_slot = {answer["slot"]: answer for answer in answers}
        return [by_slot.get(slot) for slot in self._asked]

    def _messages(self, purpose: Purpose, texts: Texts, labels: Sequence[int | None]) -> Iterator[Message]:
        _require_text(texts)
        call, self._calls = self._calls, self._calls + 1
        stream = RandomStream.from_entropy() if self._seeded is None else self._seeded
        slots = _slots(stream, len(texts), call)
        if purpose == "query":
            self._asked = slots
        if not slots:
            return
        # the first is made before the booking: a text that cannot be encoded costs nothing
        made = self._made(purpose, texts, labels, slots, stream, call)
        first = next(made, None)
        # and where no coin sent any, that shows, too
        if self._budget is not None:
            self._budget.book(purpose, self._settings, len(slots))
        if first is not None:
            yield first
            yield from made

    def _made(
        self,
        purpose: Purpose,
        texts: Texts,
        labels: Sequence[int | None],
        slots: Sequence[str],
        stream: RandomStream,
        call: int,
    ) -> Iterator[Message]:
        rows = self._rows(texts)
        participation = self._settings.participation
        for step in range(steps_of(participation)):
            for sends in _blocks(drawn_sends(participation, stream, step, len(slots), call)):
                noisy = self._noisy(rows(sends.places), sends.real)
                for place, values in zip(sends.places, noisy, strict=True):
                    yield Message(purpose, slots[place], step, labels[place], values, self._digest)

    def _rows(self, texts: Texts) -> _Rows:
        """Representations by place: one at a time where each is needed once, else all of them, once."""
        if steps_of(self._settings.participation) == 1:
            return lambda places: self._represented([texts[place] for place in places])
        blocks = [texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK)]
        held = torch.cat([self._represented(block) for block in blocks])
        return lambda places: held[torch.from_numpy(places)]

    def _represented(self, texts: Any) -> Tensor:
        self._require_same_encoder()
        return self._encoder.represent(texts, self._settings.represent).detach().float()

    def _noisy(self, rows: Tensor, real: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The DP layer's output, of the zero vector where a row is not ``real``; one path for both."""
        kept = torch.from_numpy(real).view(-1, *(1,) * (rows.dim() - 1)).to(rows.device)
        rows = torch.where(kept, rows, 0.0)
        examples = rows.flatten(0, 1) if self._settings.pairs else rows
        noisy: NDArray[np.float32] = self._layer(examples).view(rows.shape).cpu().numpy()
        return noisy

    def _require_same_encoder(self) -> None:
        if self._encoder.current_digest() != self._digest:
            raise GuaranteeError(
                "the encoder changed: one that learns from what it encodes lets every later message tell of "
                "earlier sentences; keep it frozen, or train it with dpsgd and begin anew"
            )


def _require_text(texts: Texts) -> None:
    """``InputError`` names the first row that cannot be encoded: where messages end must tell of none."""
    for number, row in enumerate(texts, 1):
        try:
            "".join(row).encode()
        except UnicodeEncodeError:
            raise InputError(f"row {number}: half of a surrogate pair is no text; nothing was sent") from None


def _slots(stream: RandomStream, count: int, call: int) -> list[str]:
    octets = stream.octets("slots", 0, _SLOT_BYTES * count, call).hex()
    return [octets[start : start + 2 * _SLOT_BYTES] for start in range(0, len(octets), 2 * _SLOT_BYTES)]


def _blocks(sends: Sends) -> Iterator[Sends]:
    for start in range(0, len(sends.places), _BLOCK):
        block = slice(start, start + _BLOCK)
        yield Sends(sends.places[block], sends.real[block])
