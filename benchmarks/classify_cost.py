"""Time and memory from text to a classifier, in child processes, and what encoding costs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SAMPLE = 300
_ENCODE = """
import json, sys, time
from redactory.training.models.frozen_encoder import PackageEncoder
texts = json.load(sys.stdin)
encoder = PackageEncoder()
encoder.encode(texts[:5])
started, wall = time.process_time(), time.perf_counter()
encoder.encode(texts)
print(json.dumps([time.process_time() - started, time.perf_counter() - wall]))
"""


def run_child(command: Sequence[str], content: str = "") -> tuple[dict[str, float], str]:
    """Run ``command``; return {seconds, cpu_seconds, peak_mb} of its process, and its output."""
    started = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(content.encode())
        child.stdin.close()
        output = child.stdout.read().decode()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"a child process ended with {child.returncode}")
    facts = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }
    return facts, output


def measure_encoding(test: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Measure the encoding of the first test texts in one thread, without the process's start."""
    texts = [text for text, _ in test[:SAMPLE]]
    facts, output = run_child([sys.executable, "-c", _ENCODE], json.dumps(texts))
    cpu, wall = json.loads(output)
    return {
        "step": "encode",
        "texts": len(texts),
        "characters_per_text": round(sum(map(len, texts)) / len(texts)),
        "cpu_seconds_per_1000_texts": round(cpu / len(texts) * 1000, 1),
        "seconds_per_1000_texts": round(wall / len(texts) * 1000, 1),
        "peak_mb": facts["peak_mb"],
    }


def measure_text_to_model(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """Run the two commands from a file of text to a sealed model at epsilon 8; one process each, a run of its own."""
    output = f"{config['output']}-{kind}"
    shutil.rmtree(output, ignore_errors=True)
    path = Path(f"{output}.yaml")
    train = {**config["train"], "model": {"kind": kind}, "epsilon": 8.0}
    path.write_text(json.dumps({**config, "output": output, "train": train}), encoding="utf-8")
    command = [sys.executable, "-m", "redactory"]
    steps = {step: run_child([*command, step, str(path)])[0] for step in ("curate", "train")}
    return {
        "step": "text to model",
        "kind": kind,
        **steps,
        "seconds": round(sum(step["seconds"] for step in steps.values()), 1),
        "cpu_seconds": round(sum(step["cpu_seconds"] for step in steps.values()), 1),
        "peak_mb": max(step["peak_mb"] for step in steps.values()),
    }
