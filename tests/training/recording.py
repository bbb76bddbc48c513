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
from redactory.training import TrainSettings, loop, train_model
from redactory.training.data import Batch, TokenizedExamples, open_public_text
from redactory.training.mechanisms.ledger import HEAD, NOISY_STEP, StepLedger
from redactory.training.model import load_model
from redactory.training.steps import flatten_parameters, list_trainable_parameters, set_flat_parameters
from redactory.training.trainers import get_trainer
from redactory.training.uedp.incidence import get_columns
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import make_initial_model

ENTROPY = bytes(range(101, 133))
"""What the system gives a recorded training for its root."""
FEDERATED_TRAINERS = ("uedp-alg1", "user-level")
PROTECTED_UNITS = {"uedp-bounded": "both", "uedp-alg1": "both", "user-level": "users"}
"""Whom the card of a training with units has to name."""


class TrainingInterrupted(Exception):
    """Stands for an interrupt."""


class AttemptEvent(NamedTuple):
    """An attempt begins with this step of all."""

    index: int


class DrawEvent(NamedTuple):
    """Octets of the keystream."""

    root: bytes
    purpose: str
    step: int
    index: int
    octets: bytes


class ReadEvent(NamedTuple):
    """A point of some table was put into a batch: its target ids."""

    point: bytes


class AdmitEvent(NamedTuple):
    """The ledger was asked whether noise may be drawn for this sum."""

    step: int
    total: Tensor


class WriteEvent(NamedTuple):
    """A record is on the disk."""

    type: str
    body: dict[str, Any]


class MoveEvent(NamedTuple):
    """An optimizer's step, flat: the gradient that it was given, the parameters around it, its rate."""

    gradient: Tensor
    before: Tensor
    after: Tensor
    rate: float


Event = AttemptEvent | DrawEvent | ReadEvent | AdmitEvent | WriteEvent | MoveEvent


@dataclass(frozen=True)
class TrainingCase:
    """One training: of which run, with which settings; with ``stop``, interrupted after so many steps."""

    run: RunFolder
    settings: TrainSettings
    stop_after: int | None = None


@dataclass
class Recording:
    """All that happened in one training, in its order.

    ``entropy``: the numbers of octets that the system was asked for; ``told``: files, other than the key's,
    that held the root after some step; ``error``: what ended the training early.
    """

    case: TrainingCase
    events: list[Event] = field(default_factory=list)
    entropy: list[int] = field(default_factory=list)
    leaked_files: set[str] = field(default_factory=set)
    summary: dict[str, Any] = field(default_factory=dict)
    error: RedactoryError | None = None
    weights: Tensor | None = None

    def search_for_root(self) -> None:
        run = self.case.run
        for path in (*run.state.rglob("*"), *run.models.rglob("*")):
            if path.is_file() and path.suffix != ".key":
                content = path.read_bytes()
                if ENTROPY in content or ENTROPY.hex().encode() in content:
                    self.leaked_files.add(path.name)


def record_training(case: TrainingCase) -> Recording:
    """The training of ``case``, from nothing."""
    recording, run, stop = Recording(case), case.run, case.stop_after
    name, steps = case.settings.model_name, 0

    def progress(work: str, done: int, total: int | None, unit: str = "") -> None:
        nonlocal steps
        steps += bool(unit)
        if steps == stop:
            raise TrainingInterrupted

    interval = loop.CHECKPOINT_STEPS if stop is None else 3
    with _record_events(recording), mock.patch.object(loop, "CHECKPOINT_STEPS", interval):
        recording.events.append(AttemptEvent(0))
        try:
            try:
                recording.summary = train_model(run, case.settings, progress)
            except TrainingInterrupted:
                file = run.get_checkpoint_path(name)
                saved_steps = torch.load(file, weights_only=True)["steps"] if file.exists() else 0
                recording.events.append(AttemptEvent(saved_steps))
                recording.summary = train_model(run, case.settings)
            recording.weights = flatten_parameters(load_model(run.get_model_folder(name)).network)
        except RedactoryError as error:
            recording.error = error
    recording.search_for_root()
    for folder in (run.models, run.state):
        shutil.rmtree(folder, ignore_errors=True)
    return recording


@contextmanager
def _record_events(recording: Recording) -> Iterator[None]:
    """Around whatever the functions at the borders are now: a saboteur's, it may be."""
    octets, batch = RandomStream.random_bytes, TokenizedExamples.make_batch
    append, admit, system = RecordLog.append, StepLedger.authorize_noisy_step, secrets.token_bytes
    before: list[Tensor] = []

    def drawn(stream: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        drawn_octets = octets(stream, purpose, step, count, index)
        recording.events.append(DrawEvent(stream.root, purpose, step, index, drawn_octets))
        return drawn_octets

    def read(examples: TokenizedExamples, rows: Any) -> Batch:
        made = batch(examples, rows)
        recording.events += [
            ReadEvent(targets[real].numpy().astype(np.int32).tobytes())
            for targets, real in zip(made.targets, made.real, strict=True)
        ]
        return made

    def written(log: RecordLog, type: str, body: dict[str, Any]) -> Any:  # noqa: A002 (the product's name)
        record = append(log, type, body)
        recording.events.append(WriteEvent(record.type, record.body))
        return record

    def record_admit(ledger: StepLedger, step: int, clipped_sum: Tensor) -> None:
        recording.events.append(AdmitEvent(step, clipped_sum.detach().cpu().clone()))
        admit(ledger, step, clipped_sum)

    def token_bytes(count: int | None = None) -> bytes:
        recording.entropy.append(count or 0)
        return ENTROPY[:count] if count is not None and count <= len(ENTROPY) else system(count)

    def begins(optimizer: Any, *_: Any) -> None:
        before[:] = [_flatten(_list_parameters(optimizer))]

    def ends(optimizer: Any, *_: Any) -> None:
        parameters = _list_parameters(optimizer)
        gradient = _flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
        recording.events.append(MoveEvent(gradient, before[0], _flatten(parameters), optimizer.param_groups[0]["lr"]))
        recording.search_for_root()

    with ExitStack() as stack:
        for owner, name, wrapped in (
            (RandomStream, "random_bytes", drawn),
            (TokenizedExamples, "make_batch", read),
            (RecordLog, "append", written),
            (StepLedger, "authorize_noisy_step", record_admit),
            (secrets, "token_bytes", token_bytes),
        ):
            stack.enter_context(mock.patch.object(owner, name, wrapped))
        for handle in (register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)):
            stack.callback(handle.remove)
        yield


def _list_parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _flatten(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.detach().flatten() for part in parts]).cpu().clone()


def derive_keystream(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> bytes:
    """ChaCha20 under a key of its own for every name, as ``docs/guarantees.md`` has it."""
    name = f"{purpose}\x00{step}\x00{index}".encode()
    key = hashlib.blake2b(name, digest_size=32, key=root).digest()
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count))


def draw_words(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.uint64]:
    return np.frombuffer(derive_keystream(root, purpose, step, 8 * count, index), "<u8")


def draw_uniforms(root: bytes, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
    shifted = draw_words(root, purpose, step, count, index) >> np.uint64(12)
    return np.asarray((shifted + 0.5) * 2.0**-52)


def draw_permutation(root: bytes, purpose: str, step: int, count: int) -> NDArray[np.int64]:
    return np.argsort(draw_words(root, purpose, step, count), kind="stable")


def draw_gaussian(root: bytes, step: int, count: int, lattice: bool) -> NDArray[np.float64]:
    """Box and Muller's transform of the noise's words of one step."""
    half = (count + 1) // 2
    if lattice:
        both = (draw_words(root, "noise", step, 2 * half).astype(np.float64) + 0.5) * 2.0**-64
    else:
        both = draw_uniforms(root, "noise", step, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log(both[:half])), 2.0 * np.pi * both[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def clip_vector(vector: Tensor, bound: float) -> Tensor:
    """One contribution, over all tensors together, in float64."""
    vector = vector.double()
    return vector * min(1.0, bound / float(vector.norm().clamp_min(1e-30)))


class Oracle:
    """What each step of a case's training has to read, to sum, to draw and to do."""

    def __init__(self, case: TrainingCase) -> None:
        self.case, self.settings = case, case.settings
        settings, run = case.settings, case.run
        self.federated = settings.trainer in FEDERATED_TRAINERS
        self.stream = RandomStream(ENTROPY)
        self.public_text = open_public_text(run, settings.public_text)
        self.model = make_initial_model(settings, self.stream, build_vocabulary(run, settings, self.public_text))
        self.network = self.model.network.cpu().train()
        self.initial_parameters = flatten_parameters(self.network).clone()
        self.sizes = [p.numel() for p in list_trainable_parameters(self.network)]
        by_policy = settings.trainer in ("crt", "crt-drop")
        self.original_examples = (
            None
            if by_policy or settings.trainer == "dpsgd"
            else get_trainer(settings).read_original_examples(run, settings)
        )
        if self.original_examples is None:
            noised = list(read_column(run.private if by_policy else run.vault, "text"))
        else:
            noised = list(self.original_examples.read_texts())
        self.noise_free_examples = self._encode(list(read_column(run.public, "text")) if by_policy else [])
        self.noised_examples = self._encode(noised)
        self.is_dropped = np.array([settings.trainer == "crt-drop" and MASK in text for text in noised], bool)

    def _encode(self, texts: list[str]) -> TokenizedExamples:
        return TokenizedExamples.from_texts(texts, self.model.tokenizer, self.settings.max_tokens)

    @property
    def clip(self) -> float:
        return self.settings.clip_norm

    @property
    def normaliser(self) -> float:
        settings = self.settings
        assert not self.federated or settings.federated.users is not None
        mean = settings.federated.user_rate * (settings.federated.users or 0)
        return mean if self.federated else settings.expected_batch_size

    @property
    def rate(self) -> float:
        settings = self.settings
        return settings.federated.user_rate if self.federated else settings.sampling_rate

    @cached_property
    def step_order(self) -> list[tuple[bool, int]]:
        """Of each step of all: whether it is noisy, and its number of its kind."""
        settings, noisy = self.settings, math.ceil(1.0 / self.rate)
        a_pass = math.ceil(len(self.noise_free_examples) / settings.public_batch_size)
        plain = a_pass * math.ceil(settings.min_public_steps / a_pass) if a_pass else 0
        if settings.public_share is not None:
            plain = round(noisy * settings.public_share / (1 - settings.public_share))
        steps, counts = [], [0, 0]
        for epoch in range(settings.epochs):
            kinds = np.arange(plain + noisy) >= plain
            if settings.public_share is not None:
                kinds = kinds[draw_permutation(ENTROPY, "order of steps", epoch, len(kinds))]
            for kind in kinds.tolist():
                steps.append((kind, counts[kind]))
                counts[kind] += 1
        return steps

    def list_noise_free_rows(self, number: int) -> NDArray[np.int64]:
        size = self.settings.public_batch_size
        this, position = divmod(number, math.ceil(len(self.noise_free_examples) / size))
        return draw_permutation(ENTROPY, "plain order", this, len(self.noise_free_examples))[
            position * size : (position + 1) * size
        ]

    def list_examples(self, noisy: bool, number: int) -> set[bytes]:
        """The contents of the rows that a step reads."""
        if not noisy:
            return {
                self.noise_free_examples.get_targets(int(row)).tobytes() for row in self.list_noise_free_rows(number)
            }
        if self.federated:
            rows = [
                row for _, user_rows, row_weights in self.sample_users(number) for row in user_rows[row_weights > 0]
            ]
        else:
            rows = list(self.sample_rows(number))
        return {self.noised_examples.get_targets(int(row)).tobytes() for row in rows}

    def sample_rows(self, number: int) -> NDArray[np.int64]:
        """Each point by a coin of its own, but for those that are dropped."""
        drawn = np.flatnonzero(
            draw_uniforms(ENTROPY, "coins", number, len(self.noised_examples)) < self.settings.sampling_rate
        )
        return drawn[~self.is_dropped[drawn]]

    def sample_users(self, number: int) -> list[tuple[int, NDArray[np.int64], NDArray[np.float64]]]:
        """Who is drawn, by whole keyed ids: each one's number, rows, and the rows' weights."""
        graph, sampled = self.original_examples.incidence, []
        for user in range(graph.users.shape[1]):
            key, rows = _to_integer(graph.user_ids[user]), np.flatnonzero(graph.users.indices == user)
            if draw_uniforms(ENTROPY, "user coins", number, 1, key)[0] < self.rate:
                row_weights = np.array([self._compute_weight(number, int(row)) for row in rows])
                if row_weights.any():
                    sampled.append((key, rows, row_weights))
        return sampled

    def _compute_weight(self, number: int, row: int) -> float:
        """Algorithm 1, by estimator ``f_E+``; 1 in DP-FedAvg."""
        federated = self.settings.federated
        if self.settings.trainer == "user-level":
            return 1.0
        graph: Any = self.original_examples.incidence
        entities = get_columns(graph.entities, row)
        if not len(entities):
            key = (int(graph.priorities[row]) << 64) + int(graph.example_ids[row])
            drawn = draw_uniforms(ENTROPY, "extended coins", number, 1, key)[0] < federated.related_entity_rate
            return float(drawn)
        keys = [_to_integer(graph.entity_ids[entity]) for entity in entities]
        sampled = [draw_uniforms(ENTROPY, "entity coins", number, 1, key)[0] < federated.entity_rate for key in keys]
        return sum(sampled)

    def compute_noise_free_gradient(self, number: int, before: Tensor) -> Tensor:
        set_flat_parameters(self.network, before)
        rows = self.list_noise_free_rows(number)
        self.network.begin_step(self.stream, "plain step", number)
        return self._compute_gradient(self.noise_free_examples, rows, np.ones(len(rows))) / len(rows)

    def compute_sum(self, number: int, before: Tensor) -> Tensor:
        """The sum before noise, float64: every contribution by itself, by autograd, clipped as a whole."""
        total = torch.zeros(sum(self.sizes), dtype=torch.float64)
        if self.federated:
            for user in self.sample_users(number):
                total += clip_vector(self._compute_update(number, before, *user), self.clip)
            return total
        set_flat_parameters(self.network, before)
        self.network.begin_step(self.stream, "noisy step", number)
        for row in self.sample_rows(number):
            total += clip_vector(self._compute_gradient(self.noised_examples, [int(row)], np.ones(1)), self.clip)
        return total

    def _compute_gradient(self, points: TokenizedExamples, rows: Any, weights: NDArray[np.float64]) -> Tensor:
        losses = self.network.example_losses(points.make_batch(rows))
        parameters = list_trainable_parameters(self.network)
        return _flatten(torch.autograd.grad((torch.as_tensor(weights).to(losses) * losses).sum(), parameters))

    def _compute_update(
        self, number: int, before: Tensor, key: int, rows: NDArray[np.int64], weights: NDArray[np.float64]
    ) -> Tensor:
        """A user's own steps of SGD: what they moved."""
        federated, root = self.settings.federated, derive_keystream(ENTROPY, "local update", number, 32, key)
        now = before.clone()
        order = draw_permutation(root, "local order", 0, len(rows))
        for batch, start in enumerate(range(0, len(order), federated.local_batch_size)):
            batch_rows = order[start : start + federated.local_batch_size]
            batch_rows = batch_rows[weights[batch_rows] > 0]
            set_flat_parameters(self.network, now)
            self.network.begin_step(RandomStream(root), "local step", batch)
            if len(batch_rows):
                gradient = self._compute_gradient(self.noised_examples, rows[batch_rows], weights[batch_rows])
                now = now - federated.local_learning_rate * gradient
        return now - before

    def compute_noise(self, number: int) -> NDArray[np.float64]:
        """The noise of a step over σC, as it is drawn: on the lattice it is wider by 2⁻¹⁰."""
        lattice = self.settings.noise == "lattice"
        return draw_gaussian(ENTROPY, number, sum(self.sizes), lattice) * (1 + 2.0**-10 if lattice else 1.0)

    def make_ledger_event(self) -> dict[str, Any]:
        """What the ledger says of each step, from the settings."""
        settings = self.settings
        inner = {"class": "GaussianDpEvent", "noise_multiplier": settings.noise_multiplier}
        users: dict[str, Any] = {}
        if self.federated:
            of = settings.federated
            names = ("entity_rate", "related_entity_rate", "max_users_per_entity")
            shared = {name: getattr(of, name) for name in names}
            users = {"users": of.users, "entities": shared if settings.trainer == "uedp-alg1" else None}
        name = "PoissonSampledUsersEvent" if self.federated else "PoissonSampledDpEvent"
        return {"class": name, **users, "sampling_probability": self.rate, "event": inner}


def _to_integer(octets: NDArray[np.uint8]) -> int:
    return int.from_bytes(octets.tobytes(), "big")


class RecordedStep(NamedTuple):
    """What happened in one step, beside what it has to be: its number of its kind, whether noisy."""

    noisy: bool
    number: int
    is_repeated: bool
    events: list[Event]
    move: MoveEvent


class CheckedTraining:
    """A recording and its oracle."""

    def __init__(self, recording: Recording, oracle: Oracle) -> None:
        self.recording, self.oracle = recording, oracle

    @cached_property
    def steps(self) -> list[RecordedStep]:
        """Every step; one that no constant asks for stands as a step without noise, numbered −1."""
        steps: list[RecordedStep] = []
        index, known, since = 0, set[int](), list[Event]()
        for event in self.recording.events:
            if isinstance(event, AttemptEvent):
                index, since = event.index, []
            elif isinstance(event, MoveEvent):
                order = self.oracle.step_order
                noisy, number = order[index] if index < len(order) else (False, -1)
                steps.append(RecordedStep(noisy, number, index in known, since, event))
                known.add(index)
                index, since = index + 1, []
            else:
                since.append(event)
        return steps

    @property
    def noisy_steps(self) -> list[RecordedStep]:
        return [step for step in self.steps if step.noisy]

    @cached_property
    def step_noises(self) -> NDArray[np.float64]:
        """Of each noisy step: what was released, less what was admitted, over σC: [steps, coordinates]."""
        oracle, noises = self.oracle, []
        for step in self.noisy_steps:
            if not step.is_repeated:
                released = step.move.gradient.double() * oracle.normaliser
                if oracle.federated:
                    released = -released  # a mean of updates is added, a gradient taken away
                noises.append((released - find_admitted_sum(step).double()).numpy())
        sigma: Any = oracle.settings.noise_multiplier
        return np.array(noises) / (sigma * oracle.clip)

    @property
    def records(self) -> list[WriteEvent]:
        return [event for event in self.recording.events if isinstance(event, WriteEvent)]


def find_admitted_sum(step: RecordedStep) -> Tensor:
    """The sum that the ledger was asked about."""
    return next(event.total for event in step.events if isinstance(event, AdmitEvent))


Check = Callable[[CheckedTraining], None]


def check_order(trained: CheckedTraining) -> None:
    """Kinds of steps follow from public constants; each release is admitted, put on record, then noised."""
    done = [(step.noisy, step.number) for step in trained.steps if not step.is_repeated]
    assert done == trained.oracle.step_order
    for step in trained.steps:
        story = [description for event in step.events if (description := _describe_event(event))]
        number = step.number
        admitted_event, on_record, noise = ("admitted", number), ("recorded", number), ("noise", number)
        first = [admitted_event, on_record, noise]
        assert story == (([admitted_event, noise] if step.is_repeated else first) if step.noisy else [])
    last = max(n for n, event in enumerate(trained.recording.events) if isinstance(event, MoveEvent))
    assert not any(_describe_event(event) for event in trained.recording.events[last:])


def _describe_event(event: Event) -> tuple[str, int] | None:
    if isinstance(event, AdmitEvent):
        return "admitted", event.step
    if isinstance(event, WriteEvent) and event.type == NOISY_STEP:
        return "recorded", event.body["step"]
    if isinstance(event, DrawEvent) and event.purpose == "noise":
        return "noise", event.step
    return None


def check_reading(trained: CheckedTraining) -> None:
    """A step reads the points that its coins, or its pass, have drawn, of its own side, and no other."""
    for step in trained.steps:
        read = {event.point for event in step.events if isinstance(event, ReadEvent)}
        assert read == trained.oracle.list_examples(step.noisy, step.number)


def check_sums(trained: CheckedTraining) -> None:
    """The sum that is admitted and recorded is that of the clipped contributions, in every coordinate."""
    key = derive_keystream(ENTROPY, "ledger", 0, 32)
    digests = {r.body["step"]: r.body["sum"] for r in trained.records if r.type == NOISY_STEP}
    for step in trained.steps:
        if not step.noisy:
            exact = trained.oracle.compute_noise_free_gradient(step.number, step.move.before)
            assert float((step.move.gradient - exact).norm()) <= 1e-4 * float(exact.norm())
            continue
        total = find_admitted_sum(step)
        exact = trained.oracle.compute_sum(step.number, step.move.before)
        assert float((total.double() - exact).norm()) <= 1e-4 * trained.oracle.clip
        digest = hashlib.blake2b(total.numpy().tobytes(), digest_size=16, key=key).hexdigest()
        assert digests[step.number] == digest


def check_noise(trained: CheckedTraining) -> None:
    """The noise is normal in every step, tensor and coordinate, and that of no two steps is alike."""
    noises = trained.step_noises
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


def check_release(trained: CheckedTraining) -> None:
    """What is released is (sum + σC · the step's own noise) / constant, in every coordinate."""
    for noise, step in zip(trained.step_noises, (s for s in trained.noisy_steps if not s.is_repeated), strict=True):
        assert np.abs(noise - trained.oracle.compute_noise(step.number)).max() < 1e-4


def check_moves(trained: CheckedTraining) -> None:
    """Nothing but the optimizers' steps moves the parameters, from the public start to what is saved."""
    settings, moves = trained.oracle.settings, dict[tuple[bool, int], MoveEvent]()
    at = trained.oracle.initial_parameters
    optimizers = [_make_optimizer(trained.oracle, at) for _ in range(2)]
    for step in trained.steps:
        move, name = step.move, (step.noisy, step.number)
        rate = 1.0 if trained.oracle.federated else settings.dp_learning_rate if step.noisy else settings.learning_rate
        assert move.rate == rate
        if step.is_repeated:
            assert all(torch.equal(a, b) for a, b in zip(move[:3], moves[name][:3], strict=True))
        else:
            assert torch.equal(move.before, at)
            parameter, optimizer = optimizers[step.noisy]
            parameter.data, parameter.grad = move.before.clone(), move.gradient.clone()
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            assert torch.allclose(parameter.data, move.after, rtol=0, atol=1e-6)
            at = move.after
        moves[name] = move
    assert torch.equal(trained.recording.weights, at)


def _make_optimizer(oracle: Oracle, first: Tensor) -> tuple[Tensor, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(first.clone())
    is_sgd = oracle.federated or oracle.settings.optimizer == "sgd"
    return parameter, (torch.optim.SGD if is_sgd else torch.optim.Adam)([parameter], lr=1.0)


def check_draws(trained: CheckedTraining) -> None:
    """The root is all of the system's octets; every draw is the keystream of its name; no file tells it."""
    assert trained.recording.entropy == [len(ENTROPY)]
    assert not trained.recording.leaked_files
    oracle, noisy = trained.oracle, [n for kind, n in trained.oracle.step_order if kind]
    user_keys = [key for n in noisy for key, _, _ in oracle.sample_users(n)] if oracle.federated else []
    roots = {derive_keystream(ENTROPY, "local update", n, 32, key) for n in noisy for key in user_keys} | {ENTROPY}
    names_by_octets: dict[bytes, tuple[Any, ...]] = {}
    for event in trained.recording.events:
        if isinstance(event, DrawEvent):
            name = event[:4]
            assert event.root in roots
            assert event.octets == derive_keystream(*name[:3], len(event.octets), event.index)
            if len(event.octets) >= 8:
                assert names_by_octets.setdefault(event.octets[:16], name) == name


def check_card(trained: CheckedTraining) -> None:
    """The ledger's head, every event and the card say what was done, by the settings."""
    settings, trainer = trained.oracle.settings, trained.oracle.settings.trainer
    steps = sum(kind for kind, _ in trained.oracle.step_order)
    head = next(record.body for record in trained.records if record.type == HEAD)
    event, clip = trained.oracle.make_ledger_event(), settings.clip_norm
    assert head["mechanism"] == {
        "event": event,
        "clip_norm": clip,
        "normaliser": {"kind": "public constant", "value": trained.oracle.normaliser},
        "noise": settings.noise,
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
    stated = card["privacy_unit"] if trainer in PROTECTED_UNITS else card["relation"]
    assert stated == PROTECTED_UNITS.get(trainer, relation)
    assert (card["steps"], card["noise_multiplier"]) == (steps, settings.noise_multiplier)
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
