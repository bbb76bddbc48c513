"""Training of language models on a finished run, with a guarantee that is a theorem about the executed code.

``crt`` (SGD on public, DP-SGD on masked private examples) and its baselines ``dpsgd`` and ``sgd`` share one network, a
tokenizer with a public vocabulary, exact per-example clipping, true Poisson sampling, one random stream and one ledger.
Epsilons come from the ledger alone; an interrupted training resumes bit for bit. Proofs: ``docs/guarantees.md``.
"""

import lazy_loader

# import on first use: programs that must start without torch read the settings
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
