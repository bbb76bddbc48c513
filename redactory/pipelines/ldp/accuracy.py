"""How often a local service names the right class, with fresh noise on every query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.accuracy import accuracy
from redactory.foundation.progress import Progress
from redactory.pipelines.ldp.rows import Example

if TYPE_CHECKING:
    from redactory.training.ldp.encoder import SentenceEncoder
    from redactory.training.ldp.server import ServerSide

_SMALLEST = 1e-12


@dataclass(frozen=True)
class _Asked:
    """A service as a classifier: every text becomes a query, ``noisy`` or, for comparison, without noise."""

    server: ServerSide
    source: SentenceEncoder
    noisy: bool

    @property
    def classes(self) -> tuple[str, ...]:
        return self.server.settings.classes

    def log_probs(self, texts: Sequence[Any], batch_size: int = 0) -> NDArray[np.float64]:
        """Natural log probability of every class for every text: float64 [texts, classes]."""
        told = self._by_noise(texts) if self.noisy else self._without(texts)
        even = dict.fromkeys(self.classes, 1.0 / len(self.classes))
        rows = [[(one["probabilities"] if one else even)[name] for name in self.classes] for one in told]
        found: NDArray[np.float64] = np.log(np.maximum(np.array(rows), _SMALLEST))
        return found

    def _by_noise(self, texts: Sequence[Any]) -> list[dict[str, Any] | None]:
        from redactory.training.ldp.message import Message
        from redactory.training.ldp.user import UserSide

        # an evaluation promises nothing of its texts, but draws as a user would
        side = UserSide(self.source, self.server.settings.model_copy(update={"seed": None}))
        messages = [Message.from_json(one.to_json()) for one in side.query_messages(texts)]
        return side.read(self.server.answers(messages))

    def _without(self, texts: Sequence[Any]) -> list[dict[str, Any] | None]:
        from redactory.training.ldp.layer import DPLayer
        from redactory.training.ldp.message import Message

        settings = self.server.settings
        layer = DPLayer(settings.clip_norm, settings.noise())
        found = self.source.represent(texts, settings.represent)
        clipped = layer.clip(found.flatten(0, 1) if settings.pairs else found).view(found.shape).float()
        queries = [
            Message("query", f"{row:032x}", 0, None, values.numpy(), self.server.encoder)
            for row, values in enumerate(clipped)
        ]
        return [*self.server.answers(queries)]


def measured(
    server: ServerSide, source: SentenceEncoder, examples: Sequence[Example], draws: int, progress: Progress
) -> dict[str, Any]:
    """Accuracy over ``draws`` of the noise of every query, and what no noise on queries would give."""
    texts: Any = [example.text for example in examples]
    classes = [example.label for example in examples]
    noisy: Any = _Asked(server, source, noisy=True)
    plain: Any = _Asked(server, source, noisy=False)
    runs = []
    for draw in range(draws):
        runs.append(accuracy(noisy, texts, classes))
        progress("queries", draw + 1, draws, "draws")
    shares = [1.0 - run["error_rate"] for run in runs]
    return {
        "texts": runs[0]["texts"],
        "draws": draws,
        "accuracy": {
            "mean": fmean(shares),
            "standard_deviation": pstdev(shares),
            "least": min(shares),
            "greatest": max(shares),
        },
        "accuracy_without_noise": 1.0 - accuracy(plain, texts, classes)["error_rate"],
        "majority_accuracy": 1.0 - runs[0]["majority_error_rate"],
        "by_class": runs[0]["by_class"],
        "left_out": runs[0]["left_out"],
    }
