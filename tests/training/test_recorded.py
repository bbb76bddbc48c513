"""Trainings recorded whole: every step, row, coordinate and draw is as it has to be, and sabotage is seen."""

from __future__ import annotations

import hashlib
import itertools
import random
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
from redactory.training import TrainSettings, ingredients, lattice, phases
from redactory.training import train as fresh
from redactory.training.clipping import engine
from redactory.training.layers import gradients, matmul
from redactory.training.layers.matmul import CHUNK_ROWS
from redactory.training.ledger import NOISY_STEP, StepLedger
from redactory.training.mechanism import PoissonGaussian, Relation, SampledGaussian
from redactory.training.phases import NoisyPhase
from redactory.training.points import physical_batches
from redactory.training.sampling import PoissonSampler
from redactory.training.trainers.crt import Crt
from redactory.training.trainers.uedp_bounded import UedpBounded
from redactory.training.uedp import federated, local_update
from redactory.training.uedp import federated as federated_units
from redactory.training.walk import Checkpoint
from tests.training.conftest import PUBLIC_TEXTS, small, write_run
from tests.training.recording import (
    CHECKS,
    Case,
    Check,
    Oracle,
    Trained,
    check_card,
    check_draws,
    check_moves,
    check_noise,
    check_reading,
    check_release,
    check_sums,
    check_walk,
    clipped,
    recorded,
)
from tests.training.uedp import test_federated_training as federation
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

PUBLIC = PUBLIC_TEXTS[:21]
PRIVATE = [f"Hello {MASK}, {number}" for number in range(100, 147)]
MIXED = [*PRIVATE[:10], *(f"Welcome {number}" for number in range(100, 112))]
SHORT: dict[str, Any] = {
    "seed": None,
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
    return small(**{**SHORT, **changes})


@pytest.fixture(scope="module")
def case_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """The trainings by name, each with a run of its own."""
    made: dict[str, Callable[[Path], Case]] = {
        "long": lambda to: Case(write_run(to, PUBLIC, PRIVATE), settings(epochs=9)),
        "short": lambda to: Case(write_run(to, PUBLIC, PRIVATE[:-1]), settings(epochs=2)),
        "stopped": lambda to: Case(
            write_run(to, PUBLIC, PRIVATE[:20]),
            settings(epochs=3, interleaving="mixed", checkpoint_steps=3),
            stop=11,
        ),
        "crt-drop": lambda to: Case(
            write_run(to, PUBLIC, MIXED),
            settings(epochs=2, trainer="crt-drop", optimizer="sgd", physical_tokens=20),
        ),
        "large": lambda to: Case(
            write_run(to, MANY_WORDS, PRIVATE[:2]),
            settings(
                epochs=1,
                trainer="dpsgd",
                sampling_rate=0.25,
                noise="lattice",
                model=LARGE,
                private_learning_rate=0.1,
            ),
        ),
        "uedp-bounded": lambda to: Case(
            write_unit_run(to), training(write_public(to.parent / "own.jsonl"), seed=None, clip_norm=0.05)
        ),
        "uedp-alg1": lambda to: _federated(to, "uedp-alg1"),
        "user-level": lambda to: _federated(to, "user-level"),
    }

    @cache
    def find(name: str) -> Case:
        return made[name](tmp_path_factory.mktemp(name.replace(" ", "-")) / "RUN")

    return find


def _federated(root: Path, trainer: str) -> Case:
    own = {"local_learning_rate": 0.2, "local_epochs": 2, "extended_rate": 0.6, "users": 40}
    users, epochs = (30, 1) if trainer == "user-level" else (9, 2)
    made = federation.small(root, trainer, own, seed=None, clip_norm=0.05, max_tokens=9, epochs=epochs)
    return Case(federation.write_run(root, users), made)


CASES = ("long", "short", "stopped", "crt-drop", "large", "uedp-bounded", "uedp-alg1", "user-level")


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_what_it_has_to_be(name: str, case_of: Callable[[str], Case]) -> None:
    case = case_of(name)
    trained = Trained(recorded(case), Oracle(case))
    for check in CHECKS:
        check(trained)


def test_the_recorded_trainings_go_past_the_constants_in_the_code(
    case_of: Callable[[str], Case],
) -> None:
    """Steps, coordinates, a parameter's rows, a piece's points: each beyond where a short cut could begin."""
    long, short, drop, large, users = (
        Oracle(case_of(name)) for name in ("long", "short", "crt-drop", "large", "user-level")
    )

    def pieces(own: Oracle) -> list[int]:
        tokens = own.settings.physical_tokens
        return [len(piece) for piece in physical_batches(own.rows(0), own.noised.lengths, tokens)]

    assert sum(noisy for noisy, _ in long.order) > 17
    assert min(pieces(long)) > 16
    assert min(pieces(short)) > 16
    assert len(pieces(drop)) > 1
    assert len(long.noised) % 2 != len(short.noised) % 2
    assert sum(large.sizes) > 2**16 + 4096
    heights = {name: len(parameter) for name, parameter in large.network.named_parameters()}
    assert heights["layers.0.weight_hh_l0"] > gradients.SLAB_ROWS
    assert heights["embedding.weight"] > CHUNK_ROWS
    assert max(len(users.users(number)) for number in range(3)) > local_update.COHORT
    stopped = case_of("stopped")
    assert any(step.again and step.noisy for step in Trained(recorded(stopped), Oracle(stopped)).steps)


# ------------------------------------------------------------------------------------------- sabotage

Patch = pytest.MonkeyPatch
Vector = NDArray[np.float64]
SABOTAGES: dict[str, tuple[Callable[[Patch], None], str, Check]] = {}


def sabotage(
    check: Check, case: str = "short"
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """What spoils the training ``case`` in a way that ``check`` has to see."""

    def listed(spoil: Callable[[Patch], None]) -> Callable[[Patch], None]:
        SABOTAGES[spoil.__name__.replace("_", " ")] = spoil, case, check
        return spoil

    return listed


@pytest.fixture(scope="module")
def oracle_of(case_of: Callable[[str], Case]) -> Callable[[str], Oracle]:
    """The oracles by name, made before anything is spoilt."""
    return cache(lambda name: Oracle(case_of(name)))


# ---- the noise

Draw = Callable[[int], Vector]


def noise(check: Check, name: str, change: Callable[[Draw, int], Vector], case: str = "short") -> None:
    """``change`` makes the noise of a step, from the draws of any."""

    def spoil(patch: Patch) -> None:
        real = RandomStream.normal

        def normal(own: RandomStream, purpose: str, step: int, count: int, index: int = 0) -> Vector:
            if purpose != "noise":
                return real(own, purpose, step, count, index)
            return change(lambda number: real(own, "noise", number, count), step)

        patch.setattr(RandomStream, "normal", normal)

    spoil.__name__ = name
    sabotage(check, case)(spoil)


def half_of(draw: Draw, step: int, other: int) -> Vector:
    return np.where(np.arange(len(draw(step))) % 2, draw(step), draw(other))


def silent(vector: Vector, first: int, last: int | None = None) -> Vector:
    vector = vector.copy()
    vector[first:last] = 0.0
    return vector


noise(check_noise, "noise reused every 16 steps", lambda draw, k: draw(k % 16), "long")
noise(
    check_noise, "half of the noise reused every 16 steps", lambda draw, k: half_of(draw, k, k % 16), "long"
)
noise(check_noise, "noise turned round in every second step", lambda draw, k: draw(k & ~1) * (-1) ** k)
noise(check_noise, "a step without noise", lambda draw, k: draw(k) * (k != 2))
noise(check_noise, "a parameter without noise", lambda draw, k: silent(draw(k), -20))
noise(check_noise, "a coordinate without noise", lambda draw, k: silent(draw(k), 321, 322))
noise(check_noise, "the same noise for all coordinates", lambda draw, k: np.full_like(draw(k), draw(k)[0]))
noise(check_noise, "tails of the noise cut", lambda draw, k: draw(k).clip(-2.0, 2.0))
noise(check_noise, "noise wanes", lambda draw, k: draw(k) * 0.8**k)
noise(check_release, "noise wanes slowly", lambda draw, k: draw(k) * 0.999**k)
noise(
    check_draws,
    "noise of a known seed",
    lambda draw, k: RandomStream.from_seed(k).normal("n", 0, len(draw(k))),
)


@sabotage(check_noise)
def variance_for_deviation(patch: Patch) -> None:
    patch.setattr(
        SampledGaussian, "noise_deviation", property(lambda own: (own.noise_multiplier * own.clip_norm) ** 2)
    )


@sabotage(check_noise, "large")
def lattice_noise_ends_at_coordinate_65536(patch: Patch) -> None:
    real = lattice.rounded_normal
    patch.setattr(lattice, "rounded_normal", lambda *a: real(*a) * (np.arange(a[3]) < 2**16))


@sabotage(check_noise, "large")
def lattice_noise_reused_every_second_step(patch: Patch) -> None:
    real = lattice.rounded_normal
    patch.setattr(lattice, "rounded_normal", lambda stream, name, k, *rest: real(stream, name, k // 2, *rest))


@sabotage(check_release, "large")
def lattice_noise_without_its_margin(patch: Patch) -> None:
    patch.setattr(lattice, "MARGIN", 0.0)


@sabotage(check_release)
def an_average_of_the_sums_before_noise(patch: Patch) -> None:
    real = SampledGaussian.noisy_mean
    patch.setattr(
        SampledGaussian, "noisy_mean", lambda own, total, *rest: real(own, total, *rest) + total / 99
    )


# ---- who is drawn, and what is read

Rows = NDArray[np.int64]


def sampled(
    name: str, change: Callable[[PoissonSampler, Callable[[int], Rows], int, int], Any], case: str = "short"
) -> None:
    """``change`` makes the rows of a step, from the coins of any."""

    def spoil(patch: Patch) -> None:
        real = PoissonSampler.rows

        def rows(own: PoissonSampler, stream: RandomStream, step: int, points: int) -> Rows:
            return np.asarray(change(own, lambda number: real(own, stream, number, points), step, points))

        patch.setattr(PoissonSampler, "rows", rows)

    spoil.__name__ = name
    sabotage(check_reading, case)(spoil)


sampled("batches of a fixed size", lambda own, coins, k, n: coins(k)[: int(0.3 * n)])
sampled("an oversize batch is cut", lambda own, coins, k, n: coins(k)[:22])
sampled("an empty place is filled", lambda own, coins, k, n: np.union1d(coins(k), [0]))
sampled("coins are those of every second step", lambda own, coins, k, n: coins(k & ~1))
sampled("coins are those of 16 steps before", lambda own, coins, k, n: coins(k % 16), "long")
sampled("the last row is never drawn", lambda own, coins, k, n: coins(k)[coins(k) < n - 1])
sampled("passes in place of coins", lambda own, coins, k, n: np.arange(k % 2, n, 2))
sampled(
    "coins of a weak generator",
    lambda own, coins, k, n: np.flatnonzero(np.random.default_rng(k).random(n) < 0.5),
)


def other_text(name: str, folder: str, change: Callable[[list[str], list[str]], list[str]]) -> None:
    """``change`` makes the texts that are learnt from ``folder``, from its own and the other side's."""

    def spoil(patch: Patch) -> None:
        real = ingredients.texts

        def texts(path: Path) -> Any:
            other = path.with_name("private" if folder == "public" else "public")
            own = list(real(path))
            return iter(change(own, list(real(other))) if path.name == folder else own)

        patch.setattr(ingredients, "texts", texts)

    spoil.__name__ = name
    sabotage(check_reading)(spoil)


other_text("a private row in the plain steps", "public", lambda own, other: [*own, other[0]])
other_text("a private row in a public one's place", "public", lambda own, other: [*own[:-1], other[-1]])
other_text("a public row in the noisy steps", "private", lambda own, other: [*own[:-1], other[0]])
other_text("a private row left out", "private", lambda own, other: own[1:])
other_text("points joined in pairs", "private", lambda own, other: [*map("".join, itertools.pairwise(own))])


@sabotage(check_reading)
def vocabulary_from_private_text(patch: Patch) -> None:
    real = fresh.public_texts
    patch.setattr(fresh, "public_texts", lambda run: [*real(run), *read_column(run.private, "text")])


def more_plain_steps(patch: Patch, when: int) -> None:
    real = ingredients.Ingredients._schedule

    def schedule(own: Any, plain: Any, noisy: Any) -> Any:
        found = real(own, plain, noisy)
        return replace(found, plain=found.plain + (len(noisy.points) % 2 == when))

    patch.setattr(ingredients.Ingredients, "_schedule", schedule)


@sabotage(check_walk, "long")
def a_plain_step_more_where_the_private_count_is_odd(patch: Patch) -> None:
    more_plain_steps(patch, 1)


@sabotage(check_walk, "short")
def a_plain_step_more_where_the_private_count_is_even(patch: Patch) -> None:
    more_plain_steps(patch, 0)


@sabotage(check_reading, "crt-drop")
def masked_points_are_not_dropped(patch: Patch) -> None:
    real = ingredients.Ingredients.private
    patch.setattr(ingredients.Ingredients, "private", lambda *a: replace(real(*a), silent=None))


@sabotage(check_reading, "uedp-bounded")
def caps_are_not_enforced(patch: Patch) -> None:
    patch.setattr(UedpBounded, "kept", lambda _, graph, settings: graph)


# ---- what a noisy step does


def step(check: Check, case: str = "short") -> Callable[[Any], Any]:
    """A noisy step in the place of the real one, which it is given."""

    def listed(changed: Callable[[Any, NoisyPhase, int], None]) -> Any:
        def spoil(patch: Patch) -> None:
            real = NoisyPhase.step
            patch.setattr(NoisyPhase, "step", lambda own, number: changed(real, own, number))

        spoil.__name__ = changed.__name__
        sabotage(check, case)(spoil)
        return changed

    return listed


def sum_of(own: NoisyPhase, number: int) -> Tensor:
    rows = own.sampler.rows(own.stream, number, len(own.points))
    return own.clipped_sum(own.network, own.points, rows, own.mechanism.clip_norm, own.physical_tokens)


def loss_of(own: NoisyPhase) -> float:
    with torch.no_grad():
        return float(own.network.point_losses(own.points.batch([0, 1])).mean())


@step(check_walk, "long")
def a_second_sum_every_16th_step_unledgered(real: Any, own: NoisyPhase, number: int) -> None:
    real(own, number)
    if number % 16 == 15:
        mean = own.mechanism.noisy_mean(sum_of(own, number), own.stream, 10**6 + number)
        phases.descend(own.network, own.descent, mean, number)


@sabotage(check_walk, "long")
def a_second_sum_in_the_same_move(patch: Patch) -> None:
    real = SampledGaussian.noisy_mean

    def noisy_mean(own: Any, total: Tensor, stream: RandomStream, number: int) -> Tensor:
        first = real(own, total, stream, number)
        return first if number % 16 < 15 else (first + real(own, total, stream, 10**6 + number)) / 2

    patch.setattr(SampledGaussian, "noisy_mean", noisy_mean)


@step(check_walk)
def noise_before_the_record(real: Any, own: NoisyPhase, number: int) -> None:
    total = sum_of(own, number)
    mean = own.mechanism.noisy_mean(total, own.stream, number)
    own.ledger.admit(number, total)
    phases.descend(own.network, own.descent, mean, number)


@step(check_walk)
def an_end_by_the_private_loss(real: Any, own: NoisyPhase, number: int) -> None:
    if number < 2 or loss_of(own) > 1e3:
        real(own, number)


@step(check_walk, "stopped")
def small_batches_are_left_out(real: Any, own: NoisyPhase, number: int) -> None:
    if len(own.sampler.rows(own.stream, number, len(own.points))) > 9:
        real(own, number)


@step(check_moves)
def a_rate_by_the_private_loss(real: Any, own: NoisyPhase, number: int) -> None:
    own.descent = replace(own.descent, learning_rate=1e-2 / (1.0 + loss_of(own)))
    real(own, number)


@step(check_moves)
def a_sum_without_noise_beside_the_optimizer(real: Any, own: NoisyPhase, number: int) -> None:
    real(own, number)
    if number == 2:
        now = torch.cat([p.detach().flatten() for p in own.network.parameters()])
        phases.load(own.network, now - 1e-4 * sum_of(own, number))


@step(check_release)
def divided_by_the_realised_batch(real: Any, own: NoisyPhase, number: int) -> None:
    drawn = len(own.sampler.rows(own.stream, number, len(own.points)))
    own.mechanism = replace(own.mechanism, normaliser=float(max(1, drawn)))
    real(own, number)


# ---- the clipped sum

Sum = Callable[[Rows, float], Tensor]


def summed(name: str, change: Callable[[Sum, Rows, float, Any], Tensor], case: str = "short") -> None:
    """``change`` makes the sum of a step, from clipped sums of any rows with any clip."""

    def spoil(patch: Patch) -> None:
        real = ingredients.clipped_sum

        def clipped_sum(
            network: Any, points: Any, rows: Rows, clip: float, tokens: int, **more: Any
        ) -> Tensor:
            return change(lambda r, c: real(network, points, r, c, tokens, **more), rows, clip, network)

        patch.setattr(ingredients, "clipped_sum", clipped_sum)

    spoil.__name__ = name
    sabotage(check_sums, case)(spoil)


def by_tensor(total: Sum, rows: Rows, clip: float, network: Any) -> Tensor:
    sizes = [p.numel() for p in network.parameters()]
    found = total(rows[:0], clip)
    for row in rows:
        parts = torch.split(total(np.array([row]), 1e6), sizes)
        found += torch.cat([clipped(part, clip).float() for part in parts])
    return found


def adaptive(total: Sum, rows: Rows, clip: float, network: Any) -> Tensor:
    norms = [float(total(np.array([row]), 1e6).norm()) for row in rows]
    return total(rows, min([2 * clip, *norms]))


def after_summing(total: Sum, rows: Rows, clip: float, network: Any) -> Tensor:
    return clipped(total(rows, 1e6), len(rows) * clip).float()


for case in ("short", "crt-drop", "uedp-bounded"):
    summed(f"sum not clipped in {case}", lambda total, rows, clip, _: total(rows, 1e6), case)
    summed(f"clipped by tensor in {case}", by_tensor, case)
summed("clipped after summing", after_summing)
summed("clip by the batch", adaptive, "crt-drop")
summed("twice the clip", lambda total, rows, clip, _: total(rows, 2 * clip))
summed("the first point twice", lambda total, rows, clip, _: total(rows, clip) + total(rows[:1], clip))
summed("a piece of 16 and no more", lambda total, rows, clip, _: total(rows[:16], clip))
summed("sum in half precision", lambda total, rows, clip, _: total(rows, clip).half().float())
summed("divided by the tokens", lambda total, rows, clip, _: total(rows, clip) / (1 + len(rows) % 2))


@sabotage(check_sums, "long")
def every_16th_sum_not_clipped(patch: Patch) -> None:
    real, calls = ingredients.clipped_sum, itertools.count(1)
    patch.setattr(
        ingredients,
        "clipped_sum",
        lambda n, p, r, clip, *a, **more: real(n, p, r, 1e6 if next(calls) % 16 == 0 else clip, *a, **more),
    )


def in_norms(patch: Patch, change: Callable[[Any], Any]) -> None:
    real = engine.squared_norms
    patch.setattr(engine, "squared_norms", lambda every, _: real([change(use) for use in every], {}))


@sabotage(check_sums)
def biases_left_out_of_norms_in_batches_over_16(patch: Patch) -> None:
    def without(use: Any) -> Any:
        bias = isinstance(use, gradients.Dense) and use.right.dim() == 2 and use.examples > 16
        return gradients.Dense(torch.zeros_like(use.right)) if bias else use

    in_norms(patch, without)


def first_rows(use: Any) -> Any:
    """What of a use lies in the first 512 rows of its parameter."""
    if isinstance(use, gradients.Dense):
        return gradients.Dense(torch.cat([use.right[:, :512], torch.zeros_like(use.right[:, 512:])], 1))
    if isinstance(use, gradients.Rows):
        return replace(use, right=use.right * (use.left < 512)[..., None])
    return replace(use, left=use.left * (torch.arange(use.height) < 512))


@sabotage(check_sums, "large")
def norms_over_the_first_512_rows(patch: Patch) -> None:
    in_norms(patch, first_rows)


@sabotage(check_sums, "large")
def formed_norms_over_one_slab(patch: Patch) -> None:
    real = gradients.formed_squares
    patch.setattr(gradients, "formed_squares", lambda every, rows: real([*map(first_rows, every)], rows))


@sabotage(check_sums, "large")
def tied_weights_counted_as_two(patch: Patch) -> None:
    real = gradients._inner
    patch.setattr(
        gradients,
        "_inner",
        lambda one, other, grams: tuple((one is other) * part for part in real(one, other, grams)),
    )


@sabotage(check_sums, "large")
def sums_over_the_first_2048_rows(patch: Patch) -> None:
    real = matmul._put

    def put(total: Tensor, found: Tensor, fresh: bool) -> None:
        real(total, found * (total.storage_offset() < CHUNK_ROWS * total.shape[1]), fresh)

    patch.setattr(matmul, "_put", put)


@sabotage(check_sums, "crt-drop")
def pieces_after_the_first_left_out(patch: Patch) -> None:
    real = engine.summed
    patch.setattr(engine, "summed", lambda network, pieces, every: real(network, pieces[:1], every))


@sabotage(check_sums)
def embeddings_are_not_clipped(patch: Patch) -> None:
    real = gradients.Rows.add_to
    patch.setattr(
        gradients.Rows,
        "add_to",
        lambda own, total, each, fresh: real(own, total, torch.ones_like(each), fresh),
    )


# ---- ledger and card


@sabotage(check_walk)
def a_step_that_is_not_recorded(patch: Patch) -> None:
    real = RecordLog.append

    def append(own: RecordLog, type: str, body: dict[str, Any]) -> Any:  # noqa: A002 (the product's name)
        if body.get("step") == 2:
            return SimpleNamespace(type="none", body={})
        return real(own, type, body)

    patch.setattr(RecordLog, "append", append)


@sabotage(check_card)
def batch_sizes_on_record(patch: Patch) -> None:
    real = RecordLog.append
    patch.setattr(
        RecordLog,
        "append",
        lambda own, type, body: real(own, type, body | {"rows": 23} if type == NOISY_STEP else body),  # noqa: A006
    )


def in_ledger(patch: Patch, **entries: Any) -> None:
    real = StepLedger.__init__

    def init(own: Any, *arguments: Any) -> None:
        real(own, *arguments)
        vars(own).update(entries)

    patch.setattr(StepLedger, "__init__", init)


@sabotage(check_card)
def events_of_another_rate(patch: Patch) -> None:
    inner = {"class": "GaussianDpEvent", "noise_multiplier": 1.5}
    in_ledger(patch, _event={"class": "PoissonSampledDpEvent", "sampling_probability": 0.25, "event": inner})


@sabotage(check_sums)
def digests_of_sums_without_a_key(patch: Patch) -> None:
    in_ledger(patch, _key=b"")


@sabotage(check_card)
def more_noise_told_than_drawn(patch: Patch) -> None:
    real = PoissonGaussian.event
    patch.setattr(
        PoissonGaussian, "event", lambda own: real(replace(own, noise_multiplier=2 * own.noise_multiplier))
    )


@sabotage(check_card)
def sensitivity_of_a_point_that_is_exchanged_is_one_clip(patch: Patch) -> None:
    patch.setattr(SampledGaussian, "sensitivity", lambda own, relation: own.clip_norm)


@sabotage(check_card)
def a_relation_that_costs_less(patch: Patch) -> None:
    patch.setattr(Crt, "relation", Relation.ADD_OR_REMOVE)


# ---- the root


def root_of(name: str, made: Callable[[], bytes]) -> None:
    def spoil(patch: Patch) -> None:
        patch.setattr(RandomStream, "from_entropy", staticmethod(lambda: RandomStream(made())))

    spoil.__name__ = name
    sabotage(check_draws)(spoil)


def stretched(octets: bytes) -> bytes:
    return hashlib.blake2b(octets, digest_size=32).digest()


root_of("a root of 16 random bits", lambda: stretched(secrets.token_bytes(2)))
root_of("16 bits of the system's octets", lambda: secrets.token_bytes(32)[:2] + bytes(30))
root_of("a root of the clock", lambda: stretched(str(time.time()).encode()))
root_of("a root of the machine's generator", lambda: random.Random().randbytes(32))


@sabotage(check_draws)
def draws_whose_names_lack_the_index(patch: Patch) -> None:
    real = RandomStream.octets
    patch.setattr(RandomStream, "octets", lambda own, name, k, count, index=0: real(own, name, k, count))


@sabotage(check_draws, "long")
def draws_of_few_steps(patch: Patch) -> None:
    real = RandomStream.octets
    patch.setattr(RandomStream, "octets", lambda own, name, k, *rest: real(own, name, k % 16, *rest))


@sabotage(check_draws)
def a_checkpoint_that_holds_the_key(patch: Patch) -> None:
    real_draw, real_write, roots = fresh.drawn, Checkpoint.write, []

    def drawn(model: Any, own: Any, stream: RandomStream) -> Any:
        roots.append(stream.root.hex())
        return real_draw(model, own, stream)

    def write(own: Checkpoint, steps: int) -> None:
        real_write(replace(own, binding=f"{own.binding} {roots[0]}"), steps)

    patch.setattr(fresh, "drawn", drawn)
    patch.setattr(Checkpoint, "write", write)


# ---- resuming


def forgetful(patch: Patch) -> None:
    """A ledger that lets a replayed step pass with any sum."""
    real = StepLedger.admit

    def admit(own: Any, number: int, total: Tensor) -> None:
        if number not in own._known:
            real(own, number, total)

    patch.setattr(StepLedger, "admit", admit)


@dataclass
class SinceBegun:
    """The number of a step since its attempt began: each has a stream of its own."""

    stream: RandomStream | None = None
    first: int = 0

    def __call__(self, stream: RandomStream, number: int) -> int:
        if stream is not self.stream:
            self.stream, self.first = stream, number
        return number - self.first


@sabotage(check_reading, "stopped")
def coins_begin_again_where_a_training_resumes(patch: Patch) -> None:
    forgetful(patch)
    real, since = PoissonSampler.rows, SinceBegun()
    patch.setattr(PoissonSampler, "rows", lambda own, stream, k, n: real(own, stream, since(stream, k), n))


@sabotage(check_walk, "stopped")
def noise_begins_again_where_a_training_resumes(patch: Patch) -> None:
    real, since = SampledGaussian.noisy_mean, SinceBegun()
    patch.setattr(
        SampledGaussian,
        "noisy_mean",
        lambda own, total, stream, k: real(own, total, stream, since(stream, k)),
    )


@sabotage(check_moves, "stopped")
def a_replayed_step_with_another_sum(patch: Patch) -> None:
    real, seen = PoissonSampler.rows, set()

    def rows(own: PoissonSampler, stream: RandomStream, number: int, points: int) -> Rows:
        again = number in seen
        seen.add(number)
        return real(own, stream, number, points)[again:]

    forgetful(patch)
    patch.setattr(PoissonSampler, "rows", rows)


@sabotage(check_moves, "stopped")
def a_checkpoint_without_the_optimizers_memory(patch: Patch) -> None:
    patch.setattr(fresh, "_optimizers", lambda *phases: [])


# ---- users and entities


def coin_keys(name: str, case: str, purpose: str, change: Callable[[int], int]) -> None:
    def spoil(patch: Patch) -> None:
        real = federated_units.coin
        patch.setattr(
            federated_units,
            "coin",
            lambda stream, of, k, key: real(stream, of, k, change(key) if of == purpose else key),
        )

    spoil.__name__ = name
    sabotage(check_reading, case)(spoil)


coin_keys("user coins keyed by 8 bits", "user-level", "user coins", lambda key: key & 255)
coin_keys("user coins keyed by 64 bits", "uedp-alg1", "user coins", lambda key: key >> 64)
coin_keys("entity coins keyed by 8 bits", "uedp-alg1", "entity coins", lambda key: key & 255)
coin_keys("extended coins keyed by a place", "uedp-alg1", "extended coins", lambda key: key & 2**64 - 1)


@sabotage(check_reading, "user-level")
def users_of_a_fixed_number(patch: Patch) -> None:
    real = RandomStream.permutation
    patch.setattr(
        federated_units.PoissonUsers,
        "drawn",
        lambda own, stream, k, users: [users[i] for i in sorted(real(stream, "users", k, len(users))[:4])],
    )


def weighed(name: str, change: Callable[[Any, Vector], Vector]) -> None:
    def spoil(patch: Patch) -> None:
        real = federated_units.SampledEntities.of
        patch.setattr(federated_units.SampledEntities, "of", lambda own, *rest: change(own, real(own, *rest)))

    spoil.__name__ = name
    sabotage(check_sums, "uedp-alg1")(spoil)


weighed("weights by the number of points", lambda own, each: each * len(own.incidence) / 40)
weighed("points of sampled entities are left out", lambda own, each: np.where(each > 0, 0.0, 1.0))


def updated(name: str, change: Callable[[Tensor, float], Tensor]) -> None:
    """``change`` makes what a user adds of what her steps moved."""

    def spoil(patch: Patch) -> None:
        patch.setattr(local_update, "rounded", change)

    spoil.__name__ = name
    for case in ("user-level", "uedp-alg1"):
        spoil.__name__ = f"{name} in {case}"
        sabotage(check_sums, case)(spoil)


updated("updates not clipped", lambda update, clip: update)
updated(
    "updates clipped in halves", lambda update, clip: torch.cat([clipped(u, clip) for u in update.chunk(2)])
)


@sabotage(check_sums, "user-level")
def users_after_the_eighth_left_out(patch: Patch) -> None:
    real = federated.cohorts
    patch.setattr(federated, "cohorts", lambda *rest: [*real(*rest)][:1])


@sabotage(check_sums, "user-level")
def every_pass_of_a_user_clipped_by_itself(patch: Patch) -> None:
    real = local_update.train_locally

    def train_locally(network: Any, user: Any, rule: Any) -> None:
        for _ in range(rule.epochs):
            before = local_update.flat(network)
            real(network, user, replace(rule, epochs=1))
            local_update.load(network, before + clipped(local_update.flat(network) - before, rule.clip_norm))

    patch.setattr(local_update, "train_locally", train_locally)
    patch.setattr(local_update, "rounded", lambda update, clip: update)


@sabotage(check_sums, "user-level")
def a_user_goes_on_where_the_last_one_stopped(patch: Patch) -> None:
    real, loaded = local_update.load, []

    def load(network: Any, values: Tensor) -> None:
        if not loaded or loaded[-1] is not values:
            loaded.append(values)
            real(network, values)

    patch.setattr(local_update, "load", load)


@pytest.mark.parametrize("name", SABOTAGES)
def test_sabotage_is_seen(
    name: str, case_of: Callable[[str], Case], oracle_of: Callable[[str], Oracle]
) -> None:
    spoil, case, check = SABOTAGES[name]
    oracle = oracle_of(case)
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch)
        found = Trained(recorded(case_of(case)), oracle)
    # some are refused by the training itself, before the step that a check would look at
    if found.recording.error is None:
        with pytest.raises(AssertionError):
            check(found)
