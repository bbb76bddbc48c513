"""Local differential privacy: a sentence is encoded, clipped and noised before it leaves its user (LDP-NLP).

- ``settings``: the settings of users and server; public constants;
- ``encoder``: how a sentence becomes a vector, and how the encoder is trained;
- ``user``, ``server``: the two parties and the messages between them;
- ``accounting``, ``card``: sound epsilons of the messages, and the card that states them.

Proofs: ``docs/guarantees.md``, "Local differential privacy".
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
