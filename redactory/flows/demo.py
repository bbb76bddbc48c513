"""The demonstration: the whole job on a corpus whose every secret is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import redactory
from redactory.flows.schedule import start_flow
from redactory.foundation.files import make_private_folder
from redactory.foundation.progress import Progress
from redactory.pipelines.output_folder import check_output
from redactory.redaction import RunFolder

CANARIES, COPIES = 10, 20
BASELINE = "sgd"


def run_demo(out: Path, rows: int, workers: int, prefect: bool, progress: Progress) -> dict[str, Any]:
    """Simulate, curate, train, evaluate and verify; beside it the baseline without any protection.

    The corpus, the held-out corpus and the configuration are left in ``OUT-input``, to be looked at
    and run again.
    """
    check_output(RunFolder(out), resume=False)
    config = _write_inputs(out, rows, workers, progress)
    if prefect:
        result = start_flow("curate_and_train", str(config), out, progress, resume=False, workers=workers)
    else:
        result = redactory.run(config, output=out, workers=workers, progress=progress)
    baseline = redactory.train(config, output=out, progress=progress, trainer=BASELINE)
    measured = {
        "perplexity": redactory.evaluate_perplexity(out, BASELINE, progress=progress),
        "canary": redactory.evaluate_canary(out, BASELINE, progress=progress),
    }
    return {
        **result,
        "baseline": {**baseline, "evaluation": measured},
        "verify": redactory.verify(out, progress=progress),
        "configuration": str(config),
    }


def _write_inputs(out: Path, rows: int, workers: int, progress: Progress) -> Path:
    folder = make_private_folder(out.with_name(out.name + "-input"))
    corpus, held_out = folder / "corpus.jsonl", folder / "test.jsonl"
    told = redactory.simulate(corpus, rows, 1, CANARIES, COPIES, progress)
    redactory.simulate(held_out, max(rows // 10, 20), 2, 0, 1, progress)
    config = folder / "redactory.yaml"
    settings = {
        "input": {"path": corpus.name},
        "output": str(Path("..") / out.name),
        "segment": {"mode": "turn"},
        "partition": {"documents": 250},
        "train": {
            "trainer": "crt",
            "epsilon": 8.0,
            "delta": 1e-5,
            "sampling_rate": 0.02,
            "epochs": 3,
            "public_epoch": "occurrences",
        },
        "evaluate": {
            "test": held_out.name,
            "canaries": Path(told["canaries_file"]).name,
            "labelled": corpus.name,
        },
        "workers": workers,
    }
    config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return config
