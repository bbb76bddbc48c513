"""The user: turns sentences into noisy messages, and sends nothing else."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import make_private_folder, sync_to_disk, write_bytes
from redactory.foundation.keys import DigestKey, unicode_variants
from redactory.foundation.stream import ROOT_BYTES, RandomStream
from redactory.training.accounting import Spending
from redactory.training.guarantee.budget import Budget
from redactory.training.ldp.accounting import HiddenSampling, draw_step_sends, make_message_spending
from redactory.training.ldp.server import Message
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanisms.lattice import add_lattice_noise
from redactory.training.mechanisms.mechanism import PoissonGaussian, require_valid_clip_norm
from redactory.training.settings import BudgetSettings

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder

_BLOCK_SIZE = 256
_SLOT_DIGITS = 32
_MIN_SHARE = 1e-6
"""About half a last digit of an answer's shares, so that a share rounded to 0 is no veto."""

Purpose = Literal["train", "query"]
TextsOrPairs = Sequence[str] | Sequence[tuple[str, str]]
"""Sentences, or pairs of them if ``pairs`` is set."""


class DPLayer(nn.Module):
    """CL(x; C) + N(0, (zC)²I), LDP-NLP equations (3) and (4), with z the ``noise_multiplier``; no parameters.

    An example is all of x beyond its first dimension; a pair of sentences counts as two. The result has no gradient,
    and ``eval`` does not disable the noise. Without a seeded ``stream`` every call draws a root from the operating
    system, so a copied layer, a forked process and a restored one repeat no noise. A seeded stream is test mode without
    a guarantee: each example takes its next step number.

    Formal guarantees: an example's output is a function of that example and its own noise. Exchanging x for any x′
    moves it by at most 2C before noise (attained by antipodal vectors), so one output is 2/z-GDP. The noise is the
    exactly rounded one of :mod:`redactory.training.mechanisms.lattice`, wider by its margin; float32
    rounding afterwards is post-processing.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float, stream: RandomStream | None = None) -> None:
        super().__init__()
        require_valid_clip_norm(clip_norm, "ldp.clip_norm")
        if not (math.isfinite(noise_multiplier) and noise_multiplier > 0.0):
            raise ConfigurationError("ldp.noise_multiplier: must be finite and above 0")
        self.clip_norm, self.noise_multiplier = float(clip_norm), float(noise_multiplier)
        self._stream = stream if stream is not None and stream.seeded else None
        self._step = 0

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return every example of ``x`` [B, ...] clipped and noised: float32, of the same shape."""
        return self.add_noise(self.clip(x))

    @torch.no_grad()
    def clip(self, x: Tensor) -> Tensor:
        """Return x · min(1, C/‖x‖₂) of each example of ``x`` [B, ...]: float64; zero if it is not finite."""
        flat = _flatten_examples(x)
        finite = flat.isfinite().all(1, keepdim=True)
        flat = torch.where(finite, flat, 0.0)
        # divide by the largest entry, so that no square overflows or underflows
        peak = flat.abs().amax(1, keepdim=True)
        unit = flat / torch.where(peak > 0.0, peak, 1.0)
        norms = unit.norm(dim=1, keepdim=True)
        is_short = norms * peak <= self.clip_norm
        return torch.where(is_short, flat, unit * (self.clip_norm / norms.clamp(min=1.0))).view(x.shape)

    @torch.no_grad()
    def add_noise(self, x: Tensor) -> Tensor:
        """Return ``x`` [B, ...], whose examples have norm at most C, with noise: float32, the same shape.

        ``ConfigurationError`` if an example is longer, because its noise would not hide it.
        """
        flat = _flatten_examples(x)
        if not bool((flat.norm(dim=1) <= self.clip_norm * (1.0 + 2.0**-30)).all()):
            raise ConfigurationError("ldp.clip_norm: an example exceeds it; clip before noise")
        mechanism = PoissonGaussian(1.0, self.noise_multiplier, self.clip_norm, 1.0, "lattice")
        stream, first = self._stream or RandomStream.from_entropy(), self._step
        self._step += len(flat) if self._stream is not None else 0
        noisy = np.empty(tuple(flat.shape), np.float32)
        for index, row in enumerate(flat.cpu().numpy()):
            noisy[index] = add_lattice_noise(row, mechanism, stream, first + index)
        return torch.from_numpy(noisy).view(x.shape).to(x.device)


def _flatten_examples(x: Tensor) -> Tensor:
    if x.dim() < 2:
        raise ConfigurationError("the DP layer expects examples along the first axis: [B, ...]")
    return x.detach().to(torch.float64).reshape(len(x), math.prod(x.shape[1:]))


class LdpClient:
    """One user, with their ``encoder``, the service's ``settings`` and optionally their ``budget``.

    Each call draws noise, coins, order and slots from the operating system. With ``settings.seed`` it is in test mode,
    without a guarantee.

    Formal guarantees: for each sentence or pair, :meth:`make_training_messages` and :meth:`make_query_messages` return
    the composition of ``participation`` over Gaussian messages of sensitivity 2C, for pairs 2√2·C, at noise zC.
    Messages of one sentence depend on no other sentence, because the encoder is the same before every call (its digest
    is compared, ``GuaranteeError``). The budget is booked before the first message; an interrupted call has still spent
    it (``docs/guarantees.md``, "Local differential privacy"). ``GuaranteeError`` for a budget with an encoder that
    spent on private text, because this user's part of that is not recorded, and for a budget in test mode.
    """

    def __init__(self, encoder: SentenceEncoder, settings: LdpSettings, budget: UserBudget | None = None) -> None:
        if budget is not None and encoder.spendings:
            raise GuaranteeError(
                "budget: this encoder was trained on private text, and each user's share of it is not recorded: "
                "use a public encoder; without a budget the card composes it for one sentence"
            )
        if budget is not None and settings.seed is not None:
            raise GuaranteeError(
                "budget: in test mode (seed) the noise can be recomputed, so no epsilon can be recorded: "
                "remove the seed, or the budget"
            )
        resolved = settings.resolve_all_noise(encoder.spendings)
        self._settings: dict[Purpose, LdpSettings] = {"train": resolved, "query": resolved.make_query_settings()}
        self._encoder, self._budget, self._digest = encoder, budget, encoder.digest
        self._seeded_stream = seeded = None if settings.seed is None else RandomStream.from_seed(settings.seed)
        # even in test mode no noise is drawn twice
        self._layers = {
            purpose: DPLayer(
                settings.clip_norm,
                chosen.resolve_noise(),
                seeded and RandomStream(seeded.random_bytes(purpose, 0, ROOT_BYTES), True),
            )
            for purpose, chosen in self._settings.items()
        }
        self._calls = 0
        self._query_slots: list[str] = []
        self._query_coins = np.zeros((0, 0), bool)

    def make_training_messages(self, texts: TextsOrPairs, labels: Sequence[int]) -> Iterator[Message]:
        """Yield all messages of ``texts`` with their class numbers, by step, in a drawn order.

        ``InputError`` names the first row whose label is not a class number; then nothing was booked.
        """
        if len(texts) != len(labels):
            raise InputError(f"labels: got {len(labels)} labels for {len(texts)} texts; give one each")
        for row, label in enumerate(labels):
            if not 0 <= label < len(self._settings["train"].classes):
                raise InputError(f"row {row + 1}: label is not the number of a class in settings.classes")
        yield from self._make_messages("train", texts, [int(label) for label in labels])

    def make_query_messages(self, texts: TextsOrPairs) -> Iterator[Message]:
        """Yield messages for queries: without labels, each text in a fresh slot."""
        yield from self._make_messages("query", texts, [None] * len(texts))

    def combine_answers(self, answers: Iterable[dict[str, Any]]) -> list[dict[str, Any] | None]:
        """Return ``answers`` in the order of the last queried texts; None for a text that visibly was not sent.

        With fictitious queries a text's answer is the product over its true messages; if none was true, over all, so
        that nobody is led to ask again. ``RunStateError`` if any message has no answer.
        """
        by_slot: dict[str, dict[int, dict[str, Any]]] = {}
        for answer in answers:
            by_slot.setdefault(answer["slot"], {})[answer.get("step", 0)] = answer
        way = self._settings["query"].sampling
        if not isinstance(way, HiddenSampling):
            return [by_slot[slot][0] if slot in by_slot else None for slot in self._query_slots]
        if any(by_slot.get(slot, {}).keys() != set(range(way.steps)) for slot in self._query_slots):
            raise RunStateError("the service did not answer a message")
        combined: list[dict[str, Any] | None] = []
        for slot, coins in zip(self._query_slots, self._query_coins.T, strict=True):
            true_steps = np.flatnonzero(coins if coins.any() else ~coins).tolist()
            shares = [by_slot[slot][step]["probabilities"] for step in true_steps]
            names = list(shares[0])
            table = np.array([[max(row[name], _MIN_SHARE) for name in names] for row in shares])
            by_class = dict(zip(names, softmax(np.log(table).sum(axis=0)).tolist(), strict=True))
            combined.append({"slot": slot, "class": max(names, key=by_class.__getitem__), "probabilities": by_class})
        return combined

    def _make_messages(self, purpose: Purpose, texts: TextsOrPairs, labels: Sequence[int | None]) -> Iterator[Message]:
        settings, layer, classes = self._settings[purpose], self._layers[purpose], np.array(labels)
        call, self._calls = self._calls, self._calls + 1
        stream = self._seeded_stream or RandomStream.from_entropy()
        digits = stream.random_bytes("slots", 0, _SLOT_DIGITS // 2 * len(texts), call).hex()
        slots = [digits[start : start + _SLOT_DIGITS] for start in range(0, len(digits), _SLOT_DIGITS)]
        coins = np.zeros((settings.sampling.steps, len(slots)), bool)
        if purpose == "query":
            self._query_slots, self._query_coins = slots, coins
        if not slots:
            return
        # encode all first: a text that cannot be encoded costs nothing, and the number of messages depends on no text
        if self._encoder.digest != self._digest:
            raise GuaranteeError(
                "the encoder changed: if it learns from what it encodes, every later message reveals "
                "earlier sentences; keep it frozen, or train it with dpsgd and start again"
            )
        rows = self._encoder.represent(texts, settings.represent).detach().float()
        # book even if no coin sent any: that is visible, too
        if self._budget is not None:
            self._budget.reserve_messages(purpose, settings, len(slots))
        for step in range(settings.sampling.steps):
            sends = draw_step_sends(settings.sampling, stream, step, len(slots), call)
            coins[step, sends.slots] = sends.is_real
            sent_labels = classes[sends.slots]
            if sends.drawn_classes is not None:
                sent_labels = np.where(sends.is_real, sent_labels, sends.drawn_classes)
            for start in range(0, len(sends.slots), _BLOCK_SIZE):
                block = slice(start, start + _BLOCK_SIZE)
                is_real = torch.from_numpy(sends.is_real[block]).view(-1, *(1,) * (rows.dim() - 1))
                # one code path for a real row and for the zero vector of a hidden coin
                clean = torch.where(is_real, rows[torch.from_numpy(sends.slots[block])], 0.0)
                noisy = layer(clean.flatten(0, 1) if settings.pairs else clean).view(clean.shape).numpy()
                for place, label, values in zip(sends.slots[block], sent_labels[block].tolist(), noisy, strict=True):
                    yield Message(slots[place], step, label, values, self._digest)


# The budget of one user's messages, in training and queries: booked before the first one is sent.


USER_UNIT = "one user: all their messages, in training and queries, every sentence of theirs exchanged for another"
_PURPOSE_NAMES = {"train": "training messages", "query": "queries"}
_NOTHING_SENT = "Nothing was sent for this user."
_KEY_FILE, _KEY_BYTES = "names.key", 32


def make_user_spending(settings: LdpSettings, sentences: int) -> Spending:
    """Return what the messages of ``sentences`` of one user spend; a query counts as a training sentence."""
    spending = make_message_spending(settings.resolve_noise(), settings.vectors, settings.sampling)
    return Spending(spending.mechanism, spending.steps * sentences)


class UserBudget(Budget):
    """One user's bookings at ``settings.path``, compared with ``settings.epsilon`` at ``settings.delta``.

    Formal guarantees: as long as the file is kept and every message of the user is booked here, all of them together
    are (``settings.epsilon``, ``settings.delta``)-DP for the user. A booking is on the disk before
    :meth:`reserve_messages` returns, and is never removed: after a crash, messages count as sent.
    """

    def __init__(self, settings: BudgetSettings) -> None:
        super().__init__(settings, USER_UNIT)

    def require_room(self, purpose: Purpose, settings: LdpSettings, sentences: int) -> None:
        """Raise ``BudgetExceeded`` if messages of ``sentences`` would exceed the limit; writes nothing."""
        spending = make_user_spending(settings, sentences)
        self._require_remaining_budget(self._read_reservations(), _PURPOSE_NAMES[purpose], spending, _NOTHING_SENT)

    def reserve_messages(self, purpose: Purpose, settings: LdpSettings, sentences: int) -> None:
        """Book the messages of ``sentences`` that are about to be sent, or raise ``BudgetExceeded``.

        Each call is a separate booking, because messages that are made again carry new noise.
        """
        spending = make_user_spending(settings, sentences)
        self.reserve_spending(secrets.token_hex(16), _PURPOSE_NAMES[purpose], spending, _NOTHING_SENT)


class BudgetFolder:
    """The budgets of several users, one file each, named by a keyed digest of the user.

    Spellings of a name that Unicode treats as equal are one user and share a budget. ``GuaranteeError`` if the key is
    damaged and there are files, because no budget could be found.
    """

    def __init__(self, folder: Path, epsilon: float, delta: float) -> None:
        if not (epsilon > 0.0 and 0.0 < delta < 1.0):
            raise ConfigurationError("limit: needs a positive epsilon, and a delta between 0 and 1")
        self.folder, self._epsilon, self._delta = make_private_folder(folder), epsilon, delta
        self._key = DigestKey(_load_or_create_key(folder / _KEY_FILE))

    def open_budget(self, user: str) -> UserBudget:
        """Open the budget of ``user``; text without an id belongs to the user ``""``."""
        return UserBudget(BudgetSettings(path=self.get_path(user), epsilon=self._epsilon, delta=self._delta))

    def get_path(self, user: str) -> Path:
        """Return the file of ``user``, which may not exist."""
        name = unicode_variants(user)[0].encode("utf-8", "backslashreplace").decode()
        return self.folder / f"{self._key.make_pseudonym('budget', name)}.jsonl"


def _load_or_create_key(path: Path) -> bytes:
    """Return the key of the file names, created once; concurrent callers get the first one."""
    if not path.exists() and not any(path.parent.glob("*.jsonl")):
        new_file = path.with_name(f"{secrets.token_hex(8)}.new")
        write_bytes(new_file, secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(new_file, path)
        new_file.unlink()
        sync_to_disk(path.parent)
    key = path.read_bytes() if path.exists() else b""
    if len(key) != _KEY_BYTES:
        raise GuaranteeError(
            f"budget {path.parent.name}: {_KEY_FILE} is missing or broken, so the spent budget cannot be read: "
            "restore it from a copy"
        )
    return key
