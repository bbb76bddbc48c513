"""The DP layer of LDP-NLP: what a user's sentence became, clipped and noised, before it leaves the user.

``docs/guarantees.md``, "Local differential privacy".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.lattice import noisy_on_lattice
from redactory.training.mechanism import require_clip_norm


@dataclass(frozen=True)
class _Noise:
    """What :func:`noisy_on_lattice` asks of a mechanism."""

    clip_norm: float
    noise_deviation: float


class DPLayer(nn.Module):
    """CL(x; C) + N(0, (zC)²I), LDP-NLP equations (3) and (4), with z the ``noise_multiplier``; no parameters.

    An example is the whole of x beyond its first axis: one vector, or all of a sentence's token vectors.
    A pair of sentences is two examples.  The result bears no gradient, so nothing before the layer can
    be trained through it, and ``eval`` does not switch the noise off.

    Without a seeded ``stream`` every call draws a root of its own from the operating system, so that a
    copy of the layer, a forked process and a restored one repeat no noise.  A seeded stream is test mode:
    each example takes the next step number of it; nothing is promised then.  ``seeded`` says which.

    Formal guarantees: an example's output is a function of that example and of its own noise alone; x
    exchanged for any other x′ moves it by at most 2C before noise (attained by antipodal vectors), so one
    output is 2/z-GDP; the noise is the exactly rounded one of :mod:`redactory.training.lattice`, wider
    by its margin, and what float32 rounds off afterwards is post-processing.
    """

    def __init__(self, clip_norm: float, noise_multiplier: float, stream: RandomStream | None = None) -> None:
        super().__init__()
        require_clip_norm(clip_norm, "ldp.clip_norm")
        if not (math.isfinite(noise_multiplier) and noise_multiplier > 0.0):
            raise ConfigurationError("ldp.noise_multiplier: a finite number above 0 is needed")
        self.clip_norm, self.noise_multiplier = float(clip_norm), float(noise_multiplier)
        self.not_finite = 0
        """Examples so far that were not finite and became zero: a private fact, for the user alone."""
        self._stream = stream if stream is not None and stream.seeded else None
        self._step = 0

    @property
    def seeded(self) -> bool:
        """Whether the noise can be computed again from a seed."""
        return self._stream is not None

    @property
    def sensitivity(self) -> float:
        """How far (L2) one output can move before noise when its sentence is exchanged: 2C."""
        return 2.0 * self.clip_norm

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Every example of ``x`` [B, ...] clipped and noised: float32, of the same shape."""
        return self.noised(self.clip(x))

    @torch.no_grad()
    def clip(self, x: Tensor) -> Tensor:
        """x · min(1, C/‖x‖₂) of each example of ``x`` [B, ...]: float64; zero where one is not finite."""
        flat = _examples(x)
        finite = flat.isfinite().all(1, keepdim=True)
        self.not_finite += int((~finite).sum())
        flat = torch.where(finite, flat, 0.0)
        # through the largest entry, so that no square overflows or vanishes
        peak = flat.abs().amax(1, keepdim=True)
        unit = flat / torch.where(peak > 0.0, peak, 1.0)
        length = unit.norm(dim=1, keepdim=True)
        short = length * peak <= self.clip_norm
        return torch.where(short, flat, unit * (self.clip_norm / length.clamp(min=1.0))).view(x.shape)

    @torch.no_grad()
    def noised(self, x: Tensor) -> Tensor:
        """``x`` [B, ...], of which every example has norm at most C, with noise: float32, the same shape.

        ``ConfigurationError`` where an example is longer: its noise would not hide it.
        """
        flat = _examples(x)
        if not bool((flat.norm(dim=1) <= self.clip_norm * (1.0 + 2.0**-30)).all()):
            raise ConfigurationError("ldp.clip_norm: an example is longer than it; clip before noise")
        noise = _Noise(self.clip_norm, self.noise_multiplier * self.clip_norm)
        stream, first = self._steps(len(flat))
        rows = [
            noisy_on_lattice(row, noise, stream, first + number)
            for number, row in enumerate(flat.cpu().numpy())
        ]
        found = np.stack(rows) if rows else np.empty(tuple(flat.shape))
        return torch.from_numpy(found.astype(np.float32)).view(x.shape).to(x.device)

    def _steps(self, count: int) -> tuple[RandomStream, int]:
        """A stream and the first of ``count`` step numbers of it that nobody has used."""
        if self._stream is None:
            return RandomStream.from_entropy(), 0
        first, self._step = self._step, self._step + count
        return self._stream, first


def _examples(x: Tensor) -> Tensor:
    """``x`` [B, ...] as float64 [B, d]."""
    if x.dim() < 2:
        raise ConfigurationError("the DP layer takes examples along the first axis: [B, ...]")
    return x.detach().to(torch.float64).reshape(len(x), math.prod(x.shape[1:]))
