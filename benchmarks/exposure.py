"""Canary exposure: the walk over a trie against the brute-force loop, and a sample against both, in one run.

    python benchmarks/exposure.py                                    ten canaries, LSTM, a million candidates
    python benchmarks/exposure.py --model gpt2 --digits 4            a transformer with its cache
    python benchmarks/exposure.py --brute 1000000                    every candidate by brute force too

The brute-force loop scores whole texts, 128 of them at once, as an attack that knows nothing of the model
would; ``--brute`` candidates of it are timed, and the time of all is theirs, scaled; seconds are the
processor's.  The model has fresh weights, made four times as large so that scores differ: what it knows
changes no time.  Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from redactory.evaluation.canary import estimate_exposure_from_sample, measure_canary_exposure
from redactory.evaluation.continuations import sample_numbers, score_all_numbers
from redactory.evaluation.simulator import simulate_dialogues
from redactory.foundation.stream import RandomStream
from redactory.training import Tokenizer
from redactory.training.model import LanguageModel, build_language_network
from redactory.training.settings import TrainSettings

BEFORE = "My ID is: "
CANARIES = 10


def main() -> None:
    """Time all three, and hold their figures against each other."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    model = _model(arguments)
    result = {
        "model": arguments.model,
        "vocabulary": model.tokenizer.size,
        "parameters": sum(p.numel() for p in model.network.parameters()),
        "threads": arguments.threads,
        **_measured(model, arguments),
    }
    print(json.dumps(result, indent=1))


def _measured(model: LanguageModel, arguments: argparse.Namespace) -> dict[str, Any]:
    space = 10**arguments.digits
    draw = RandomStream.from_seed(1)
    numbers = draw.permutation("canaries", 0, space)[: 2 * CANARIES]
    strings = [f"{n:0{arguments.digits}d}" for n in numbers]
    canaries = {
        "template": BEFORE + "{digits}",
        "inserted": strings[:CANARIES],
        "control": strings[CANARIES:],
        "copies": 1,
    }
    begun = time.process_time()
    exact = measure_canary_exposure(model, canaries)
    seconds = time.process_time() - begun
    scores = score_all_numbers(model, BEFORE, arguments.digits)
    asked = np.sort(draw.permutation("brute force", 0, space)[: arguments.brute])
    begun = time.process_time()
    texts = [f"{BEFORE}{n:0{arguments.digits}d}" for n in asked]
    slow = np.array([found[:-1].sum() for found in model.compute_token_log_probs(texts)])
    brute = time.process_time() - begun
    fast = scores[asked]
    differences = (fast - fast.mean()) - (slow - slow.mean())
    return {
        "candidates": space,
        "canaries": CANARIES,
        "trie_seconds": seconds,
        "brute_force_candidates": len(asked),
        "brute_force_seconds": brute,
        "brute_force_seconds_for_all": brute * space / len(asked),
        "ratio": brute * space / len(asked) / seconds,
        "largest_difference_nats": float(np.abs(differences).max()),
        "largest_rank_difference": int(np.abs(_ranks(fast) - _ranks(slow)).max()),
        "spread_of_scores_nats": float(scores.std()),
        "highest_exposure": exact["highest_exposure"],
        "mean_exposure": exact["mean_exposure"],
        "sample": _sampled(model, arguments.digits, scores, draw),
    }


def _ranks(scores: Any) -> Any:
    return np.argsort(np.argsort(-scores, kind="stable"), kind="stable")


def _sampled(
    model: LanguageModel, digits: int, scores: Any, draw: RandomStream, samples: int = 20_000
) -> list[dict[str, Any]]:
    """Exposures at known ranks: exact, and by each of the ways that a larger space leaves."""
    own = sample_numbers(model, BEFORE, digits, samples, draw)
    drawn = (draw.uniform("sample", 0, samples) * len(scores)).astype(np.int64)
    order = np.argsort(-scores, kind="stable")
    ranks = [rank for rank in (1, 10, 100, 1_000, 10_000, 100_000) if rank <= len(scores)]
    asked = scores[order[[rank - 1 for rank in ranks]]]
    found = estimate_exposure_from_sample(scores[drawn], asked, len(scores), own)
    return [
        {
            "rank": rank,
            "exact": float(np.log2(len(scores) / rank)),
            **{key: row[key] for key in ("exposure", "low", "high", "at_least", "method", "reason")},
        }
        for rank, row in zip(ranks, found, strict=True)
    ]


def _model(arguments: argparse.Namespace) -> LanguageModel:
    texts = [row["text"] for row in simulate_dialogues(300, seed=1).rows]
    tokenizer = Tokenizer.from_texts(texts, 2_000)
    section = {"kind": arguments.model}
    network = build_language_network(TrainSettings(model=section).model, tokenizer)
    network.initialise(RandomStream.from_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4.0)
    return LanguageModel(tokenizer, network.eval())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("lstm", "gpt2", "llama"), default="lstm")
    parser.add_argument("--digits", type=int, default=6)
    parser.add_argument("--brute", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
