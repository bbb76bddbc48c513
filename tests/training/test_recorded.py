"""Trainings recorded whole: every step, row, coordinate and draw is as it has to be, and sabotage is seen."""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.redaction.shards import read_column
from redactory.training import TrainSettings, loop, steps, train, vocabulary
from redactory.training.clipping import engine, gradients, matmul
from redactory.training.clipping.matmul import CHUNK_ROWS
from redactory.training.data import split_micro_batches
from redactory.training.loop import Checkpoint
from redactory.training.mechanisms import lattice
from redactory.training.mechanisms.ledger import NOISY_STEP, StepLedger
from redactory.training.mechanisms.mechanism import Mechanism, PoissonGaussian, Relation
from redactory.training.steps import NoisySteps
from redactory.training.trainers.crt import Crt
from redactory.training.trainers.uedp_bounded import UedpBounded
from redactory.training.uedp import federated, local_update
from tests.training.conftest import PUBLIC_TEXTS, make_small_settings, write_run
from tests.training.recording import (
    CHECKS,
    ENTROPY,
    Check,
    CheckedTraining,
    Oracle,
    TrainingCase,
    check_card,
    check_draws,
    check_moves,
    check_noise,
    check_order,
    check_reading,
    check_release,
    check_sums,
    clip_vector,
    record_training,
)
from tests.training.uedp import test_federated_training as federation
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

REAL_SAMPLE_ROWS = Mechanism.sample_rows
PUBLIC = PUBLIC_TEXTS[:21]
PRIVATE = [f"Hello {MASK}, {number}" for number in range(100, 147)]
MIXED = [*PRIVATE[:10], *(f"Welcome {number}" for number in range(100, 112))]
SHORT: dict[str, Any] = {
    "seed": None,
    # few pieces to a text: what tells texts apart is among its first tokens
    "tokenizer": "public",
    "vocabulary_size": 3000,
    "max_tokens": 9,
    "clip_norm": 0.05,
    "noise": "float",
    "sampling_rate": 0.5,
    "expected_batch_size": 20.0,
    "noise_multiplier": 1.5,
    "model": {"embedding_size": 5, "hidden_size": 6},
}
LARGE = {"kind": "awd-lstm", "embedding_size": 80, "hidden_size": 132, "layers": 2}
MANY_WORDS = [
    # each word twice, or it is no token
    " ".join(2 * [f"{first}{b}{c}" for b, c in itertools.product("abcdefghi", repeat=2)])
    for first in ascii_lowercase
]


def settings(**changes: Any) -> TrainSettings:
    return make_small_settings(**{**SHORT, **changes})


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainingCase]:
    """The trainings by name, each with a run of its own."""
    made: dict[str, Callable[[Path], TrainingCase]] = {
        "long": lambda to: TrainingCase(write_run(to, PUBLIC, PRIVATE), settings(epochs=9)),
        "short": lambda to: TrainingCase(write_run(to, PUBLIC, PRIVATE[:-1]), settings(epochs=2)),
        "stopped": lambda to: TrainingCase(
            write_run(to, PUBLIC, PRIVATE[:20]), settings(epochs=3, public_share=0.5), stop_after=11
        ),
        "crt-drop": lambda to: TrainingCase(
            write_run(to, PUBLIC, MIXED),
            settings(epochs=2, trainer="crt-drop", optimizer="sgd", max_physical_batch_tokens=20),
        ),
        "large": lambda to: TrainingCase(
            write_run(to, MANY_WORDS, PRIVATE[:2]),
            settings(epochs=1, trainer="dpsgd", sampling_rate=0.25, noise="lattice", model=LARGE, dp_learning_rate=0.1),
        ),
        "uedp-bounded": lambda to: TrainingCase(
            write_unit_run(to), training(write_public(to.parent / "own.jsonl"), seed=None, clip_norm=0.05)
        ),
        "uedp-alg1": lambda to: _federated(to, "uedp-alg1"),
        "user-level": lambda to: _federated(to, "user-level"),
    }

    @cache
    def find(name: str) -> TrainingCase:
        return made[name](tmp_path_factory.mktemp(name.replace(" ", "-")) / "RUN")

    return find


def _federated(root: Path, trainer: str) -> TrainingCase:
    own = {"local_learning_rate": 0.2, "related_entity_rate": 0.6, "users": 40}
    users, epochs = (30, 1) if trainer == "user-level" else (9, 2)
    made = federation.small(root, trainer, own, seed=None, clip_norm=0.05, max_tokens=9, epochs=epochs)
    return TrainingCase(federation.write_run(root, users), made)


CASES = ("long", "short", "stopped", "crt-drop", "large", "uedp-bounded", "uedp-alg1", "user-level")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "uedp-alg1" else []) for name in CASES]
)
def test_every_step_is_what_it_has_to_be(name: str, case_of: Callable[[str], TrainingCase]) -> None:
    case = case_of(name)
    trained = CheckedTraining(record_training(case), Oracle(case))
    for check in CHECKS:
        check(trained)


def test_the_recorded_trainings_go_past_the_constants_in_the_code(case_of: Callable[[str], TrainingCase]) -> None:
    """Steps, coordinates, a parameter's rows, a piece's points: each beyond where a short cut could begin."""
    long, short, drop, large, users = (
        Oracle(case_of(name)) for name in ("long", "short", "crt-drop", "large", "user-level")
    )

    def pieces(own: Oracle) -> list[int]:
        tokens = own.settings.max_physical_batch_tokens
        return [len(piece) for piece in split_micro_batches(own.sample_rows(0), own.noised_examples.lengths, tokens)]

    assert sum(noisy for noisy, _ in long.step_order) > 17
    assert min(pieces(long)) > 16
    assert min(pieces(short)) > 16
    assert len(pieces(drop)) > 1
    assert len(long.noised_examples) % 2 != len(short.noised_examples) % 2
    assert sum(large.sizes) > 2**16 + 4096
    heights = {name: len(parameter) for name, parameter in large.network.named_parameters()}
    assert heights["layers.0.weight_hh_l0"] > gradients.SLAB_ROWS
    assert heights["embedding.weight"] > CHUNK_ROWS
    assert max(len(users.sample_users(number)) for number in range(3)) > 8
    stopped = case_of("stopped")
    assert any(
        step.is_repeated and step.noisy for step in CheckedTraining(record_training(stopped), Oracle(stopped)).steps
    )


# Sabotage: what spoils a training in a way that one of the checks has to see.

Patch = pytest.MonkeyPatch
Vector = NDArray[np.float64]
Rows = NDArray[np.int64]
SABOTAGES: dict[str, tuple[Callable[[Patch], None], str, Check]] = {}


def swap(
    check: Check, name: str, owner: Any, attribute: str, change: Callable[[Any], Any], case: str = "short"
) -> None:
    """``change`` makes what stands in for ``owner.attribute`` from the real one; ``check`` has to see it."""

    def spoil(patch: Patch) -> None:
        patch.setattr(owner, attribute, change(getattr(owner, attribute)))

    SABOTAGES[name] = spoil, case, check


@pytest.fixture(scope="module")
def oracle_of(case_of: Callable[[str], TrainingCase]) -> Callable[[str], Oracle]:
    """The oracles by name, made before anything is spoilt."""
    return cache(lambda name: Oracle(case_of(name)))


Draw = Callable[[int], Vector]


def noise(check: Check, name: str, change: Callable[[Draw, int], Vector], case: str = "short") -> None:
    """``change`` makes the noise of a step, from the draws of any."""

    def spoilt(real: Any) -> Any:
        def normal(own: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> Vector:
            if purpose != "noise":
                return np.asarray(real(own, purpose, step, count, index))
            return change(lambda number: real(own, "noise", number, count), step)

        return normal

    swap(check, name, RandomStream, "normal", spoilt, case)


def half_of(draw: Draw, step: int, other: int) -> Vector:
    return np.where(np.arange(len(draw(step))) % 2, draw(step), draw(other))


def silent(vector: Vector, first: int, last: int | None = None) -> Vector:
    vector = vector.copy()
    vector[first:last] = 0.0
    return vector


noise(check_noise, "noise reused every 16 steps", lambda draw, k: draw(k % 16), "long")
noise(check_noise, "half of the noise reused every 16 steps", lambda draw, k: half_of(draw, k, k % 16), "long")
noise(check_noise, "noise turned round in every second step", lambda draw, k: draw(k & ~1) * (-1) ** k)
noise(check_noise, "a step without noise", lambda draw, k: draw(k) * (k != 2))
noise(check_noise, "a coordinate without noise", lambda draw, k: silent(draw(k), 321, 322))
noise(check_noise, "the same noise for all coordinates", lambda draw, k: np.full_like(draw(k), draw(k)[0]))
noise(check_noise, "tails of the noise cut", lambda draw, k: draw(k).clip(-2.0, 2.0))
noise(check_release, "noise wanes slowly", lambda draw, k: draw(k) * 0.999**k)
noise(check_draws, "noise of a known seed", lambda draw, k: RandomStream.from_seed(k).normal("n", 0, len(draw(k))))
swap(
    check_noise,
    "variance for deviation",
    Mechanism,
    "noise_deviation",
    lambda real: property(lambda own: (own.noise_multiplier * own.clip_norm) ** 2),
)
swap(
    check_noise,
    "lattice noise ends at coordinate 65536",
    lattice,
    "draw_rounded_normal",
    lambda real: lambda *own: real(*own) * (np.arange(own[3]) < 2**16),
    "large",
)
swap(
    check_noise,
    "lattice noise reused every second step",
    lattice,
    "draw_rounded_normal",
    lambda real: lambda stream, name, k, *rest: real(stream, name, k // 2, *rest),
    "large",
)
swap(check_release, "lattice noise without its margin", lattice, "NOISE_MARGIN", lambda real: 0.0, "large")
swap(
    check_release,
    "an average of the sums before noise",
    Mechanism,
    "compute_noisy_mean",
    lambda real: lambda own, total, *rest: real(own, total, *rest) + total / 99,
)


def sampled(name: str, change: Callable[[Callable[[int], Rows], int, int], Any], case: str = "short") -> None:
    """``change`` makes the rows of a step, from the coins of any."""

    def rows(own: Any, stream: RandomStream, step: int, points: int) -> Rows:
        return np.asarray(change(lambda number: REAL_SAMPLE_ROWS(own, stream, number, points), step, points))

    swap(check_reading, name, Mechanism, "sample_rows", lambda real: rows, case)


sampled("an oversize batch is cut", lambda coins, k, n: coins(k)[:22])
sampled("an empty place is filled", lambda coins, k, n: np.union1d(coins(k), [0]))
sampled("coins are those of 16 steps before", lambda coins, k, n: coins(k % 16), "long")
sampled("the last row is never drawn", lambda coins, k, n: coins(k)[coins(k) < n - 1])
sampled("passes in place of coins", lambda coins, k, n: np.arange(k % 2, n, 2))
sampled("coins of a weak generator", lambda coins, k, n: np.flatnonzero(np.random.default_rng(k).random(n) < 0.5))
swap(
    check_reading,
    "coins follow the lengths",
    NoisySteps,
    "sample_step_rows",
    lambda real: lambda own, k: np.sort(np.argsort(own.examples.lengths, kind="stable")[real(own, k)]),
    "crt-drop",
)


def other_text(name: str, folder: str, change: Callable[[list[str], list[str]], list[str]]) -> None:
    """``change`` makes the texts that are learnt from ``folder``, from its own and the other side's."""

    def spoilt(real: Any) -> Any:
        def texts(run: Any, path: Path, reading: str = "texts") -> Any:
            other = path.with_name("private" if folder == "public" else "public")
            own = list(real(run, path))
            return iter(change(own, list(real(run, other))) if path.name == folder else own)

        return texts

    swap(check_reading, name, loop, "read_texts", spoilt)


other_text("a private row in the plain steps", "public", lambda own, other: [*own, other[0]])
other_text("a public row in the noisy steps", "private", lambda own, other: [*own[:-1], other[0]])
other_text("a private row left out", "private", lambda own, other: own[1:])
other_text("points joined in pairs", "private", lambda own, other: [*map("".join, itertools.pairwise(own))])
swap(
    check_reading,
    "vocabulary from private text",
    vocabulary,
    "read_public_texts",
    lambda real: lambda run, *roles: [*real(run, *roles), *read_column(run.private, "text")],
)


def repeat_plain_step(schedule: list[loop.ScheduledStep], is_repeated: bool) -> list[loop.ScheduledStep]:
    first = next(index for index, step in enumerate(schedule) if not step.is_noisy)
    return [*schedule[: first + 1], *schedule[first:]] if is_repeated else schedule


for case, odd in (("long", True), ("short", False)):
    swap(
        check_order,
        f"a plain step more where the private count is {'odd' if odd else 'even'}",
        train,
        "schedule_steps",
        lambda real, odd=odd: (
            lambda settings, kinds, stream: repeat_plain_step(
                real(settings, kinds, stream), len(kinds.noisy.examples) % 2 == odd
            )
        ),
        case,
    )
swap(
    check_reading,
    "masked points are not dropped",
    loop.TrainingContext,
    "encode_data_folders",
    lambda real: lambda *own: replace(real(*own), excluded_mask=None),
    "crt-drop",
)
swap(
    check_reading,
    "caps are not enforced",
    UedpBounded,
    "bound_contributions",
    lambda real: lambda _, graph, settings: graph,
    "uedp-bounded",
)


def step(check: Check, case: str = "short") -> Callable[[Any], Any]:
    """A noisy step in the place of the real one, which it is given."""

    def listed(changed: Callable[[Any, NoisySteps, int], None]) -> Any:
        def spoilt(real: Any) -> Any:
            return lambda own, number: changed(real, own, number)

        swap(check, changed.__name__.replace("_", " "), NoisySteps, "step", spoilt, case)
        return changed

    return listed


def sum_of(own: NoisySteps, number: int) -> Tensor:
    return own.sum_clipped_gradients(own.examples, own.sample_step_rows(number))


def loss_of(own: NoisySteps) -> float:
    with torch.no_grad():
        return float(own.network.example_losses(own.examples.make_batch([0, 1]).to(own.network.device)).mean())


@step(check_order, "long")
def a_second_sum_every_16th_step_unledgered(real: Any, own: NoisySteps, number: int) -> None:
    real(own, number)
    if number % 16 == 15:
        mean = own.mechanism.compute_noisy_mean(sum_of(own, number), own.stream, 10**6 + number)
        steps.apply_gradient(own.network, own.scheduled_optimizer, mean, number)


@step(check_order)
def noise_before_the_record(real: Any, own: NoisySteps, number: int) -> None:
    total = sum_of(own, number)
    mean = own.mechanism.compute_noisy_mean(total, own.stream, number)
    own.ledger.authorize_noisy_step(number, total)
    steps.apply_gradient(own.network, own.scheduled_optimizer, mean, number)


@step(check_order)
def an_end_by_the_private_loss(real: Any, own: NoisySteps, number: int) -> None:
    if number < 2 or loss_of(own) > 1e3:
        real(own, number)


@step(check_order, "stopped")
def small_batches_are_left_out(real: Any, own: NoisySteps, number: int) -> None:
    if len(own.sample_step_rows(number)) > 9:
        real(own, number)


@step(check_moves)
def a_rate_by_the_private_loss(real: Any, own: NoisySteps, number: int) -> None:
    own.scheduled_optimizer = replace(own.scheduled_optimizer, learning_rate=1e-2 / (1.0 + loss_of(own)))
    real(own, number)


@step(check_moves)
def a_sum_without_noise_beside_the_optimizer(real: Any, own: NoisySteps, number: int) -> None:
    real(own, number)
    if number == 2:
        steps.set_flat_parameters(own.network, steps.flatten_parameters(own.network) - 1e-4 * sum_of(own, number))


@step(check_release)
def divided_by_the_realised_batch(real: Any, own: NoisySteps, number: int) -> None:
    own.mechanism = replace(own.mechanism, normaliser=float(max(1, len(own.sample_step_rows(number)))))
    real(own, number)


Sum = Callable[[Rows, float], Tensor]


def summed(name: str, change: Callable[[Sum, Rows, float, Any], Tensor], case: str = "short") -> None:
    """``change`` makes the sum of a step, from clipped sums of any rows with any clip."""

    def spoilt(real: Any) -> Any:
        def clipped_sum(network: Any, points: Any, rows: Rows, clip: float, tokens: int, **more: Any) -> Tensor:
            return change(lambda r, c: real(network, points, r, c, tokens, **more), rows, clip, network)

        return clipped_sum

    swap(check_sums, name, steps, "compute_clipped_sum", spoilt, case)


def by_tensor(total: Sum, rows: Rows, clip: float, network: Any) -> Tensor:
    sizes = [p.numel() for p in network.parameters()]
    found = total(rows[:0], clip)
    for row in rows:
        parts = torch.split(total(np.array([row]), 1e6), sizes)
        found += torch.cat([clip_vector(part, clip).float() for part in parts])
    return found


def adaptive(total: Sum, rows: Rows, clip: float, network: Any) -> Tensor:
    norms = [float(total(np.array([row]), 1e6).norm()) for row in rows]
    return total(rows, min([2 * clip, *norms]))


for case in ("short", "crt-drop", "uedp-bounded"):
    summed(f"sum not clipped in {case}", lambda total, rows, clip, _: total(rows, 1e6), case)
summed("clipped by tensor", by_tensor)
summed("clipped after summing", lambda total, rows, clip, _: clip_vector(total(rows, 1e6), len(rows) * clip).float())
summed("clip by the batch", adaptive, "crt-drop")
summed("the first point twice", lambda total, rows, clip, _: total(rows, clip) + total(rows[:1], clip))
summed("a piece of 16 and no more", lambda total, rows, clip, _: total(rows[:16], clip))
summed("divided by the tokens", lambda total, rows, clip, _: total(rows, clip) / (1 + len(rows) % 2))


def no_bias(use: Any) -> Any:
    bias = isinstance(use, gradients.DenseGradients) and use.right.dim() == 2 and use.example_count > 16
    return gradients.DenseGradients(torch.zeros_like(use.right)) if bias else use


def first_rows(use: Any) -> Any:
    """What of a use lies in the first 512 rows of its parameter."""
    if isinstance(use, gradients.DenseGradients):
        return gradients.DenseGradients(torch.cat([use.right[:, :512], torch.zeros_like(use.right[:, 512:])], 1))
    if isinstance(use, gradients.EmbeddingRows):
        return replace(use, right=use.right * (use.left < 512)[..., None])
    return replace(use, left=use.left * (torch.arange(use.height, device=use.left.device) < 512))


for name, change, case in (
    ("biases left out of norms in batches over 16", no_bias, "short"),
    ("norms over the first 512 rows", first_rows, "large"),
):
    swap(
        check_sums,
        name,
        engine,
        "compute_squared_norms",
        lambda real, change=change: lambda every, _: real([change(use) for use in every], {}),
        case,
    )
swap(
    check_sums,
    "formed norms over one slab",
    gradients,
    "compute_dense_squared_norms",
    lambda real: lambda every, rows: real([*map(first_rows, every)], rows),
    "large",
)
swap(
    check_sums,
    "tied weights counted as two",
    gradients,
    "_compute_inner_products",
    lambda real: lambda one, other, grams: tuple((one is other) * part for part in real(one, other, grams)),
    "large",
)


def _the_first_rows_alone(patch: Patch) -> None:
    # cut into chunks are the products of oneDNN, which is not taken on every processor
    patch.setattr(matmul, "_HAS_ONEDNN", True)
    put = matmul.accumulate_total

    def spoilt(total: Tensor, found: Tensor, fresh: bool) -> None:
        put(total, found * (total.storage_offset() < CHUNK_ROWS * total.shape[1]), fresh)

    patch.setattr(matmul, "accumulate_total", spoilt)


SABOTAGES["sums over the first 2048 rows"] = _the_first_rows_alone, "large", check_sums
swap(
    check_sums,
    "pieces after the first left out",
    engine,
    "split_micro_batches",
    lambda real: lambda *own: real(*own)[:1],
    "crt-drop",
)
swap(
    check_sums,
    "embeddings are not clipped",
    gradients.EmbeddingRows,
    "add_weighted_sum",
    lambda real: lambda own, total, weights, is_empty: real(own, total, torch.ones_like(weights), is_empty),
)


def of_one_step(real: Any) -> Any:
    nothing = SimpleNamespace(type="none", body={})
    return lambda own, type, body: nothing if body.get("step") == 2 else real(own, type, body)  # noqa: A006


swap(check_order, "a step that is not recorded", RecordLog, "append", of_one_step)
swap(
    check_card,
    "batch sizes on record",
    RecordLog,
    "append",
    lambda real: lambda own, type, body: real(own, type, body | {"rows": 23} if type == NOISY_STEP else body),  # noqa: A006
)


def in_ledger(**entries: Any) -> Callable[[Any], Any]:
    def spoilt(real: Any) -> Any:
        def init(own: Any, *arguments: Any) -> None:
            real(own, *arguments)
            vars(own).update(entries)

        return init

    return spoilt


INNER = {"class": "GaussianDpEvent", "noise_multiplier": 1.5}
OTHER_RATE = {"class": "PoissonSampledDpEvent", "sampling_probability": 0.25, "event": INNER}
swap(check_card, "events of another rate", StepLedger, "__init__", in_ledger(_event=OTHER_RATE))
swap(check_sums, "digests of sums without a key", StepLedger, "__init__", in_ledger(_key=b""))
swap(
    check_card,
    "more noise told than drawn",
    PoissonGaussian,
    "to_event",
    lambda real: lambda own: real(replace(own, noise_multiplier=2 * own.noise_multiplier)),
)
swap(
    check_card,
    "sensitivity of a point that is exchanged is one clip",
    Mechanism,
    "get_sensitivity",
    lambda real: lambda own, relation: own.clip_norm,
)
swap(check_card, "a relation that costs less", Crt, "relation", lambda real: Relation.ADD_OR_REMOVE)


def stretched(octets: bytes) -> bytes:
    return hashlib.blake2b(octets, digest_size=32).digest()


ROOTS: dict[str, Callable[[], bytes]] = {
    "a root of 16 random bits": lambda: stretched(secrets.token_bytes(2)),
    "16 bits of the system's octets": lambda: secrets.token_bytes(32)[:2] + bytes(30),
    "a root of the clock": lambda: stretched(str(time.time()).encode()),
}
for name, root in ROOTS.items():
    swap(
        check_draws,
        name,
        RandomStream,
        "from_entropy",
        lambda real, root=root: staticmethod(lambda: RandomStream(root())),
    )
swap(
    check_draws,
    "draws whose names lack the index",
    RandomStream,
    "random_bytes",
    lambda real: lambda own, name, k, count, index=0: real(own, name, k, count),
)
swap(
    check_draws,
    "draws of few steps",
    RandomStream,
    "random_bytes",
    lambda real: lambda own, name, k, *rest: real(own, name, k % 16, *rest),
    "long",
)
swap(
    check_draws,
    "a checkpoint that holds the key",
    Checkpoint,
    "write",
    lambda real: lambda own, done: real(replace(own, binding=f"{own.binding} {ENTROPY.hex()}"), done),
)


def forgetful(patch: Patch) -> None:
    """A ledger that lets a replayed step pass with any sum."""
    real = StepLedger.authorize_noisy_step

    def admit(own: Any, number: int, total: Tensor) -> None:
        if number not in own._recorded_digests:
            real(own, number, total)

    patch.setattr(StepLedger, "authorize_noisy_step", admit)


@dataclass
class SinceBegun:
    """The number of a step since its attempt began: each has a stream of its own."""

    stream: RandomStream | None = None
    first: int = 0

    def __call__(self, stream: RandomStream, number: int) -> int:
        if stream is not self.stream:
            self.stream, self.first = stream, number
        return number - self.first


def coins_begin_again(patch: Patch) -> None:
    forgetful(patch)
    since = SinceBegun()
    real = REAL_SAMPLE_ROWS
    patch.setattr(Mechanism, "sample_rows", lambda own, stream, k, n: real(own, stream, since(stream, k), n))


def another_sum(patch: Patch) -> None:
    seen = set[int]()

    def rows(own: Any, stream: RandomStream, number: int, points: int) -> Rows:
        again = number in seen
        seen.add(number)
        return REAL_SAMPLE_ROWS(own, stream, number, points)[again:]

    forgetful(patch)
    patch.setattr(Mechanism, "sample_rows", rows)


def noise_begins_again(patch: Patch) -> None:
    real, since = Mechanism.compute_noisy_mean, SinceBegun()
    patch.setattr(
        Mechanism, "compute_noisy_mean", lambda own, total, stream, k: real(own, total, stream, since(stream, k))
    )


SABOTAGES["coins begin again where a training resumes"] = coins_begin_again, "stopped", check_reading
SABOTAGES["a replayed step with another sum"] = another_sum, "stopped", check_moves
SABOTAGES["noise begins again where a training resumes"] = noise_begins_again, "stopped", check_order
swap(
    check_moves,
    "a checkpoint without the optimizers' memory",
    Checkpoint,
    "__init__",
    lambda real: lambda own, *rest: real(own, *rest[:3], []),
    "stopped",
)


def coin_keys(name: str, case: str, purpose: str, change: Callable[[int], int]) -> None:
    def spoilt(real: Any) -> Any:
        return lambda stream, of, k, key: real(stream, of, k, change(key) if of == purpose else key)

    swap(check_reading, name, federated, "draw_unit_uniform", spoilt, case)


coin_keys("user coins keyed by 8 bits", "user-level", "user coins", lambda key: key & 255)
coin_keys("user coins keyed by 64 bits", "uedp-alg1", "user coins", lambda key: key >> 64)
coin_keys("entity coins keyed by 8 bits", "uedp-alg1", "entity coins", lambda key: key & 255)
coin_keys("extended coins keyed by a place", "uedp-alg1", "extended coins", lambda key: key & 2**64 - 1)
swap(
    check_reading,
    "users of a fixed number",
    federated,
    "draw_users",
    lambda real: (
        lambda stream, k, users, rate: [users[i] for i in sorted(stream.permutation("users", k, len(users))[:4])]
    ),
    "user-level",
)
for name, weigh in (
    ("weights by the number of points", lambda graph, each: each * len(graph) / 40),
    ("points of sampled entities are left out", lambda graph, each: np.where(each > 0, 0.0, 1.0)),
):
    swap(
        check_sums,
        name,
        federated,
        "make_example_weights",
        lambda real, weigh=weigh: lambda graph, mechanism: lambda *draw: weigh(graph, real(graph, mechanism)(*draw)),
        "uedp-alg1",
    )


def in_halves(update: Tensor, clip: float) -> Tensor:
    return torch.cat([clip_vector(half, clip) for half in update.chunk(2)])


for case in ("user-level", "uedp-alg1"):
    swap(
        check_sums,
        f"updates not clipped in {case}",
        local_update,
        "clip_and_round_update",
        lambda real: lambda update, clip: update,
        case,
    )
swap(
    check_sums, "updates clipped in halves", local_update, "clip_and_round_update", lambda real: in_halves, "user-level"
)
swap(
    check_sums,
    "users after the eighth left out",
    federated,
    "sum_local_updates",
    lambda real: lambda network, drawn, rule: real(network, drawn[:8], rule),
    "user-level",
)


def every_batch_of_a_user_clipped_by_itself(patch: Patch) -> None:
    real = local_update._take_local_step

    def take_step(network: Any, user: Any, rows: Any, rule: Any) -> None:
        before = steps.flatten_parameters(network).double()
        real(network, user, rows, rule)
        moved = steps.flatten_parameters(network).double() - before
        steps.set_flat_parameters(network, before + clip_vector(moved, rule.clip_norm))

    patch.setattr(local_update, "_take_local_step", take_step)
    patch.setattr(local_update, "clip_and_round_update", lambda update, clip: update)


def a_user_goes_on_where_the_last_one_stopped(patch: Patch) -> None:
    real, loaded = local_update.set_flat_parameters, list[Tensor]()

    def load(network: Any, values: Tensor) -> None:
        if not loaded or loaded[-1] is not values:
            loaded.append(values)
            real(network, values)

    patch.setattr(local_update, "set_flat_parameters", load)


for spoil in (every_batch_of_a_user_clipped_by_itself, a_user_goes_on_where_the_last_one_stopped):
    SABOTAGES[spoil.__name__.replace("_", " ")] = spoil, "user-level", check_sums


@pytest.mark.slow
@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_seen(
    name: str, case_of: Callable[[str], TrainingCase], oracle_of: Callable[[str], Oracle]
) -> None:
    spoil, case, check = SABOTAGES[name]
    oracle = oracle_of(case)
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch)
        found = CheckedTraining(record_training(case_of(case)), oracle)
    # some are refused by the training itself, before the step that a check would look at
    if found.recording.error is None:
        with pytest.raises(AssertionError):
            check(found)
