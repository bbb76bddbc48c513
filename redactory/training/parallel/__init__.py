"""One training on several processes of a machine: the same weights, ledger and guarantee as on one.

One process leads.  It alone has the run, the root key and the ledger: it draws the sample of a step and
cuts it into pieces, as it would alone.  It deals the pieces to the others, with the parameters as they are;
they send back what each piece gives, and the leader adds it **in the order of the pieces**, admits the sum
to the ledger, adds noise once and moves the parameters.  What it deals are token ids, no text, and of the
stream at most what dropout of those points is drawn from.  All of it goes through gloo on the loopback
interface, one result after the other: sums that gloo adds would be added in an order of its own.

Formal guarantees: a piece's clipped sum is the same function of the parameters, the piece and its draws in
every process: float arithmetic of one machine at one number of threads.  So the sum of a step is, bit for
bit, that of one process, and with it everything that follows: the digest in the ledger, the noise, which is
keyed by the step and drawn once for that one sum, and the weights.  The sample is drawn as by one process.
The mechanism is thus the same function of data and coins, and its guarantee is the same theorem
(``docs/guarantees.md``, "Several processes").
"""

from redactory.training.parallel.leader import piece_map

__all__ = ["piece_map"]
