"""The grey box: what enters the noise on neighbouring data under equal randomness, for every network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import clipped_sum
from redactory.training.data import EncodedPoints, Ids
from redactory.training.mechanism import BandedGaussian, PoissonGaussian
from redactory.training.model import classifier_of, network_of
from redactory.training.models.hugging_face import ClassifierNetwork, with_adapters
from redactory.training.models.network import Network
from redactory.training.models.settings import LoraSettings
from redactory.training.settings import TrainSettings
from redactory.training.steps import BandedPhase, Descent, NoisyPhase, make_optimizer, sampled_rows
from redactory.training.tokenizer import Tokenizer
from redactory.training.uedp.units import Learnt, learnt
from tests.training.conftest import PUBLIC_TEXTS
from tests.training.tiny_folders import bert_classifier

TOKENIZER = Tokenizer.from_texts(PUBLIC_TEXTS, 50)
MECHANISM = PoissonGaussian(sampling_rate=0.4, noise_multiplier=0.5, clip_norm=0.2, normaliser=8.0)
STEPS, RATE = 5, 0.5
SIZES = {"layers": 1, "width": 8, "heads": 2, "context": 32}
SECTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 5, "hidden_size": 6},
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 5, "hidden_size": 6, "layers": 2},
    "gpt2": {"kind": "gpt2", **SIZES},
    "llama": {"kind": "llama", **SIZES},
}
BOTH_WAYS = {"kind": "bilstm", "embedding_size": 5, "hidden_size": 4, "bottleneck": 3}
CLASSES = ("no digit", "digit")
BAG = {"kind": "bag", "embedding_size": 5}
CLASSIFIERS = ["classifier", "lstm classifier", "awd-lstm classifier", "bilstm classifier", "bag classifier"]
KINDS = [*SECTIONS, "gpt2 with adapters", *CLASSIFIERS]
Clipper = Callable[..., Tensor]


class Recorder:
    """Keeps what is admitted: the grey box's view of the noise primitive's input."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        """Keep the sum."""
        assert step == len(self.sums)
        self.sums.append(clipped_sum.clone())


@dataclass(frozen=True)
class Travelling(RandomStream):
    """Coins and dropout that travel with a point: where row ``gone`` is missing, later rows keep theirs."""

    gone: int = 0

    def uniform(self, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
        """As in the whole table; of its coins and groups, without the missing row's."""
        if purpose not in ("coins", "groups"):
            return super().uniform(purpose, step, count, index)
        return np.delete(super().uniform(purpose, step, count + 1, index), self.gone)

    def octets(self, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        """As in the whole table; dropout of rows is drawn by a row's number there."""
        moved = purpose.startswith("dropout") and purpose.endswith("rows") and index >= self.gone
        return super().octets(purpose, step, count, index + moved)


@dataclass(frozen=True)
class Trial:
    """One network, and the parts of a noisy step that a saboteur may exchange."""

    kind: str = "lstm"
    clipper: Clipper = clipped_sum
    sampled: Callable[..., Ids] = sampled_rows
    mechanism: Any = MECHANISM
    drops_masked: bool = False
    tokenizer: Tokenizer = TOKENIZER
    max_tokens: int = 20
    precision: torch.dtype = torch.float64

    def network(self) -> Network:
        """The network, in float64 unless another precision is asked for."""
        made = _network(self.kind, self.tokenizer)
        made.initialise(RandomStream.from_seed(2))
        return made.to(self.precision)

    def points(self, texts: Sequence[str]) -> EncodedPoints:
        """The texts as rows; a classifier's label is whether the text has a digit."""
        return self.learnt(texts).points

    def learnt(self, texts: Sequence[str]) -> Learnt:
        """The texts as the product reads them: cut, and silent where they are dropped."""
        wanted: dict[str, Any] = {"trainer": "crt-drop" if self.drops_masked else "crt"}
        if self.kind in CLASSIFIERS:
            wanted = {"trainer": "dpsgd", "task": "classify", "classes": CLASSES, "model": BOTH_WAYS}
        own = TrainSettings(max_tokens=self.max_tokens, **wanted)
        return learnt(
            texts,
            own,
            self.tokenizer,
            lambda: np.array([any(map(str.isdigit, t)) for t in texts], np.int64),
            self.drops_masked,
        )

    def phase(self, texts: Sequence[str], recorder: Recorder, gone: int | None = None) -> NoisyPhase:
        """A noisy phase on ``texts``; ``gone`` names the row that is missing from them."""
        network, stream = self.network(), RandomStream.from_seed(9)
        if gone is not None:
            stream = Travelling(stream.root, seeded=True, gone=gone)
        found = self.learnt(texts)
        kind = BandedPhase if isinstance(self.mechanism, BandedGaussian) else NoisyPhase
        phase = kind(
            network=network,
            descent=Descent(make_optimizer(network, "sgd"), RATE),
            points=found.points,
            mechanism=self.mechanism,
            max_physical_batch_tokens=64,
            stream=stream,
            ledger=recorder,
            dropped=found.silent,
            clipped_sum=self.clipper,
        )
        phase.drawn = lambda step: self.sampled(phase.mechanism, stream, step, len(phase.points))  # type: ignore[method-assign]
        return phase

    def distances(self, first: Sequence[str], second: Sequence[str], gone: int | None = None) -> Iterator[float]:
        """‖sum on D − sum on D'‖ at every step, D' walking with the parameters that D released."""
        ours, theirs = Recorder(), Recorder()
        one, other = self.phase(first, ours), self.phase(second, theirs, gone)
        for step in range(STEPS):
            other.network.load_state_dict(one.network.state_dict())
            one.step(step)
            other.step(step)
            yield float((ours.sums[-1] - theirs.sums[-1]).norm())


def _network(kind: str, tokenizer: Tokenizer) -> Network:
    if kind == "classifier":
        return ClassifierNetwork(bert_classifier(2, tokenizer.size))
    if kind in CLASSIFIERS:
        section = {**SECTIONS, "bilstm": BOTH_WAYS, "bag": BAG}[kind.removesuffix(" classifier")]
        classes = ("no digit", "digit")
        settings = TrainSettings(trainer="dpsgd", task="classify", classes=classes, model=section)
        return classifier_of(settings.model, tokenizer, CLASSES)
    if kind == "gpt2 with adapters":
        network: Any = network_of(TrainSettings(model=SECTIONS["gpt2"], max_tokens=32).model, tokenizer)
        network.initialise(RandomStream.from_seed(1))
        network.model = with_adapters(network.model, LoraSettings(rank=2), "base")
        assert isinstance(network, Network)
        return network
    return network_of(TrainSettings(model=SECTIONS[kind], max_tokens=32).model, tokenizer)
