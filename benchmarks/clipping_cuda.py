"""What a step of exact per-example clipping costs on a graphics card: time and memory beside a plain step.

The models and methods of ``clipping.py`` with larger batches, on ``cuda``: one process, float32 products not
rounded to fewer bits, the methods taking turns, a step timed from and to an idle card.  ``peak_mb`` is
what a method's model and two steps add to what is allocated.  Prints JSON lines.

    python benchmarks/clipping_cuda.py
"""

from __future__ import annotations

import json
import statistics
import time

import clipping_models
import torch
from clipping_models import Size, libraries, stepper

SIZES = {
    "lstm_200": Size(256, 64, 5000),
    "gpt2_4x256": Size(64, 128, 5000),
    "qwen3_4x256": Size(64, 128, 5000),
    "distilgpt2": Size(32, 128, 50257),
}
METHODS = ("sgd", "redactory", "opacus_hooks", "opacus_ghost")
CLIP_NORM, ROUNDS = 0.1, 12


def main() -> None:
    """A line for each model and method."""
    torch.set_default_device("cuda")
    torch.set_float32_matmul_precision("highest")
    clipping_models.SIZES.update(SIZES)
    for model, size in SIZES.items():
        steps, peaks = {}, {}
        for method in METHODS:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            libraries(model, method)
            steps[method] = stepper(model, method, CLIP_NORM)
            for _ in range(2):
                steps[method]()
            torch.cuda.synchronize()
            peaks[method] = (torch.cuda.max_memory_allocated() - before) / 2**20
        times: dict[str, list[float]] = {method: [] for method in METHODS}
        for _ in range(ROUNDS):
            for method, step in steps.items():
                begun = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times[method].append(time.perf_counter() - begun)
        plain = statistics.median(times["sgd"])
        for method, own in times.items():
            found = statistics.median(own)
            facts = {"model": model, "examples": size.points, "tokens": size.tokens, "method": method}
            cost = {"ms": round(1e3 * found, 2), "ratio_to_sgd": round(found / plain, 2)}
            print(json.dumps({**facts, **cost, "peak_mb": round(peaks[method])}), flush=True)


if __name__ == "__main__":
    main()
