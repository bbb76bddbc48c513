"""User-entity differential privacy (UeDP): one user and one sensitive entity hidden at once.

The room promises that every epsilon it prints is an upper bound under a relation it names, for a training
whose preconditions it was told; where one fails there is a reason instead of a number.  What the papers
print is computed too, always with the words "as published, not a guarantee".

- ``published``: the papers' epsilon;
- ``relations``, ``stability``: which worlds are compared, which selections are stable under that;
- ``algorithm1_accounting``: Algorithm 1 with sound accounting;
- ``bounded_accounting``: ``uedp-bounded``, the recommended algorithm, and the noise for a target;
- ``entities``, ``hubs``, ``incidence``, ``units``: users and entities of every point, as a hypergraph;
- ``bounding``, ``planning``: contribution bounding, and how much each cap keeps.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redactory.training.uedp.algorithm1 import (
        Algorithm1,
        Algorithm1Conditions,
        Algorithm1Figures,
        Rule,
        Spread,
        SpreadSource,
        paper_noise_ratio,
        patent_noise_ratio,
        sound_epsilon,
    )
    from redactory.training.uedp.bounded_accounting import (
        BoundedTraining,
        Budget,
        Choice,
        Conditions,
        Plan,
        affected,
        calibrate,
        curve,
        local,
        plan,
        removal,
        zero_out,
    )
    from redactory.training.uedp.bounding import Bounded, bound, cap_spread, check_stable
    from redactory.training.uedp.entities import EntityNames, EntitySettings, Mention, hub_list
    from redactory.training.uedp.incidence import Incidence
    from redactory.training.uedp.published import (
        AS_PUBLISHED,
        Estimator,
        PublishedEpsilon,
        published_epsilon,
        published_rate,
    )
    from redactory.training.uedp.units import Copies, incidence_of_columns, read_incidence
    from redactory.training.units.settings import Adjacency, Constants, Figure, Protect, relation

__all__ = [
    "AS_PUBLISHED",
    "Adjacency",
    "Algorithm1",
    "Algorithm1Conditions",
    "Algorithm1Figures",
    "Bounded",
    "BoundedTraining",
    "Budget",
    "Choice",
    "Conditions",
    "Constants",
    "Copies",
    "EntityNames",
    "EntitySettings",
    "Estimator",
    "Figure",
    "Incidence",
    "Mention",
    "Plan",
    "Protect",
    "PublishedEpsilon",
    "Rule",
    "Spread",
    "SpreadSource",
    "affected",
    "bound",
    "calibrate",
    "cap_spread",
    "check_stable",
    "curve",
    "hub_list",
    "incidence_of_columns",
    "local",
    "paper_noise_ratio",
    "patent_noise_ratio",
    "plan",
    "published_epsilon",
    "published_rate",
    "read_incidence",
    "relation",
    "removal",
    "sound_epsilon",
    "zero_out",
]

_WHERE = {
    "AS_PUBLISHED": "uedp.published",
    "Adjacency": "units.relations",
    "Algorithm1": "uedp.algorithm1_accounting",
    "Algorithm1Conditions": "uedp.algorithm1_accounting",
    "Algorithm1Figures": "uedp.algorithm1_accounting",
    "Bounded": "uedp.bounding",
    "BoundedTraining": "uedp.bounded_accounting",
    "Budget": "uedp.planning",
    "Choice": "uedp.planning",
    "Conditions": "uedp.bounded_accounting",
    "Constants": "units.relations",
    "Copies": "uedp.units",
    "EntityNames": "uedp.entities",
    "EntitySettings": "uedp.entities",
    "Estimator": "uedp.published",
    "Figure": "units.relations",
    "Incidence": "uedp.incidence",
    "Mention": "uedp.entities",
    "Plan": "uedp.planning",
    "Protect": "units.relations",
    "PublishedEpsilon": "uedp.published",
    "Rule": "uedp.algorithm1_accounting",
    "Spread": "uedp.algorithm1_accounting",
    "SpreadSource": "uedp.algorithm1_accounting",
    "affected": "uedp.bounded_accounting",
    "bound": "uedp.bounding",
    "calibrate": "uedp.bounded_accounting",
    "cap_spread": "uedp.bounding",
    "check_stable": "uedp.stability",
    "curve": "uedp.bounded_accounting",
    "hub_list": "uedp.hubs",
    "incidence_of_columns": "uedp.units",
    "local": "uedp.bounded_accounting",
    "paper_noise_ratio": "uedp.algorithm1_accounting",
    "patent_noise_ratio": "uedp.algorithm1_accounting",
    "plan": "uedp.planning",
    "published_epsilon": "uedp.published",
    "published_rate": "uedp.published",
    "read_incidence": "uedp.units",
    "relation": "units.relations",
    "removal": "uedp.bounded_accounting",
    "sound_epsilon": "uedp.algorithm1_accounting",
    "zero_out": "uedp.bounded_accounting",
}


def __getattr__(name: str) -> Any:
    # on first use: the settings are read by rooms that must start without numpy, scipy and pyarrow
    if name not in _WHERE:
        raise AttributeError(f"module 'redactory.training.uedp' has no attribute '{name}'")
    return getattr(importlib.import_module(f"redactory.training.{_WHERE[name]}"), name)
