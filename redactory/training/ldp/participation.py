"""How often a sentence is sent, and whether that can be seen (``docs/guarantees.md``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from redactory.foundation.settings import Settings
from redactory.training.settings import Rate


class FixedSends(Settings):
    """Every sentence is sent a fixed number of times."""

    kind: Literal["fixed"] = Field("fixed", description="Every sentence is sent equally often.")
    sends: PositiveInt = Field(
        1,
        description="J, how often each sentence is sent. One is enough: J sends at noise z carry what one "
        "send at z/√J carries, and the server may pass over a message as often as it likes.",
    )


class VisibleCoins(Settings):
    """In each step a coin decides whether a sentence is sent; the server sees which ones were."""

    kind: Literal["visible"] = Field(description="A coin for each step; who sends is seen.")
    rate: Rate = Field(description="p, the probability that a sentence is sent in a step.")
    steps: PositiveInt = Field(description="T, the number of steps.")


class HiddenCoins(Settings):
    """In each step every slot sends one message: of its sentence by a secret coin, else of noise alone."""

    kind: Literal["hidden"] = Field(description="A message in every step; whether of noise alone is secret.")
    rate: Rate = Field(description="p, the probability that a message is of the sentence.")
    steps: PositiveInt = Field(description="T, the number of steps, and of messages of every slot.")


Participation = Annotated[FixedSends | VisibleCoins | HiddenCoins, Field(discriminator="kind")]
