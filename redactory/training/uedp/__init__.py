"""User-entity differential privacy (UeDP): one user and one sensitive entity hidden at once.

Every epsilon is an upper bound under a relation it names; a missing one has a reason. ``entities``,
``incidence`` and ``units`` describe the users and entities of every example as a hypergraph. ``bounding``
bounds contributions. ``federated`` and ``local_update`` are Algorithm 1 of UeDP and DP-FedAvg;
``federated_accounting`` and ``bounded_accounting`` compute the epsilons.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
