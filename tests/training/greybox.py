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
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import IntArray, TokenizedExamples
from redactory.training.mechanisms.mechanism import Mechanism, PoissonGaussian
from redactory.training.model import build_classifier, build_language_network
from redactory.training.models.hugging_face import SequenceClassifier, add_adapters
from redactory.training.models.network import Network
from redactory.training.models.settings import LoraSettings
from redactory.training.settings import TrainSettings
from redactory.training.steps import NoisySteps, ScheduledOptimizer, make_optimizer
from redactory.training.tokenizer import Tokenizer
from redactory.training.uedp.units import EncodedExamples, encode_examples
from tests.training.conftest import PUBLIC_TEXTS
from tests.training.tiny_folders import build_bert_classifier

TOKENIZER = Tokenizer.from_texts(PUBLIC_TEXTS, 50)
MECHANISM = PoissonGaussian(sampling_rate=0.4, noise_multiplier=0.5, clip_norm=0.2, normaliser=8.0)
STEPS, LEARNING_RATE = 5, 0.5
NETWORK_SIZES = {"layers": 1, "width": 8, "heads": 2, "context": 32}
MODEL_SECTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 5, "hidden_size": 6},
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 5, "hidden_size": 6, "layers": 2},
    "gpt2": {"kind": "gpt2", **NETWORK_SIZES},
    "llama": {"kind": "llama", **NETWORK_SIZES},
}
BILSTM_SECTION = {"kind": "bilstm", "embedding_size": 5, "hidden_size": 4, "bottleneck": 3}
CLASSES = ("no digit", "digit")
BAG_SECTION = {"kind": "bag", "embedding_size": 5}
CLASSIFIERS = ["classifier", "lstm classifier", "awd-lstm classifier", "bilstm classifier", "bag classifier"]
KINDS = [*MODEL_SECTIONS, "gpt2 with adapters", *CLASSIFIERS]
Clipper = Callable[..., Tensor]


class Recorder:
    """Keeps what is admitted: the grey box's view of the noise primitive's input."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
        """Keep the sum."""
        assert step == len(self.sums)
        self.sums.append(clipped_sum.clone())


@dataclass(frozen=True)
class AlignedStream(RandomStream):
    """Coins and dropout that travel with a point: where row ``gone`` is missing, later rows keep theirs."""

    missing_row: int = 0

    def uniform(self, purpose: str, step: int, count: int, index: int = 0) -> NDArray[np.float64]:
        """As in the whole table; of its coins and groups, without the missing row's."""
        if purpose not in ("coins", "groups"):
            return super().uniform(purpose, step, count, index)
        return np.delete(super().uniform(purpose, step, count + 1, index), self.missing_row)

    def random_bytes(self, purpose: str, step: int, count: int, index: int = 0) -> bytes:
        """As in the whole table; dropout of rows is drawn by a row's number there."""
        moved = purpose.startswith("dropout") and purpose.endswith("rows") and index >= self.missing_row
        return super().random_bytes(purpose, step, count, index + moved)


@dataclass(frozen=True)
class GreyBoxTrial:
    """One network, and the parts of a noisy step that a saboteur may exchange."""

    kind: str = "lstm"
    sum_clipped: Clipper = compute_clipped_sum
    sample_step_rows: Callable[..., IntArray] = Mechanism.sample_rows
    mechanism: Any = MECHANISM
    drops_masked: bool = False
    tokenizer: Tokenizer = TOKENIZER
    max_tokens: int = 20
    precision: torch.dtype = torch.float64

    def build_network(self) -> Network:
        """The network, in float64 unless another precision is asked for."""
        network = _build_network(self.kind, self.tokenizer)
        network.initialise(RandomStream.from_seed(2))
        return network.to(self.precision)

    def tokenize_examples(self, texts: Sequence[str]) -> TokenizedExamples:
        """The texts as rows; a classifier's label is whether the text has a digit."""
        return self.encode_texts(texts).examples

    def encode_texts(self, texts: Sequence[str]) -> EncodedExamples:
        """The texts as the product reads them: cut, and silent where they are dropped."""
        options: dict[str, Any] = {"trainer": "crt-drop" if self.drops_masked else "crt"}
        if self.kind in CLASSIFIERS:
            options = {"trainer": "dpsgd", "task": "classify", "classes": CLASSES, "model": BILSTM_SECTION}
        settings = TrainSettings(max_tokens=self.max_tokens, **options)
        return encode_examples(
            texts,
            settings,
            self.tokenizer,
            lambda: np.array([any(map(str.isdigit, t)) for t in texts], np.int64),
            self.drops_masked,
        )

    def make_step(self, texts: Sequence[str], recorder: Recorder, missing_row: int | None = None) -> NoisySteps:
        """A noisy phase on ``texts``; ``gone`` names the row that is missing from them."""
        network, stream = self.build_network(), RandomStream.from_seed(9)
        if missing_row is not None:
            stream = AlignedStream(stream.root, seeded=True, missing_row=missing_row)
        encoded = self.encode_texts(texts)
        phase = NoisySteps(
            network=network,
            scheduled_optimizer=ScheduledOptimizer(make_optimizer(network, "sgd"), LEARNING_RATE),
            examples=encoded.examples,
            mechanism=self.mechanism,
            max_physical_batch_tokens=64,
            stream=stream,
            ledger=recorder,
            dropped_mask=encoded.excluded_mask,
        )
        phase.sum_clipped_gradients = lambda examples, rows: self.sum_clipped(  # type: ignore[method-assign]
            network, examples, rows, phase.mechanism.clip_norm, phase.max_physical_batch_tokens
        )
        phase.sample_step_rows = lambda step: self.sample_step_rows(phase.mechanism, stream, step, len(phase.examples))  # type: ignore[method-assign]
        return phase

    def measure_distances(
        self, first: Sequence[str], second: Sequence[str], missing_row: int | None = None
    ) -> Iterator[float]:
        """‖sum on D − sum on D'‖ at every step, D' walking with the parameters that D released."""
        ours, theirs = Recorder(), Recorder()
        first_step, second_step = self.make_step(first, ours), self.make_step(second, theirs, missing_row)
        for step in range(STEPS):
            second_step.network.load_state_dict(first_step.network.state_dict())
            first_step.step(step)
            second_step.step(step)
            yield float((ours.sums[-1] - theirs.sums[-1]).norm())


def _build_network(kind: str, tokenizer: Tokenizer) -> Network:
    if kind == "classifier":
        return SequenceClassifier(build_bert_classifier(2, tokenizer.size))
    if kind in CLASSIFIERS:
        section = {**MODEL_SECTIONS, "bilstm": BILSTM_SECTION, "bag": BAG_SECTION}[kind.removesuffix(" classifier")]
        classes = ("no digit", "digit")
        settings = TrainSettings(trainer="dpsgd", task="classify", classes=classes, model=section)
        return build_classifier(settings.model, tokenizer, CLASSES)
    if kind == "gpt2 with adapters":
        network: Any = build_language_network(
            TrainSettings(model=MODEL_SECTIONS["gpt2"], max_tokens=32).model, tokenizer
        )
        network.initialise(RandomStream.from_seed(1))
        network.model = add_adapters(network.model, LoraSettings(rank=2), "base")
        assert isinstance(network, Network)
        return network
    return build_language_network(TrainSettings(model=MODEL_SECTIONS[kind], max_tokens=32).model, tokenizer)
