"""A training recorded whole: every draw, row, sum, record and move, and what each of them has to be.

The recorder stands at the borders of what trains: the system's entropy, the keystream, the table of points,
the ledger's file, torch's optimizers.  Whatever a saboteur exchanges lies between them.  The oracle computes
every step again from the definitions, the corpus, the settings and the octets that the system gave.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from redactory.foundation.errors import RedactoryError
from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.shards import read_column
from redactory.training import TrainSettings, train_model
from redactory.training.data import Batch, EncodedPoints, public_text_of
from redactory.training.ledger import HEAD, NOISY_STEP, StepLedger
from redactory.training.model import load_model
from redactory.training.steps import flat, load, trainable
from redactory.training.train import fresh_model
from redactory.training.trainers import trainer_of
from redactory.training.vocabulary import vocabulary_of

ENTROPY = bytes(range(101, 133))
"""What the system gives a recorded training for its root."""
FEDERATED = ("uedp-alg1", "user-level")
PROTECTED = {"uedp-bounded": "both", "uedp-alg1": "both", "user-level": "users"}
"""Whom the card of a training with units has to name."""


class Stopped(Exception):
    """Stands for an interrupt."""


# ----------------------------------------------------------------------------------------- what happened


class Begun(NamedTuple):
    """An attempt begins with this step of all."""

    index: int


class Drawn(NamedTuple):
    """Octets of the keystream."""

    root: bytes
    purpose: str
    step: int
    index: int
    octets: bytes


class Read(NamedTuple):
    """A point of some table was put into a batch: its target ids."""

    point: bytes


class Admitted(NamedTuple):
    """The ledger was asked whether noise may be drawn for this sum."""

    step: int
    total: Tensor


class Written(NamedTuple):
    """A record is on the disk."""

    type: str
    body: dict[str, Any]


class Moved(NamedTuple):
    """An optimizer's step, flat: the gradient that it was given, the parameters around it, its rate."""

    gradient: Tensor
    before: Tensor
    after: Tensor
    rate: float


Event = Begun | Drawn | Read | Admitted | Written | Moved


@dataclass(frozen=True)
class Case:
    """One training: of which run, with which settings; with ``stop``, interrupted after so many steps."""

    run: RunFolder
    settings: TrainSettings
    stop: int | None = None


@dataclass
class Recording:
    """All that happened in one training, in its order.

    ``entropy``: the numbers of octets that the system was asked for; ``told``: files, other than the key's,
    that held the root after some step; ``error``: what ended the training early.
    """

    case: Case
    events: list[Event] = field(default_factory=list)
    entropy: list[int] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    summary: dict[str, Any] = field(default_factory=dict)
    error: RedactoryError | None = None
    weights: Tensor | None = None

    def look_for_the_root(self) -> None:
        run = self.case.run
        for path in (*run.state.rglob("*"), *run.models.rglob("*")):
            if path.is_file() and path.suffix != ".key":
                held = path.read_bytes()
                if ENTROPY in held or ENTROPY.hex().encode() in held:
                    self.told.add(path.name)


def recorded(case: Case) -> Recording:
    """The training of ``case``, from nothing."""
    found, run, stop = Recording(case), case.run, case.stop
    name, steps = case.settings.model_name, 0

    def progress(work: str, done: int, total: int | None, unit: str = "") -> None:
        nonlocal steps
        steps += bool(unit)
        if steps == stop:
            raise Stopped

    with _listening(found):
        found.events.append(Begun(0))
        try:
            try:
                found.summary = train_model(run, case.settings, progress)
            except Stopped:
                file = run.checkpoint(name)
                kept = torch.load(file, weights_only=True)["steps"] if file.exists() else 0
                found.events.append(Begun(kept))
                found.summary = train_model(run, case.settings)
            found.weights = flat(load_model(run.model(name)).network)
        except RedactoryError as error:
            found.error = error
    found.look_for_the_root()
    for left in (run.models, run.state):
        shutil.rmtree(left, ignore_errors=True)
    return found


@contextmanager
def _listening(found: Recording) -> Iterator[None]:
    """Around whatever the functions at the borders are now: a saboteur's, it may be."""
    octets, batch = RandomStream.octets, EncodedPoints.batch
    append, admit, system = RecordLog.append, StepLedger.admit, secrets.token_bytes
    before: list[Tensor] = []

    def drawn(own: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        given = octets(own, purpose, step, count, index)
        found.events.append(Drawn(own.root, purpose, step, index, given))
        return given

    def read(own: EncodedPoints, rows: Any) -> Batch:
        made = batch(own, rows)
        found.events += [
            Read(targets[real].numpy().astype(np.int32).tobytes())
            for targets, real in zip(made.targets, made.real, strict=True)
        ]
        return made

    def written(own: RecordLog, type: str, body: dict[str, Any]) -> Any:  # noqa: A002 (the product's name)
        record = append(own, type, body)
        found.events.append(Written(record.type, record.body))
        return record

    def admitted(own: StepLedger, step: int, clipped_sum: Tensor) -> None:
        found.events.append(Admitted(step, clipped_sum.detach().cpu().clone()))
        admit(own, step, clipped_sum)

    def token_bytes(count: int | None = None) -> bytes:
        found.entropy.append(count or 0)
        return ENTROPY[:count] if count is not None and count <= len(ENTROPY) else system(count)

    def begins(optimizer: Any, *_: Any) -> None:
        before[:] = [_flat(_parameters(optimizer))]

    def ends(optimizer: Any, *_: Any) -> None:
        own = _parameters(optimizer)
        gradient = _flat([torch.zeros_like(p) if p.grad is None else p.grad for p in own])
        found.events.append(Moved(gradient, before[0], _flat(own), optimizer.param_groups[0]["lr"]))
        found.look_for_the_root()

    with ExitStack() as stack:
        for owner, name, wrapped in (
            (RandomStream, "octets", drawn),
            (EncodedPoints, "batch", read),
            (RecordLog, "append", written),
            (StepLedger, "admit", admitted),
            (secrets, "token_bytes", token_bytes),
        ):
            stack.enter_context(mock.patch.object(owner, name, wrapped))
        for handle in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            stack.callback(handle.remove)
        yield


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts]).cpu().clone()


# ------------------------------------------------------------------------------- what it has to have been


def keystream(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> bytes:
    """ChaCha20 under a key of its own for every name, as ``docs/guarantees.md`` has it."""
    name = f"{purpose}\x00{step}\x00{index}".encode()
    key = hashlib.blake2b(name, digest_size=32, key=root).digest()
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count))


def words(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.uint64]:
    return np.frombuffer(keystream(root, purpose, step, 8 * count, index), "<u8")


def coins(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
    found = words(root, purpose, step, count, index) >> np.uint64(12)
    return np.asarray((found + 0.5) * 2.0**-52)


def permutation(root: bytes, purpose: str, step: int, count: int) -> NDArray[np.int64]:
    return np.argsort(words(root, purpose, step, count), kind="stable")


def gaussian(root: bytes, step: int, count: int, lattice: bool) -> NDArray[np.float64]:
    """Box and Muller's transform of the noise's words of one step."""
    half = (count + 1) // 2
    if lattice:
        both = (words(root, "noise", step, 2 * half).astype(np.float64) + 0.5) * 2.0**-64
    else:
        both = coins(root, "noise", step, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log(both[:half])), 2.0 * np.pi * both[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def clipped(vector: Tensor, bound: float) -> Tensor:
    """One contribution, over all tensors together, in float64."""
    vector = vector.double()
    return vector * min(1.0, bound / float(vector.norm().clamp_min(1e-30)))


class Oracle:
    """What each step of a case's training has to read, to sum, to draw and to do."""

    def __init__(self, case: Case) -> None:
        self.case, self.settings = case, case.settings
        own, run = case.settings, case.run
        self.federated = own.trainer in FEDERATED
        self.stream = RandomStream(ENTROPY)
        self.public_text = public_text_of(run, own.public_text)
        self.model = fresh_model(own, self.stream, vocabulary_of(run, own, self.public_text))
        self.network = self.model.network.cpu().train()
        self.first = flat(self.network).clone()
        self.sizes = [p.numel() for p in trainable(self.network)]
        by_policy = own.trainer in ("crt", "crt-drop")
        self.originals = None if by_policy or own.trainer == "dpsgd" else trainer_of(own).originals(run, own)
        if self.originals is None:
            noised = list(read_column(run.private if by_policy else run.vault, "text"))
        else:
            noised = list(self.originals.texts())
        self.plain = self._encoded(list(read_column(run.public, "text")) if by_policy else [])
        self.noised = self._encoded(noised)
        self.dropped = np.array([own.trainer == "crt-drop" and MASK in text for text in noised], bool)

    def _encoded(self, texts: list[str]) -> EncodedPoints:
        return EncodedPoints.from_texts(texts, self.model.tokenizer, self.settings.max_tokens)

    @property
    def clip(self) -> float:
        return self.settings.clip_norm

    @property
    def normaliser(self) -> float:
        own = self.settings
        assert not self.federated or own.federated.users is not None
        mean = own.federated.user_rate * (own.federated.users or 0)
        return mean if self.federated else own.expected_batch_size

    @property
    def rate(self) -> float:
        own = self.settings
        return own.federated.user_rate if self.federated else own.sampling_rate

    @cached_property
    def order(self) -> list[tuple[bool, int]]:
        """Of each step of all: whether it is noisy, and its number of its kind."""
        own, noisy = self.settings, math.ceil(1.0 / self.rate)
        a_pass = math.ceil(len(self.plain) / own.public_batch_size)
        plain = a_pass * math.ceil(own.min_public_steps / a_pass) if a_pass else 0
        if own.public_share is not None:
            plain = round(noisy * own.public_share / (1 - own.public_share))
        found, done = [], [0, 0]
        for epoch in range(own.epochs):
            kinds = np.arange(plain + noisy) >= plain
            if own.public_share is not None:
                kinds = kinds[permutation(ENTROPY, "order of steps", epoch, len(kinds))]
            for kind in kinds.tolist():
                found.append((kind, done[kind]))
                done[kind] += 1
        return found

    def plain_rows(self, number: int) -> NDArray[np.int64]:
        size = self.settings.public_batch_size
        this, place = divmod(number, math.ceil(len(self.plain) / size))
        return permutation(ENTROPY, "plain order", this, len(self.plain))[place * size : (place + 1) * size]

    def points_of(self, noisy: bool, number: int) -> set[bytes]:
        """The contents of the rows that a step reads."""
        if not noisy:
            return {self.plain.targets_of(int(row)).tobytes() for row in self.plain_rows(number)}
        if self.federated:
            rows = [row for _, own, each in self.users(number) for row in own[each > 0]]
        else:
            rows = list(self.rows(number))
        return {self.noised.targets_of(int(row)).tobytes() for row in rows}

    def rows(self, number: int) -> NDArray[np.int64]:
        """Each point by a coin of its own, but for those that are dropped."""
        drawn = np.flatnonzero(coins(ENTROPY, "coins", number, len(self.noised)) < self.settings.sampling_rate)
        return drawn[~self.dropped[drawn]]

    def users(self, number: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.float64]]]:
        """Who is drawn, by whole keyed ids: each one's number, rows, and the rows' weights."""
        assert self.originals is not None
        graph, found = self.originals.incidence, []
        assert graph is not None
        for user in range(graph.users.columns):
            key, rows = _number(graph.user_ids[user]), np.flatnonzero(graph.users.indices == user)
            if coins(ENTROPY, "user coins", number, 1, key)[0] < self.rate:
                each = np.array([self._weight(number, int(row)) for row in rows])
                if each.any():
                    found.append((key, rows, each))
        return found

    def _weight(self, number: int, row: int) -> float:
        """Algorithm 1, by rule ``any`` and estimator ``f_E+``; 1 in DP-FedAvg."""
        own = self.settings.federated
        if self.settings.trainer == "user-level":
            return 1.0
        assert (own.rule, own.related_entity_rate > 0) == ("any", True)
        assert self.originals is not None
        graph = self.originals.incidence
        assert graph is not None
        entities = graph.entities.of(row)
        if not len(entities):
            key = (int(graph.priorities[row]) << 64) + int(graph.points[row])
            drawn = coins(ENTROPY, "extended coins", number, 1, key)[0] < own.related_entity_rate
            return float(drawn)
        keys = [_number(graph.entity_ids[entity]) for entity in entities]
        sampled = [coins(ENTROPY, "entity coins", number, 1, key)[0] < own.entity_rate for key in keys]
        return sum(sampled)

    def plain_gradient(self, number: int, before: Tensor) -> Tensor:
        load(self.network, before)
        rows = self.plain_rows(number)
        self.network.begin_step(self.stream, "plain step", number)
        return self._gradient(self.plain, rows, np.ones(len(rows))) / len(rows)

    def total(self, number: int, before: Tensor) -> Tensor:
        """The sum before noise, float64: every contribution by itself, by autograd, clipped as a whole."""
        found = torch.zeros(sum(self.sizes), dtype=torch.float64)
        if self.federated:
            for user in self.users(number):
                found += clipped(self._update(number, before, *user), self.clip)
            return found
        load(self.network, before)
        self.network.begin_step(self.stream, "noisy step", number)
        for row in self.rows(number):
            found += clipped(self._gradient(self.noised, [int(row)], np.ones(1)), self.clip)
        return found

    def _gradient(self, points: EncodedPoints, rows: Any, weights: NDArray[np.float64]) -> Tensor:
        losses = self.network.point_losses(points.batch(rows))
        parameters = trainable(self.network)
        return _flat(torch.autograd.grad((torch.as_tensor(weights).to(losses) * losses).sum(), parameters))

    def _update(
        self, number: int, before: Tensor, key: int, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """A user's own steps of SGD: what they moved."""
        own, root = self.settings.federated, keystream(ENTROPY, "local update", number, 32, key)
        now, batch = before.clone(), 0
        for epoch in range(own.local_epochs):
            order = permutation(root, "local order", epoch, len(rows))
            for start in range(0, len(order), own.local_batch_size):
                chosen = order[start : start + own.local_batch_size]
                chosen = chosen[weights[chosen] > 0]
                load(self.network, now)
                self.network.begin_step(RandomStream(root), "local step", batch)
                batch += 1
                if len(chosen):
                    gradient = self._gradient(self.noised, rows[chosen], weights[chosen])
                    now = now - own.local_learning_rate * gradient
        return now - before

    def noise(self, number: int) -> NDArray[np.float64]:
        """The noise of a step over σC, as it is drawn: on the lattice it is wider by 2⁻¹⁰."""
        lattice = self.settings.noise == "lattice"
        return gaussian(ENTROPY, number, sum(self.sizes), lattice) * (1 + 2.0**-10 if lattice else 1.0)

    def event(self) -> dict[str, Any]:
        """What the ledger says of each step, from the settings."""
        own = self.settings
        inner = {"class": "GaussianDpEvent", "noise_multiplier": own.noise_multiplier}
        users: dict[str, Any] = {}
        if self.federated:
            of = own.federated
            names = ("entity_rate", "related_entity_rate", "rule", "max_users_per_entity")
            shared = {
                **{name: getattr(of, name) for name in names},
                "estimator": "f_E+",
                "entity_weight": 1.0,
                "extended_weight": 1.0,
            }
            users = {"users": of.users, "entities": shared if own.trainer == "uedp-alg1" else None}
        name = "PoissonSampledUsersEvent" if self.federated else "PoissonSampledDpEvent"
        return {"class": name, **users, "sampling_probability": self.rate, "event": inner}


def _number(octets: NDArray[np.uint8]) -> int:
    return int.from_bytes(octets.tobytes(), "big")


# --------------------------------------------------------------------------------------- one beside the other


class Step(NamedTuple):
    """What happened in one step, beside what it has to be: its number of its kind, whether noisy."""

    noisy: bool
    number: int
    again: bool
    events: list[Event]
    moved: Moved


class Trained:
    """A recording and its oracle."""

    def __init__(self, recording: Recording, oracle: Oracle) -> None:
        self.recording, self.oracle = recording, oracle

    @cached_property
    def steps(self) -> list[Step]:
        """Every step; one that no constant asks for stands as a step without noise, numbered −1."""
        found: list[Step] = []
        index, known, since = 0, set[int](), list[Event]()
        for event in self.recording.events:
            if isinstance(event, Begun):
                index, since = event.index, []
            elif isinstance(event, Moved):
                order = self.oracle.order
                noisy, number = order[index] if index < len(order) else (False, -1)
                found.append(Step(noisy, number, index in known, since, event))
                known.add(index)
                index, since = index + 1, []
            else:
                since.append(event)
        return found

    @property
    def noisy(self) -> list[Step]:
        return [step for step in self.steps if step.noisy]

    @cached_property
    def noises(self) -> NDArray[np.float64]:
        """Of each noisy step: what was released, less what was admitted, over σC: [steps, coordinates]."""
        own, found = self.oracle, []
        for step in self.noisy:
            if not step.again:
                released = step.moved.gradient.double() * own.normaliser
                if own.federated:
                    released = -released  # a mean of updates is added, a gradient taken away
                found.append((released - admitted(step).double()).numpy())
        sigma = own.settings.noise_multiplier
        assert sigma is not None
        return np.array(found) / (sigma * own.clip)

    @property
    def records(self) -> list[Written]:
        return [event for event in self.recording.events if isinstance(event, Written)]


def admitted(step: Step) -> Tensor:
    """The sum that the ledger was asked about."""
    return next(event.total for event in step.events if isinstance(event, Admitted))


Check = Callable[[Trained], None]


def check_order(trained: Trained) -> None:
    """Kinds of steps follow from public constants; each release is admitted, put on record, then noised."""
    done = [(step.noisy, step.number) for step in trained.steps if not step.again]
    assert done == trained.oracle.order
    for step in trained.steps:
        story = [told for event in step.events if (told := _told(event))]
        number = step.number
        asked, on_record, noise = ("admitted", number), ("recorded", number), ("noise", number)
        first = [asked, on_record, noise]
        assert story == (([asked, noise] if step.again else first) if step.noisy else [])
    last = max(n for n, event in enumerate(trained.recording.events) if isinstance(event, Moved))
    assert not any(_told(event) for event in trained.recording.events[last:])


def _told(event: Event) -> tuple[str, int] | None:
    if isinstance(event, Admitted):
        return "admitted", event.step
    if isinstance(event, Written) and event.type == NOISY_STEP:
        return "recorded", event.body["step"]
    if isinstance(event, Drawn) and event.purpose == "noise":
        return "noise", event.step
    return None


def check_reading(trained: Trained) -> None:
    """A step reads the points that its coins, or its pass, have drawn, of its own side, and no other."""
    for step in trained.steps:
        read = {event.point for event in step.events if isinstance(event, Read)}
        assert read == trained.oracle.points_of(step.noisy, step.number)


def check_sums(trained: Trained) -> None:
    """The sum that is admitted and recorded is that of the clipped contributions, in every coordinate."""
    key = keystream(ENTROPY, "ledger", 0, 32)
    digests = {r.body["step"]: r.body["sum"] for r in trained.records if r.type == NOISY_STEP}
    for step in trained.steps:
        if not step.noisy:
            exact = trained.oracle.plain_gradient(step.number, step.moved.before)
            assert float((step.moved.gradient - exact).norm()) <= 1e-4 * float(exact.norm())
            continue
        total = admitted(step)
        exact = trained.oracle.total(step.number, step.moved.before)
        assert float((total.double() - exact).norm()) <= 1e-4 * trained.oracle.clip
        digest = hashlib.blake2b(total.numpy().tobytes(), digest_size=16, key=key).hexdigest()
        assert digests[step.number] == digest


def check_noise(trained: Trained) -> None:
    """The noise is normal in every step, tensor and coordinate, and that of no two steps is alike."""
    noises = trained.noises
    steps, size = noises.shape
    apart = np.corrcoef(noises)[np.triu_indices(steps, 1)]
    assert np.abs(apart).max() < 6.5 / math.sqrt(size)
    assert min(stats.kstest(noise, "norm").pvalue for noise in (*noises, noises.ravel())) > 1e-6
    bounds = stats.chi2.ppf([1e-9 / size, 1 - 1e-9 / size], steps)
    squares = (noises**2).sum(0)
    assert bounds[0] <= squares.min()
    assert squares.max() <= bounds[1]
    for first, last in pairwise(np.cumsum([0, *trained.oracle.sizes])):
        part = (noises[:, first:last] ** 2).sum(1)
        low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], last - first)
        assert low < part.min()
        assert part.max() < high


def check_release(trained: Trained) -> None:
    """What is released is (sum + σC · the step's own noise) / constant, in every coordinate."""
    for noise, step in zip(trained.noises, (s for s in trained.noisy if not s.again), strict=True):
        assert np.abs(noise - trained.oracle.noise(step.number)).max() < 1e-4


def check_moves(trained: Trained) -> None:
    """Nothing but the optimizers' steps moves the parameters, from the public start to what is saved."""
    own, kept = trained.oracle.settings, dict[tuple[bool, int], Moved]()
    at = trained.oracle.first
    optimizers = [_optimizer(trained.oracle, at) for _ in range(2)]
    for step in trained.steps:
        moved, name = step.moved, (step.noisy, step.number)
        rate = 1.0 if trained.oracle.federated else own.dp_learning_rate if step.noisy else own.learning_rate
        assert moved.rate == rate
        if step.again:
            assert all(torch.equal(a, b) for a, b in zip(moved[:3], kept[name][:3], strict=True))
        else:
            assert torch.equal(moved.before, at)
            parameter, optimizer = optimizers[step.noisy]
            parameter.data, parameter.grad = moved.before.clone(), moved.gradient.clone()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            assert torch.allclose(parameter.data, moved.after, rtol=0, atol=1e-6)
            at = moved.after
        kept[name] = moved
    assert trained.recording.weights is not None
    assert torch.equal(trained.recording.weights, at)


def _optimizer(oracle: Oracle, first: Tensor) -> tuple[Tensor, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(first.clone())
    plain = oracle.federated or oracle.settings.optimizer == "sgd"
    return parameter, (torch.optim.SGD if plain else torch.optim.Adam)([parameter], lr=1.0)


def check_draws(trained: Trained) -> None:
    """The root is all of the system's octets; every draw is the keystream of its name; no file tells it."""
    assert trained.recording.entropy == [len(ENTROPY)]
    assert not trained.recording.told
    own, noisy = trained.oracle, [n for kind, n in trained.oracle.order if kind]
    of_users = [key for n in noisy for key, _, _ in own.users(n)] if own.federated else []
    roots = {keystream(ENTROPY, "local update", n, 32, key) for n in noisy for key in of_users} | {ENTROPY}
    seen: dict[bytes, tuple[Any, ...]] = {}
    for event in trained.recording.events:
        if isinstance(event, Drawn):
            name = event[:4]
            assert event.root in roots
            assert event.octets == keystream(*name[:3], len(event.octets), event.index)
            if len(event.octets) >= 8:
                assert seen.setdefault(event.octets[:16], name) == name


def check_card(trained: Trained) -> None:
    """The ledger's head, every event and the card say what was done, by the settings."""
    own, trainer = trained.oracle.settings, trained.oracle.settings.trainer
    steps = sum(kind for kind, _ in trained.oracle.order)
    head = next(record.body for record in trained.records if record.type == HEAD)
    event, clip = trained.oracle.event(), own.clip_norm
    assert head["mechanism"] == {
        "event": event,
        "clip_norm": clip,
        "normaliser": {"kind": "public constant", "value": trained.oracle.normaliser},
        "noise": own.noise,
        "sensitivity": {"substitution": 2 * clip, "add_or_remove": clip},
    }
    assert head["steps"] == steps
    assert head["seeded"] is False
    relation = "substitution" if trainer in ("crt", "dpsgd") else "add_or_remove"
    assert head["relation"] == relation
    on_record = [record.body for record in trained.records if record.type == NOISY_STEP]
    assert [set(body) for body in on_record] == [{"step", "event", "sum"}] * steps
    assert all(body["event"] == event for body in on_record)
    assert trained.recording.error is None
    card = trained.recording.summary["guarantee"]
    told = card["privacy_unit"] if trainer in PROTECTED else card["relation"]
    assert told == PROTECTED.get(trainer, relation)
    assert (card["steps"], card["noise_multiplier"]) == (steps, own.noise_multiplier)
    assert (card["sampling_rate"], card["clip_norm"]) == (trained.oracle.rate, clip)


CHECKS: tuple[Check, ...] = (
    check_order,
    check_reading,
    check_draws,
    check_sums,
    check_noise,
    check_release,
    check_moves,
    check_card,
)
