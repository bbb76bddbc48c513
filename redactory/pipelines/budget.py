"""Budget: what the trainings that name one budget have booked, held against its limit."""

from __future__ import annotations

from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.models import require_training_packages


def budget(config: Given) -> dict[str, Any]:
    """What was spent of the budget that ``config`` names in ``train.budget``; nothing is written.

    Returns {budget, unit, epsilon, delta, spent, trainings: [{training, steps, delta, epsilon_after}]}:
    ``epsilon`` is the limit, ``spent`` what all trainings cost one unit together, at the configured
    ``delta``, rounded up; ``epsilon_after`` what was spent once that training was booked.  What is left is
    not their difference: what trainings cost together is less than the sum (``docs/guarantees.md``,
    "Several models").

    ``ConfigurationError`` where no budget is named, ``GuaranteeError`` where the file counts another unit
    or at another delta, or is no budget, ``CheckFailed`` where it was changed.
    """
    settings = load_config(config).train
    if settings.budget is None:
        raise ConfigurationError("train.budget: no budget is named here: give its path and its epsilon")
    require_training_packages()
    from redactory.training.budget import Budget, cost_of
    from redactory.training.guarantee import unit_of

    named = settings.budget
    return {"budget": str(named.path), **Budget(named, unit_of(settings), cost_of(settings)).told()}
