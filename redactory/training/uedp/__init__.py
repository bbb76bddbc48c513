"""User-entity differential privacy (UeDP): one user and one sensitive entity hidden at once.

Every epsilon printed here is an upper bound under a relation it names, for a training that met its
conditions; where one fails there is a reason instead of a number.  What the papers print is computed too,
always with the words "as published, not a guarantee".

- ``entities``, ``incidence``, ``units``: users and entities of every point, as a hypergraph;
- ``bounding``: contribution bounding, and which of its rules are stable under what;
- ``federated``, ``local_update``: Algorithm 1 of UeDP and DP-FedAvg;
- ``algorithm1``, ``bounded_accounting``, ``published``: their figures.
"""
