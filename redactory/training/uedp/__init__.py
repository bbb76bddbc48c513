"""User-entity differential privacy (UeDP): one user and one sensitive entity hidden at once.

Every epsilon is an upper bound under a relation it names; where there is none, there is a reason.

- ``entities``, ``incidence``, ``units``: users and entities of every point, as a hypergraph;
- ``bounding``: contribution bounding, and which of its rules are stable under what;
- ``federated``, ``local_update``: Algorithm 1 of UeDP and DP-FedAvg;
- ``algorithm1``, ``bounded_accounting``: their figures.
"""
