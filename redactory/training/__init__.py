"""Training: language models on a finished run, with a guarantee that is a theorem about the code that ran.

``crt`` (SGD on public points, DP-SGD on masked private ones) and its baselines ``dpsgd`` and ``sgd``
share one network, one tokenizer whose vocabulary is public, exact per-example clipping, true Poisson
sampling, one random stream and one ledger.  An epsilon comes from the ledger alone; an interrupted
training goes on bit for bit.  ``docs/guarantees.md`` has the proofs.
"""

import lazy_loader

# on first use: the settings are read by rooms that must start without torch
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
