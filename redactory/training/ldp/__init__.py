"""Local differential privacy: a sentence is encoded, clipped and noised before it leaves its user (LDP-NLP).

- ``settings``: the settings of both sides; public constants, all of them;
- ``encoder``, ``pretraining``: what a sentence becomes, and how that was learnt;
- ``user``, ``message``, ``server``: both sides, and what passes between them;
- ``accounting``, ``card``: epsilon of the messages, soundly, and what is said of it.

Proofs: ``docs/guarantees.md``, "Local differential privacy".
"""
