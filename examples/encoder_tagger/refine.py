"""Train the student a little further, on harmless texts and a fifth of the rows again.

    python examples/encoder_tagger/refine.py WORK student.pt --harmless 9 --pieces 2 --out refined.pt

It learns the labels, stays near its own distribution where that was not surely wrong, and keeps its mean vector.
Twelve minutes of two cores; a stop begins again.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import torch
from distill import LOSS_WEIGHTS, WARM_UP
from pieces import IGNORED, LABELS
from torch import Tensor, nn
from train import LEAST_RATE, WIDTH, make_batches, make_model, pad, read_windows, save

RATE, HEAD_RATE = 3e-5, 2e-4
SHARE_AGAIN, HARD = 5, 0.6
SURELY_WRONG = -1.2
"""Log-probability of the label below which the student's own opinion does not count."""


class Refinement:
    """The student as it is, and as it becomes."""

    def __init__(self, stored: dict[str, dict[str, Tensor]]) -> None:
        layers = max(LOSS_WEIGHTS)
        self.before, self.model = make_model(stored["model"], layers).eval(), make_model(stored["model"], layers)
        self.head_before, self.heads = self._make_heads(stored)[str(layers)], self._make_heads(stored)
        self.before.requires_grad_(False)
        self.head_before.requires_grad_(False)
        self.model.embeddings.word_embeddings.weight.requires_grad_(False)

    @staticmethod
    def _make_heads(stored: dict[str, dict[str, Tensor]]) -> nn.ModuleDict:
        heads = nn.ModuleDict({str(layer): nn.Linear(WIDTH, len(LABELS)) for layer in LOSS_WEIGHTS})
        heads.load_state_dict(stored["heads"])
        return heads

    def compute_loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The loss of one batch."""
        numbers, mask, labels = batch
        with torch.no_grad():
            hidden_before = self.before(input_ids=numbers, attention_mask=mask).last_hidden_state
            target = self.head_before(hidden_before).float().log_softmax(-1)
        own = target.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        counts = (labels != IGNORED) & (own > SURELY_WRONG)
        hidden = self.model(input_ids=numbers, attention_mask=mask, output_hidden_states=True).hidden_states
        loss = torch.zeros(())
        for layer, weight in LOSS_WEIGHTS.items():
            logits = self.heads[str(layer)](hidden[layer]).float()
            hard = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            near = nn.functional.kl_div(
                logits.log_softmax(-1)[counts], target[counts], log_target=True, reduction="batchmean"
            )
            loss = loss + weight * (HARD * hard + (1 - HARD) * near)
        weights = mask[..., None].float()
        means = [(vectors.float() * weights).sum(1) / weights.sum(1) for vectors in (hidden[-1], hidden_before)]
        return loss + (1 - nn.functional.cosine_similarity(*means)).mean()


def refine(work: Path, student: Path, harmless: list[int], seeds: list[int], out: Path) -> None:
    """One pass."""
    draw = random.Random(6)
    windows = read_windows(work, seeds)
    draw.shuffle(windows)
    batches = make_batches(windows[: len(windows) // SHARE_AGAIN] + read_windows(work, harmless), draw)
    run = Refinement(torch.load(student, weights_only=True))
    body = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    groups = [{"params": body}, {"params": list(run.heads.parameters())}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    run.model.train()
    for step, batch in enumerate(batches):
        share = (step + 1) / len(batches)
        for group, rate in zip(optimizer.param_groups, (RATE, HEAD_RATE), strict=True):
            group["lr"] = rate * min(1.0, share / WARM_UP) * max(LEAST_RATE, 1 - share)
        with torch.autocast("cpu", torch.bfloat16):
            loss = run.compute_loss(pad(batch))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(body, 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(f"{step}/{len(batches)} {loss.item():.4f}", flush=True)
    save({"model": run.model.state_dict(), "heads": run.heads.state_dict()}, out)


def main() -> None:
    """Refine the student."""
    parser = argparse.ArgumentParser(description="train the student further on harmless texts")
    parser.add_argument("work", type=Path)
    parser.add_argument("student", type=Path)
    parser.add_argument("--harmless", type=int, nargs="+", default=[9], help="seeds of encode.py for the harmless rows")
    parser.add_argument("--pieces", type=int, nargs="+", default=[2], help="seeds of encode.py for the rows")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(6)
    refine(arguments.work, arguments.student, arguments.harmless, arguments.pieces, arguments.out)


if __name__ == "__main__":
    main()
