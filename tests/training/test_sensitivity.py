"""Grey box: what enters the noise on neighbouring data moves as far as declared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.training.clipping import compute_clipped_sum
from redactory.training.mechanisms.lattice import NOISE_MARGIN
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.models.network import Network
from redactory.training.tokenizer import Tokenizer
from tests.training.conftest import PRIVATE_TEXTS
from tests.training.greybox import KINDS, MECHANISM, STEPS, TOKENIZER, GreyBoxTrial, Recorder

SECRET, MASKED = "Hello, my name is Grace Hopper 4711.", f"Hello, my name is {MASK}."
DATA = PRIVATE_TEXTS[:12]
EXCHANGED, REMOVED = (
    MECHANISM.get_sensitivity(Relation.SUBSTITUTION),
    MECHANISM.get_sensitivity(Relation.ADD_OR_REMOVE),
)
ROUNDING = 1 + 1e-9
ALWAYS = replace(MECHANISM, sampling_rate=1.0)
FEW = ["9" * 18, SECRET]
APART = ["9" * 18, *["a" * 18, "Thank you", "b" * 18, SECRET] * 3]


def check_exchange(trial: GreyBoxTrial) -> None:
    """A point exchanged moves the sum by at most 2C, and not at all where its coin left it out."""
    for place, (first, second) in enumerate([(SECRET, MASKED), ("9" * 18, "a")]):
        rest = DATA[place:]
        assert max(trial.measure_distances([*rest, first], [*rest, second])) <= EXCHANGED * ROUNDING


def check_removal(trial: GreyBoxTrial) -> None:
    """A point taken away moves the sum by at most C, wherever it stood."""
    for texts, place in ((FEW, 1), (APART, 0)):
        without = [*texts[:place], *texts[place + 1 :]]
        assert max(trial.measure_distances(texts, without, missing_row=place)) <= REMOVED * ROUNDING


def check_group(trial: GreyBoxTrial) -> None:
    """K points exchanged move it by at most 2C for each of them that was drawn."""
    first, second = [SECRET, "9" * 18, *DATA, "b"], [MASKED, "a", *DATA, ""]
    exchanged = np.array([0, 1, len(first) - 1])
    for step, distance in enumerate(trial.measure_distances(first, second)):
        drawn = np.isin(exchanged, trial.mechanism.sample_rows(RandomStream.from_seed(9), step, len(first))).sum()
        assert distance <= drawn * EXCHANGED * ROUNDING


CHECKS = (check_exchange, check_removal, check_group)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CHECKS)
def test_every_network_holds(kind: str, check: Callable[[GreyBoxTrial], None]) -> None:
    check(GreyBoxTrial(kind))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 11), st.text("ab 19", max_size=12))
def test_any_exchanged_point_moves_the_sum_by_at_most_the_declared_sensitivity(place: int, other: str) -> None:
    exchanged = [*DATA[:place], other, *DATA[place + 1 :]]
    assert max(GreyBoxTrial().measure_distances(DATA, exchanged)) <= EXCHANGED * ROUNDING


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_met_by_points_that_pull_apart(kind: str) -> None:
    """The sensitivity is not only an upper bound: without it a factor of two could hide."""
    found = list(GreyBoxTrial(kind).measure_distances([*DATA, "9" * 18], [*DATA, "a" * 18]))
    assert max(found) > 1.1 * MECHANISM.clip_norm
    assert 0.0 in found  # steps whose coin left the point out do not differ at all


def test_a_dropped_point_is_one_that_is_not_there() -> None:
    dropping = GreyBoxTrial(drops_masked=True)
    found = list(dropping.measure_distances([*DATA, SECRET], [*DATA, MASKED]))
    assert 0.0 < max(found) <= REMOVED * ROUNDING
    other = f"{MASK} and {SECRET}"
    assert max(dropping.measure_distances([*DATA, other], [*DATA, f"{MASK} and {MASK}"])) == 0.0
    assert max(GreyBoxTrial().measure_distances([*DATA, other], [*DATA, f"{MASK} and {MASK}"])) > 0.0


WORDS = Tokenizer.from_texts(["please call flower may now"] * 2, 50)
EDGES = [
    (" flower may 7", f" {MASK} may 7"),
    ("please call flower may 7", f"please call {MASK} may 7"),
    ("please call flower", f"please call {MASK}"),
    ("flower", MASK),
    ("", MASK),
]


@pytest.mark.parametrize("max_tokens", range(1, 7))
@pytest.mark.parametrize("kind", ["lstm", "gpt2"])
def test_a_mask_behind_the_cut_drops_its_point_as_one_before_it_does(kind: str, max_tokens: int) -> None:
    """The mask before, at and behind the last token that is read; a space joins the word it stood for."""
    trial = GreyBoxTrial(kind, drops_masked=True, tokenizer=WORDS, max_tokens=max_tokens, mechanism=ALWAYS)
    for secret, masked in EDGES:
        found = list(trial.measure_distances(["now", secret, "call"], ["now", masked, "call"]))
        # one clipped gradient is there or gone, in every step
        assert found == pytest.approx([REMOVED] * STEPS, rel=1e-3)
        assert max(found) <= REMOVED * ROUNDING


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_across_the_cut_and_the_padding_is_one(kind: str, precision: torch.dtype) -> None:
    """Points that are empty, end at the cut, or make all others be padded; in both precisions."""
    trial = GreyBoxTrial(kind, max_tokens=6, precision=precision)
    for first, second in (("", "a" * 30), ("12345", "123456"), (f"ab{MASK}", f"abcdefg{MASK}"), ("", MASK)):
        found = max(trial.measure_distances([*DATA[:3], "a", first], [*DATA[:3], "a", second]))
        assert found <= EXCHANGED * (ROUNDING if precision == torch.float64 else 1.0 + NOISE_MARGIN / 4)


@dataclass(frozen=True)
class Overflowing(GreyBoxTrial):
    """A network that overflows at every padded place: the row of the padding, and positions beyond four."""

    def build_network(self) -> Network:
        network = super().build_network()
        with torch.no_grad():
            for name, table in network.named_parameters():
                if "position" in name or "wpe" in name:
                    table[4:] = 1e200
                elif table.ndim == 2 and len(table) == TOKENIZER.size and "head" not in name:
                    table[TOKENIZER.pad_id] = torch.nan if "output" not in name else 0.0
        return network


@pytest.mark.parametrize("kind", ["lstm", "llama", "classifier", "lstm classifier", "bilstm classifier"])
def test_a_longer_neighbour_takes_no_point_out_by_its_padding(kind: str) -> None:
    """Its gradient is not finite where it is padded, and is clipped as ever where it stands alone."""
    trial = Overflowing(kind, mechanism=ALWAYS)
    rest = list("abcde")
    ours, theirs = (clip_once(trial, [*rest, text]) for text in ("a", "a" * 18))
    assert float((ours - theirs).norm()) <= EXCHANGED * ROUNDING
    assert float(theirs.norm()) > 2.0 * MECHANISM.clip_norm


def clip_once(trial: GreyBoxTrial, texts: list[str]) -> Tensor:
    points = trial.tokenize_examples(texts)
    return compute_clipped_sum(trial.build_network(), points, np.arange(len(texts)), MECHANISM.clip_norm, 4096)


def test_an_empty_batch_is_a_step_of_noise() -> None:
    recorder = Recorder()
    phase = GreyBoxTrial().make_step([], recorder)
    before = [p.detach().clone() for p in phase.network.parameters()]
    for step in range(STEPS):
        phase.step(step)
    assert len(recorder.sums) == STEPS
    assert not any(bool(total.any()) for total in recorder.sums)
    pairs = zip(before, phase.network.parameters(), strict=True)
    assert all(bool((old != new).all()) for old, new in pairs)


@pytest.mark.parametrize("kind", ["lstm", "gpt2"])
def test_single_precision_moves_a_distance_less_than_the_margin_of_the_noise_covers(kind: str) -> None:
    """Exchanging one of 256 points moves the computed sum as it moves the exact one, but for 2·MARGIN·C / 4.

    ``docs/guarantees.md``, "Floating point".
    """
    trial = GreyBoxTrial(kind)
    single = trial.build_network().float()
    double = copy.deepcopy(single).double()
    rest, rows = [f"{DATA[number % len(DATA)]} {number}" for number in range(255)], np.arange(256)

    def moved(network: Network, precision: torch.dtype) -> Tensor:
        first, second = (
            compute_clipped_sum(network, trial.tokenize_examples([*rest, text]), rows, 1.0, 4096).to(precision).double()
            for text in (SECRET, MASKED)
        )
        return first - second

    exact = moved(double, torch.float64)
    assert 0.0 < float((moved(single, torch.float32) - exact).norm()) < 2.0 * NOISE_MARGIN / 4
    # the measure sees rounding that would matter
    assert float((moved(single, torch.bfloat16) - exact).norm()) > 2.0 * NOISE_MARGIN
