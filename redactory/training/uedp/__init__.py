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
    from redactory.training.uedp.algorithm1_accounting import (
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
        Conditions,
        affected,
        calibrate,
        curve,
        local,
        removal,
        zero_out,
    )
    from redactory.training.uedp.bounding import Bounded, bound, cap_spread
    from redactory.training.uedp.entities import EntityNames, EntitySettings, Mention
    from redactory.training.uedp.hubs import hub_list
    from redactory.training.uedp.incidence import Incidence
    from redactory.training.uedp.planning import Budget, Choice, Plan, plan
    from redactory.training.uedp.published import (
        AS_PUBLISHED,
        Estimator,
        PublishedEpsilon,
        published_epsilon,
        published_rate,
    )
    from redactory.training.uedp.relations import Adjacency, Constants, Figure, Protect, relation
    from redactory.training.uedp.stability import check_stable
    from redactory.training.uedp.units import Copies, incidence_of_columns, read_incidence

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
    "AS_PUBLISHED": "published",
    "Adjacency": "relations",
    "Algorithm1": "algorithm1_accounting",
    "Algorithm1Conditions": "algorithm1_accounting",
    "Algorithm1Figures": "algorithm1_accounting",
    "Bounded": "bounding",
    "BoundedTraining": "bounded_accounting",
    "Budget": "planning",
    "Choice": "planning",
    "Conditions": "bounded_accounting",
    "Constants": "relations",
    "Copies": "units",
    "EntityNames": "entities",
    "EntitySettings": "entities",
    "Estimator": "published",
    "Figure": "relations",
    "Incidence": "incidence",
    "Mention": "entities",
    "Plan": "planning",
    "Protect": "relations",
    "PublishedEpsilon": "published",
    "Rule": "algorithm1_accounting",
    "Spread": "algorithm1_accounting",
    "SpreadSource": "algorithm1_accounting",
    "affected": "bounded_accounting",
    "bound": "bounding",
    "calibrate": "bounded_accounting",
    "cap_spread": "bounding",
    "check_stable": "stability",
    "curve": "bounded_accounting",
    "hub_list": "hubs",
    "incidence_of_columns": "units",
    "local": "bounded_accounting",
    "paper_noise_ratio": "algorithm1_accounting",
    "patent_noise_ratio": "algorithm1_accounting",
    "plan": "planning",
    "published_epsilon": "published",
    "published_rate": "published",
    "read_incidence": "units",
    "relation": "relations",
    "removal": "bounded_accounting",
    "sound_epsilon": "algorithm1_accounting",
    "zero_out": "bounded_accounting",
}


def __getattr__(name: str) -> Any:
    # on first use: the settings are read by rooms that must start without numpy, scipy and pyarrow
    if name not in _WHERE:
        raise AttributeError(f"module 'redactory.training.uedp' has no attribute '{name}'")
    return getattr(importlib.import_module(f"redactory.training.uedp.{_WHERE[name]}"), name)
