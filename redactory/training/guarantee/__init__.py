"""What may be promised of a training: one spec, one accountant, one card.

``spec`` says what of a training decides its figures; ``figures`` computes them; ``plan`` reads them before
a training, ``budget`` before it may begin, ``live`` while it runs, ``card`` once it is over (from the facts
that ``ledgerfacts`` proves), and ``compose`` of several; ``page`` is the card for people; the words of all
are in ``words.toml``.
"""
