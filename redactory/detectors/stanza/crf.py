"""Marginals of a linear-chain CRF: the probability of each tag at each token, over all tag sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def marginals(emissions: Matrix, transitions: Matrix) -> Matrix:
    """P(tag of token t is j), by forward-backward in log space.

    ``emissions`` [n, tags] and ``transitions`` [tags, tags] (from row to column) are unnormalised log
    weights: a sequence y weighs exp(sum_t emissions[t, y_t] + sum_t transitions[y_t, y_(t+1)]).  As in
    Stanza's ``CRFLoss`` nothing is added for the start or the end.  Returns [n, tags]; each row sums to 1
    up to rounding.  ``ValueError`` where a weight is not finite or a shape does not fit.
    """
    emissions = np.asarray(emissions, dtype=np.float64)
    transitions = np.asarray(transitions, dtype=np.float64)
    count, tags = emissions.shape
    if transitions.shape != (tags, tags):
        raise ValueError("transitions must be square, with one row a tag")
    if not (np.isfinite(emissions).all() and np.isfinite(transitions).all()):
        raise ValueError("weights must be finite")
    if count == 0:
        return np.empty((0, tags))
    # one loop for both directions: row 0 runs forward, row 1 backward over the mirrored chain
    weights = np.stack([emissions, emissions[::-1]])
    moves = np.stack([transitions, transitions.T])
    reached = np.empty_like(weights)
    reached[:, 0] = weights[:, 0]
    for t in range(1, count):
        reached[:, t] = weights[:, t] + _log_sum_exp(reached[:, t - 1, :, None] + moves)
    # both directions count the token's own emission
    joint = reached[0] + reached[1, ::-1] - emissions
    joint = np.exp(joint - joint.max(axis=1, keepdims=True))
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _log_sum_exp(scores: Matrix) -> Matrix:
    """log sum exp over axis 1, safe for large weights."""
    top = scores.max(axis=1)
    return np.asarray(top + np.log(np.exp(scores - top[:, None]).sum(axis=1)))
