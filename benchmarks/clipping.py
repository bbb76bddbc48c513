"""What a step of exact per-example clipping costs beside a step of plain SGD: time and memory.

Methods: ``sgd`` (PyTorch's layers, no clipping), ``redactory`` (our engine), ``opacus_hooks`` and
``opacus_ghost`` (Opacus, its two engines), ``micro_batch`` (autograd, one example at a time).  A step is
forward pass, backward pass, clipping where there is any, and the optimizer's step; no method adds noise.

Every method of a model runs in a process of its own.  All processes of a model are alive at once and
take turns, one step each (interleaved), so that the machine's other load meets all of them; the
figure is the median.  ``peak_mb`` is the highest resident memory of the process less what it was
with the libraries loaded, before the model was made: model, batch and gradients are in it.

    python benchmarks/clipping.py               # within 10 minutes
    python benchmarks/clipping.py --full --json # the big models too
    python benchmarks/clipping.py --models lstm_200 --threads 1 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

METHODS = ("sgd", "redactory", "opacus_hooks", "opacus_ghost", "micro_batch")
MODELS = ("lstm_200", "gpt2_4x256", "qwen3_4x256", "bert_4x256")
BIG_MODELS = ("bag_64", "gpt2_2x128", "awd_lstm", "distilgpt2", "gemma3_lora")
CLIP_NORM = 0.1


def main() -> None:
    """Run and print a table, or one JSON list of rows."""
    parser = argparse.ArgumentParser(description="time and memory of per-example clipping")
    parser.add_argument("--full", action="store_true", help="the big models too")
    parser.add_argument("--models", nargs="*", choices=MODELS + BIG_MODELS)
    parser.add_argument("--methods", nargs="*", choices=(*METHODS, "sgd_same_layers"), default=METHODS)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=45.0, help="at most, for a model's measured steps")
    clock = "processor: the process's own time, for one thread on a busy machine"
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall", help=clock)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    models = arguments.models or (MODELS + BIG_MODELS if arguments.full else MODELS)
    rows = []
    for model in models:
        for threads in arguments.threads:
            found = measure(model, threads, arguments.methods, arguments.rounds, arguments.seconds, arguments.clock)
            rows += found
            if not arguments.json:
                print_table(found)
    if arguments.json:
        print(json.dumps(rows, indent=1))


def measure(
    model: str, threads: int, methods: tuple[str, ...], rounds: int, seconds: float, clock: str
) -> list[dict[str, Any]]:
    """One row a method; steps take turns."""
    context = multiprocessing.get_context("spawn")
    workers = {}
    for method in methods:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(model, method, threads, clock, theirs), daemon=True)
        process.start()
        theirs.close()
        ours.recv()
        workers[method] = (process, ours)
    times: dict[str, list[float]] = {method: [] for method in methods}
    begun = time.perf_counter()
    for number in range(rounds):
        for method, (_, pipe) in workers.items():
            pipe.send("step")
            times[method].append(pipe.recv())
        if number >= 2 and time.perf_counter() - begun > seconds:
            break
    rows = []
    for method, (process, pipe) in workers.items():
        pipe.send("stop")
        rows.append(
            {
                "model": model,
                "threads": threads,
                "method": method,
                "seconds_per_step": round(statistics.median(times[method]), 5),
                "ratio_to_sgd": None,
                "peak_mb": round(pipe.recv(), 1),
            }
        )
        process.join()
    for row in rows:
        if "sgd" in times:
            row["ratio_to_sgd"] = round(row["seconds_per_step"] / statistics.median(times["sgd"]), 3)
    return rows


def work(model: str, method: str, threads: int, clock: str, pipe: Connection) -> None:
    """One method in a process of its own: a step at each message."""
    import torch

    torch.set_num_threads(threads)
    from clipping_models import libraries, stepper

    libraries(model, method)  # before memory is counted

    before = memory("VmRSS")
    reset_peak()
    step = stepper(model, method, CLIP_NORM)
    step()  # to warm up
    now = time.perf_counter if clock == "wall" else time.process_time
    pipe.send("ready")
    while pipe.recv() == "step":
        begun = now()
        step()
        pipe.send(now() - begun)
    pipe.send(memory("VmHWM") - before)


def memory(field: str) -> float:
    """A figure of this process's memory from the kernel, in MB of 2²⁰ bytes."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def reset_peak() -> None:
    """The highest resident memory counts from here on."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line a method."""
    for row in rows:
        print(
            f"{row['model']:12} {row['threads']} thread(s)  {row['method']:16}"
            f"{row['seconds_per_step'] * 1e3:10.1f} ms  {row['ratio_to_sgd'] or 0:6.2f} x SGD"
            f"{row['peak_mb']:10.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
