"""Distil the trained encoder to its first layers; run it again after a stop, and it goes on.

    python examples/encoder_tagger/distill.py WORK teacher.pt --pieces 2 --out student.pt

The student begins with the teacher's first layers and heads.  Its heads learn the labels, and the distribution of the
teacher's last head; a linear map of its mean vector learns that of the pretrained encoder, so that the mean vector of
a text stays useful as its features.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path

import torch
from pieces import IGNORED, LABELS
from torch import Tensor, nn
from train import (
    LEAST_RATE,
    SAVE_SECONDS,
    WIDTH,
    Checkpoint,
    get_piece_files,
    make_batches,
    make_model,
    pad,
    read_windows,
)
from transformers import BertModel

LOSS_WEIGHTS = {3: 0.2, 4: 0.2, 6: 1.0}
RATE, HEAD_RATE, WARM_UP = 5e-5, 5e-4, 0.03
VECTOR_EVERY = 3
"""Only every third batch learns the mean vector, which costs another pass of twelve layers."""


class Distillation:
    """The teacher, the pretrained encoder, and the student that learns from both."""

    def __init__(self, base: dict[str, Tensor], stored: dict[str, dict[str, Tensor]]) -> None:
        self.base, self.teacher = make_model(base, 12).eval(), make_model(stored["model"], 12).eval()
        self.teacher_head = nn.Linear(WIDTH, len(LABELS))
        self.teacher_head.load_state_dict({part: stored["heads"][f"12.{part}"] for part in ("weight", "bias")})
        self.student = make_model(stored["model"], max(LOSS_WEIGHTS))
        self.heads = nn.ModuleDict({str(layer): nn.Linear(WIDTH, len(LABELS)) for layer in LOSS_WEIGHTS})
        self.heads.load_state_dict({name: v for name, v in stored["heads"].items() if not name.startswith("12.")})
        self.to_base = nn.Linear(WIDTH, WIDTH)
        for module in (self.base, self.teacher, self.teacher_head):
            module.requires_grad_(False)
        self.student.embeddings.word_embeddings.weight.requires_grad_(False)

    def compute_loss(self, batch: tuple[Tensor, Tensor, Tensor], with_vector: bool) -> Tensor:
        """The loss of one batch."""
        numbers, mask, labels = batch
        with torch.no_grad():
            target = self.teacher_head(_run(self.teacher, numbers, mask)[-1]).float().log_softmax(-1)
        hidden, counts = _run(self.student, numbers, mask), labels != IGNORED
        loss = torch.zeros(())
        for layer, weight in LOSS_WEIGHTS.items():
            logits = self.heads[str(layer)](hidden[layer]).float()
            hard = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            soft = nn.functional.kl_div(
                logits.log_softmax(-1)[counts], target[counts], log_target=True, reduction="batchmean"
            )
            loss = loss + weight * (hard + soft) / 2
        if with_vector:
            with torch.no_grad():
                vectors = _average(_run(self.base, numbers, mask)[-1], mask)
            similar = nn.functional.cosine_similarity(self.to_base(_average(hidden[-1], mask)), vectors)
            loss = loss + (1 - similar).mean()
        return loss


def _run(model: BertModel, numbers: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    hidden: tuple[Tensor, ...] = model(input_ids=numbers, attention_mask=mask, output_hidden_states=True).hidden_states
    return hidden


def _average(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].float()
    return (hidden.float() * weights).sum(1) / weights.sum(1)


def distil(work: Path, teacher: Path, seeds: list[int], out: Path, save_seconds: float) -> None:
    """One pass over the windows; resumes from ``out``."""
    stored = torch.load(teacher, weights_only=True)
    base = work / "base.pt"
    run = Distillation(torch.load(base, weights_only=True), stored)
    batches = make_batches(read_windows(work, seeds), random.Random(4))
    body = [parameter for parameter in run.student.parameters() if parameter.requires_grad]
    groups = [{"params": body}, {"params": [*run.heads.parameters(), *run.to_base.parameters()]}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    parts = {"model": run.student, "heads": run.heads, "to_base": run.to_base, "optimizer": optimizer}
    checkpoint = Checkpoint(out, parts, [base, teacher, *get_piece_files(work, seeds)], save_seconds)
    step = checkpoint.load()
    run.student.train()
    while step < len(batches):
        share = (step + 1) / len(batches)
        factor = min(1.0, share / WARM_UP) * max(LEAST_RATE, 1 - share)
        for group, rate in zip(optimizer.param_groups, (RATE, HEAD_RATE), strict=True):
            group["lr"] = rate * factor
        with torch.autocast("cpu", torch.bfloat16):
            loss = run.compute_loss(pad(batches[step]), step % VECTOR_EVERY == 0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(body, 1.0)
        optimizer.step()
        step += 1
        if step % 25 == 0:
            print(f"{step}/{len(batches)} {loss.item():.4f}", flush=True)
        checkpoint.save(step, is_last=step == len(batches))


def main() -> None:
    """Distil, or go on."""
    parser = argparse.ArgumentParser(description="distil the trained encoder")
    parser.add_argument("work", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--pieces", type=int, nargs="+", default=[2], help="seeds of encode.py")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save-seconds", type=float, default=SAVE_SECONDS, help="time between two checkpoints")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(4)
    distil(arguments.work, arguments.teacher, arguments.pieces, arguments.out, arguments.save_seconds)


if __name__ == "__main__":
    main()
