"""Local differential privacy: a sentence is encoded, clipped and noised before it leaves its user (LDP-NLP).

- ``settings``: the settings of both sides; public constants, all of them;
- ``accounting``: epsilon of the messages, soundly, and the noise for a target; ``second`` confirms it;
- ``forecast``: the figures of a plan;
- ``published``: what the paper would print, never a guarantee.

Proofs: ``docs/guarantees.md``, "Local differential privacy".
"""

from __future__ import annotations
