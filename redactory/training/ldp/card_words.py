"""The words of a local service's card that do not depend on figures."""

from __future__ import annotations

from typing import Any

UNITS = {1: "one sentence of a user", 2: "one pair of sentences of a user"}
"""What is protected, by the vectors of a message."""
MEANING = (
    "Two worlds are neighbours when {unit} is exchanged for any other one, with the same class "
    "(substitution). The server sees every message, and may be anybody."
)
SEEDED = (
    "test mode: seed known. Whoever knows the seed can subtract the noise; the figures hold for nobody else"
)
NOT_FINITE = "no epsilon below 4096 at this delta: the noise is too small for so many messages"
NOT_PUBLISHED_FINITE = "the paper's formula has no value below 4096 here"

PARTICIPATION = {
    "fixed": "every sentence is sent {sends} time(s): that it is there, and how often, is seen",
    "visible": "in each of {steps} steps a sentence is sent with probability {rate:g}; in which is seen",
    "hidden": "in each of {steps} steps every slot sends one message: with probability {rate:g} of its "
    "sentence, else of noise alone; in which is secret",
}
_SEEN = {
    "fixed": "how many sentences there are, and in how many messages each was sent",
    "visible": "how many sentences there are, and in which steps each was sent",
    "hidden": "how many sentences there are; a message of each in every step",
}

ENCODERS = {
    "public": "The encoder was made of text, and of a folder if encoder.base names one, that are public and "
    "no part of any user's, as whoever made it declared: nothing here checks it.",
    "declared public": "The encoder's folder is public, as whoever used it declared: nothing here checks it.",
    "dpsgd": "The encoder was trained on private text by DP-SGD; its steps are composed with the messages, "
    "for a sentence that is one point of that training's private side and one slot here. A word of its "
    "public side may be in the vocabulary.",
}
ASSUMPTIONS = (
    "The encoder is frozen, and the same for all messages: none depends on another sentence.",
    "The noise and the coins came from the operating system's entropy on the user's side, unless this card "
    "says that they were seeded.",
    "Nothing else leaves the user's side that was computed from her sentence: no log, no error, no timing.",
    "Noise is an exactly rounded Gaussian, added as whole numbers, so that its addition gives nothing away. "
    "How the clipped vector itself is rounded is covered by a margin of the noise, not proved.",
)
NOT_COVERED = (
    "the class of a training sentence: it is sent in clear",
    "that a user takes part, from where and when: messages come over a network",
    "several sentences of one user together, or one sentence in training and in a query: they compose; a "
    "budget for each user (--budget) counts them",
    "what the same sentence gives away in another service, or to whoever else it was sent",
    "answers: they are a function of the noisy query, and tell no more than it; but users see them",
)
NOTES = {
    "epsilon": "of one unit over all its messages, to whoever sees all of them: as a training sentence, or "
    "as a query, which is sent in the same way",
    "as_published": "the paper's formulas at the same noise: not a guarantee",
}
MAIN = {
    "fixed": "the exact curve of one Gaussian",
    "visible": "privacy loss distributions, pessimistic, of steps whose coins are told",
    "hidden": "privacy loss distributions, pessimistic (connect the dots), composed under a tilt",
}


def server_sees(participation: str, pairs: bool) -> list[str]:
    """Everything that reaches the server, noisy vectors first."""
    vectors = "two noisy vectors" if pairs else "a noisy vector, or one of each token place,"
    return [
        f"{vectors} in each message, of a length that is the same for all",
        "the class of each training sentence, in clear",
        "a random number for each sentence (its slot), the same in all its messages",
        _SEEN[participation],
    ]


def participation_in_words(participation: dict[str, Any]) -> str:
    """How often a sentence is sent, and what of that can be seen."""
    return PARTICIPATION[participation["kind"]].format(**participation)
