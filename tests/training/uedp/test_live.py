"""The progress line of ``uedp-bounded``: an upper bound that ends at the card's figure."""

from __future__ import annotations

from redactory.foundation.errors import upwards
from redactory.training.guarantee.figures import live_epsilon
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.mechanism import PoissonGaussian
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounded_accounting import BoundedTraining, affected, epsilon

STEPS = 50
SETTINGS = TrainSettings(
    trainer="uedp-bounded", public_text="public.jsonl", bounding={"k_user": 2, "k_entity": 2}
)
MECHANISM = PoissonGaussian(0.05, 4.0, 1.0, 1.0)


def exact(steps: int) -> float:
    training = BoundedTraining(0.05, 4.0, steps, k_user=2, k_entity=2)
    return epsilon(training, affected(training), SETTINGS.delta)


def shown(line: str) -> float:
    return float(line.removeprefix(", ε ≤ "))


def test_no_line_is_below_what_was_spent_and_the_last_one_is_the_cards() -> None:
    remark = live_epsilon(TrainingSpec(SETTINGS, MECHANISM, STEPS))
    for done in (1, 7, 30):
        assert shown(remark(done)) >= exact(done)
    assert exact(STEPS) <= shown(remark(STEPS)) <= exact(STEPS) * 1.01  # three digits


def test_a_bound_is_rounded_upwards() -> None:
    for value in (0.5274, 1.2301, 12.341, 0.00012341, 99.91, 999.4, 3.0):
        assert value <= float(upwards(value, 3)) <= value * 1.0101
    found = (upwards(1.2301, 3), upwards(1.1), upwards(0.0), upwards(float("inf")))
    assert found == ("1.24", "1.1", "0", "inf")
