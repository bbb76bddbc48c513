"""Correlated noise: oracle figures, disjoint blocks on neighbouring data, resumes, and what must go red."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.linalg import toeplitz

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import TrainSettings, loop, train_model
from redactory.training.accounting import Spending, compute_epsilon, compute_total_epsilon
from redactory.training.accounting.epsilons import compute_epsilon_curve, compute_group_epsilon
from redactory.training.accounting.verification import bound_epsilon
from redactory.training.band_selection import choose_band_count, compare_band_counts, compute_lr_scale
from redactory.training.guarantee.card import make_guarantee_card
from redactory.training.guarantee.plan import plan_guarantee
from redactory.training.mechanisms.banded_matrix import BandedMatrix, compute_step_sizes, optimize_matrix
from redactory.training.mechanisms.mechanism import BandedGaussian, PoissonGaussian, Relation, parse_mechanism_json
from redactory.training.steps import sample_rows
from tests.training.conftest import PRIVATE_TEXTS, make_small_settings, write_run
from tests.training.greybox import GreyBoxTrial, Recorder
from tests.training.test_resume import Killed, killing

SUBSTITUTION, ADD_OR_REMOVE = Relation.SUBSTITUTION, Relation.ADD_OR_REMOVE
BANDS, ROWS, CLIP = 3, 10, 0.2


def own(rate: float = 0.2, noise: float = 0.5, bands: int = BANDS, steps: int = ROWS) -> BandedGaussian:
    """A mechanism with the clip of the grey box."""
    return BandedGaussian(rate, noise, CLIP, 8.0, matrix=optimize_matrix(bands, steps, ("constant", 0.0)))


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "bands", "expected"),
    [(0.01, 1.0, 1000, 2, 4.2137), (0.02, 0.8, 150, 4, 7.2795), (0.01, 0.6, 400, 8, 14.5032)],
)
def test_both_accountants_match_the_theory(rate: float, noise: float, steps: int, bands: int, expected: float) -> None:
    """Computed outside of this project by dp_accounting: ⌈T/b⌉ steps at rate b·q, one point exchanged."""
    spent = (Spending(own(rate, noise, bands, steps), steps),)
    assert compute_total_epsilon(spent, 1e-5, SUBSTITUTION) == pytest.approx(expected, abs=2e-4)
    second = bound_epsilon(spent, 1e-5, SUBSTITUTION)
    assert second.lower <= expected <= second.upper <= 1.01 * expected


def test_a_point_there_or_not_costs_as_a_poisson_sample_of_its_group() -> None:
    spent = (Spending(own(0.01, 1.0, 2, 1000), 1000),)
    assert compute_total_epsilon(spent, 1e-5, ADD_OR_REMOVE) == pytest.approx(2.77, abs=5e-3)


def test_what_is_spent_before_the_end_counts_every_block_that_was_begun() -> None:
    curve = compute_epsilon_curve(Spending(own(), ROWS), 1e-5, SUBSTITUTION, max_points=ROWS)
    for steps in (1, BANDS, BANDS + 1, ROWS):
        plain = PoissonGaussian(own().group_rate, 0.5, 1.0, 1.0)
        assert curve.get_upper_bound(steps) == compute_epsilon(
            plain, math.ceil(steps / BANDS), 1e-5, SUBSTITUTION, 1e-3
        )


def test_what_is_not_proved_has_no_figure() -> None:
    with pytest.raises(GuaranteeError, match="groups"):
        compute_group_epsilon((Spending(own(), ROWS),), 1e-5, 2)
    head = own().to_json()
    assert parse_mechanism_json(head) == own()
    for change in (
        {"coefficients": [1.1, 0.1, 0.1]},
        {"coefficients": [0.9, 0.9]},
        {"coefficients": [0.0, 0.5, 0.5]},
        {"steps": ROWS + 1},
    ):
        with pytest.raises(GuaranteeError):
            parse_mechanism_json({**head, "matrix": {**head["matrix"], **change}})
    with pytest.raises(GuaranteeError, match="rate"):
        own(rate=0.4)


Saboteur = Callable[[pytest.MonkeyPatch], None]
Sampled = Callable[..., NDArray[np.int64]]


def check_columns(sampled: Sampled = sample_rows) -> None:
    """Every column is b rows high and of norm at most 1; those that are cut off are not shorter."""
    matrix = own().matrix
    dense = np.array([[matrix.compute_row(t).get(j, 0.0) for j in range(ROWS)] for t in range(ROWS)])
    norms = np.linalg.norm(dense, axis=0)
    assert norms.max() <= 1.0
    assert norms.min() >= 1.0 - 1e-9
    places = np.subtract.outer(np.arange(ROWS), np.arange(ROWS))
    assert not dense[(places < 0) | (places >= BANDS)].any()


def check_groups(sampled: Sampled = sample_rows) -> None:
    """At b·q = 1 every point is drawn in every b-th step, from its first one on, and in no other."""
    certain, stream = own(rate=1.0 / BANDS), RandomStream.from_seed(3)
    drawn = np.array([np.isin(np.arange(60), sampled(certain, stream, t, 60)) for t in range(12)])
    for begin in range(BANDS, 12, BANDS):
        assert (drawn[begin : begin + BANDS] == drawn[:BANDS]).all()
    assert (drawn[:BANDS].sum(axis=0) == 1).all()
    assert drawn[:BANDS].sum(axis=1).min() > 10


@settings(max_examples=30)
@given(st.integers(2, 9), st.integers(0, 10**7), st.integers(1, 40))
def test_a_point_stays_in_its_group_however_long_the_training_is(bands: int, late: int, points: int) -> None:
    """At b·q = 1: two steps draw the same points if they are a multiple of b apart, and else no point twice.

    A point's group is also the same whatever other points there are.
    """
    certain = own(rate=1.0 / bands, bands=bands, steps=bands + 1)
    stream = RandomStream.from_seed(8)

    def drawn(step: int) -> set[int]:
        return set(sample_rows(certain, stream, step, points).tolist())

    begin, late = [drawn(step) for step in range(bands)], late - late % bands
    assert sorted(point for group in begin for point in group) == list(range(points))
    for around in (bands, 63, 64, 65, 1000, 2**16, 2**20 + 1, 2**24, 10**9, late):
        assert drawn(around) == begin[around % bands]
    more = set(sample_rows(certain, stream, late, points + 7).tolist())
    assert more & set(range(points)) == begin[0]


def check_blocks(sampled: Sampled = sample_rows) -> None:
    """What enters the noise on D and D' differs in a block of rows for each draw: a column times one vector.

    Under other groups no block is longer than 2C either; but two draws meet in one.
    """
    trial, recorders = GreyBoxTrial(mechanism=own(rate=1.0 / BANDS)), (Recorder(), Recorder())
    first, second = [*PRIVATE_TEXTS[:5], "9" * 18], [*PRIVATE_TEXTS[:5], "7" * 17]
    one, other = (trial.make_step(t, r) for t, r in zip((first, second), recorders, strict=True))
    for phase in (one, other):
        phase.sample_step_rows = lambda t, own=phase: sampled(own.mechanism, own.stream, t, own.examples)  # type: ignore[misc, method-assign]
    for step in range(ROWS):
        other.network.load_state_dict(one.network.state_dict())
        one.step(step)
        other.step(step)
    rows = torch.stack(recorders[0].sums) - torch.stack(recorders[1].sums)
    begins = int(rows.norm(dim=1).nonzero()[0])
    assert begins < BANDS
    matrix, sizes = trial.mechanism.matrix, []
    for at in range(begins, ROWS, BANDS):
        block = rows[at : at + BANDS]
        column = torch.tensor([matrix.compute_row(at + place)[at] for place in range(len(block))])
        assert torch.allclose(block, torch.outer(column, block[0] / column[0]), atol=1e-9)
        sizes.append(float(block.norm()))
    assert CLIP < max(sizes) <= 2.0 * CLIP * (1.0 + 1e-9)


def by_count(mechanism: Any, stream: RandomStream, step: int, points: Any) -> NDArray[np.int64]:
    return sample_rows(mechanism, stream, step, points if isinstance(points, int) else len(points))


def by_text(mechanism: Any, stream: RandomStream, step: int, points: Any) -> NDArray[np.int64]:
    """Groups that the text decides: its length, as any digest of it."""
    if isinstance(points, int):
        return by_count(mechanism, stream, step, points)
    rows = range(len(points))
    groups = [len(points.get_targets(row)) % BANDS for row in rows]
    return np.array([row for row in rows if groups[row] == step % BANDS], np.int64)


def again(mechanism: Any, stream: RandomStream, step: int, points: Any) -> NDArray[np.int64]:
    """Groups drawn again after a resume in step 6."""
    later = RandomStream.from_seed(4) if step >= 6 else stream
    return by_count(mechanism, later, step, points)


def twice(mechanism: Any, stream: RandomStream, step: int, points: Any) -> NDArray[np.int64]:
    """Two groups in every step."""
    return np.union1d(*(by_count(mechanism, stream, at, points) for at in (step, step + 1)))


def check_everything(sampled: Sampled) -> None:
    for check in (check_columns, check_groups, check_blocks):
        check(sampled)


def test_the_product_holds() -> None:
    check_everything(by_count)


@pytest.mark.parametrize("sampled", [by_text, again, twice])
def test_no_other_groups_hold(sampled: Sampled) -> None:
    with pytest.raises(AssertionError):
        check_everything(sampled)


def test_no_other_matrix_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense matrix is stopped for want of older sums where no check would see it; a long column is seen."""
    dense = {"compute_row": lambda one, step: dict.fromkeys(range(step + 1), 0.3)}
    long = {"_compute_column_scale": lambda one, column: 2.0}
    for spoilt in (dense, long):
        with monkeypatch.context() as patch:
            for name, value in spoilt.items():
                patch.setattr(BandedMatrix, name, value)
            with pytest.raises(AssertionError):
                check_columns()
            with pytest.raises((AssertionError, CheckFailed)):
                check_blocks(by_count)


@pytest.mark.parametrize("noise", ["float", "lattice"])
def test_the_model_moves_along_the_inverse_of_the_noise(noise: Any) -> None:
    """Without points the gradients are C⁻¹z: against the dense matrix, solved."""
    mechanism = replace(own(), noise=noise)
    phase = GreyBoxTrial(mechanism=mechanism).make_step([], Recorder())
    zero = torch.zeros(40, dtype=torch.float64)
    found = torch.stack([phase.compute_noisy_gradient(step, zero) for step in range(ROWS)])
    z = torch.stack([mechanism.compute_noisy_sum(zero, phase.stream, step) for step in range(ROWS)])
    rows = [mechanism.matrix.compute_row(t) for t in range(ROWS)]
    dense = np.array([[row.get(j, 0.0) for j in range(ROWS)] for row in rows])
    assert np.allclose(np.linalg.solve(dense, z.numpy()) / mechanism.normaliser, found.numpy())


def test_the_error_is_that_of_the_dense_matrices() -> None:
    rates, matrix = compute_step_sizes(("linear", 0.0), 24), optimize_matrix(4, 24, ("linear", 0.0))
    dense = np.array([[matrix.compute_row(t).get(j, 0.0) for j in range(24)] for t in range(24)])
    rows = np.tril(np.ones((24, 24))) * rates @ np.linalg.inv(dense)
    assert matrix.compute_rms_error(rates) == pytest.approx(math.sqrt((rows**2).sum() / 24))
    whole = toeplitz([*matrix.coefficients, *[0.0] * 20], [0.0] * 24)
    assert matrix.noise_gain == pytest.approx(np.linalg.norm(np.linalg.inv(whole)[-1]))
    assert matrix.compute_rms_error(rates) < 0.7 * optimize_matrix(1, 24, ("linear", 0.0)).compute_rms_error(rates)


def test_auto_takes_the_least_error_at_the_same_epsilon_and_one_where_it_wins() -> None:
    wide = TrainSettings(noise_bands="auto", sampling_rate=0.01)
    found = compare_band_counts(wide, 300, SUBSTITUTION)
    assert found[0].bands == 1
    assert found[0].error_ratio == 1.0
    assert choose_band_count(wide, 300, SUBSTITUTION) > 1
    for one in found[:3]:
        plain = PoissonGaussian(one.sampling_rate, one.noise_multiplier, 1.0, 1.0)
        assert compute_epsilon(plain, one.compositions, 1e-5, SUBSTITUTION) == pytest.approx(8.0, rel=1e-2)
    eight = next(one for one in found if one.bands == 8)
    noisy = own(0.01, eight.noise_multiplier, 8, 300)
    ratio = eight.noise_multiplier / found[0].noise_multiplier
    assert compute_lr_scale(wide, noisy, SUBSTITUTION) == pytest.approx(noisy.matrix.noise_gain * ratio)
    assert choose_band_count(wide.model_copy(update={"epsilon": 1.0, "sampling_rate": 0.1}), 300, SUBSTITUTION) == 1
    # two bands promise an error of 0.95 here, and gave a worse model
    near = wide.model_copy(update={"epsilon": 2.9, "delta": 8e-4, "sampling_rate": 0.02})
    assert min(one.error_ratio for one in compare_band_counts(near, 400, SUBSTITUTION)) < 0.96
    assert choose_band_count(near, 400, SUBSTITUTION) == 1
    plan = plan_guarantee(wide.model_copy(update={"group_sizes": ()}))
    assert [row["bands"] for row in plan["bands"] if row["chosen"]] == [choose_band_count(wide, 300, SUBSTITUTION)]
    assert plan["epsilon"] <= 8.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer": "redact-only"}, "proved for crt, crt-drop, dpsgd"),
        ({"noise_bands": "auto"}, "noise_multiplier"),
        ({"noise_bands": 5}, "at most 4"),
    ],
)
def test_what_is_not_proved_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        make_small_settings(**{"noise_bands": 2, **changes})


def test_a_rule_that_exchanges_two_rows_is_refused(tmp_path: Path) -> None:
    folded = {"mode": "folded", "scope": "corpus", "rule": "S2", "group_size": 2}
    with pytest.raises(ConfigurationError, match=r"train\.noise_bands"):
        train_model(write_run(tmp_path / "RUN", dedup=folded), make_small_settings(noise_bands=2))


def test_a_resumed_training_has_its_bits(fresh_run: Callable[[], RunFolder], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_small_settings(noise_bands=2, checkpoint_steps=3, public_share=0.5, group_sizes=(2,))
    whole, killed = fresh_run(), fresh_run()
    with killing(-1) as moments:
        train_model(whole, settings)
    source, seen = random.Random(5), set[int]()

    def noticed(path: Path, data: bytes, real: Any = loop.write_secret) -> None:
        real(path, data)
        seen.add(path.stat().st_mode & 0o777)

    monkeypatch.setattr(loop, "write_secret", noticed)
    for _ in range(3):
        with killing(source.randrange(1, moments[0])), suppress(Killed):
            train_model(killed, settings)
    train_model(killed, settings)
    assert file_sha256(killed.get_model_folder("crt").weights) == file_sha256(whole.get_model_folder("crt").weights)
    assert seen == {0o600}  # what holds private sums goes the way of keys, encrypted where the run is
    assert not killed.get_checkpoint_path("crt").exists()
    head = read_records(whole.get_model_folder("crt").ledger)[0].body
    matrix = optimize_matrix(2, 8, ("constant", 0.0))
    assert head["sampler"] == "banded_poisson_with_secret_groups"
    assert head["mechanism"]["event"]["matrix"] == matrix.digest
    card = make_guarantee_card(whole, "crt")
    assert (card["bands"], card["group_rate"], card["matrix"]) == (2, 0.5, matrix.digest)
    plain = PoissonGaussian(0.5, 1.0, 1.0, 1.0)
    assert card["epsilon_substitution"] == compute_epsilon(plain, 4, settings.delta, SUBSTITUTION)
    assert card["epsilon_group"] == {"2": None}
    assert "correlated" in card["reasons"]["epsilon_group"]
    assert matrix.digest in " ".join(card["assumptions"])
