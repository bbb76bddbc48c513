"""Which trainings the UeDP figures need, in the order of their worth, and what was tuned for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from uedp_trainings import METHODS, PRETRAINED, WITHOUT_EPSILON, Job

EPSILONS = (8.0, 2.0)
MORE_SEEDS = (2, 3)
AWD = {"kind": "awd-lstm", "embedding_size": 100, "hidden_size": 200, "layers": 3}

_FEDERATED: Mapping[str, Any] = {
    "epochs": 1,
    "clip_norm": 0.1,
    "dp_learning_rate": 5e-3,
    "federated": {"user_rate": 0.2, "local_batch_size": 128},
}
_ONE_USER_EACH: Mapping[str, Any] = {
    **_FEDERATED,
    "dp_learning_rate": 3e-3,
    "federated": {**_FEDERATED["federated"], "max_users_per_entity": 1},
}
_NOTHING: Mapping[str, Any] = {
    "epochs": 1,
    "sampling_rate": 1.0,
    "dp_learning_rate": 1e-9,
    "bounding": {"k_user": 1, "k_entity": 1},
}
_MORE_STEPS: Mapping[str, Any] = {"user_rate": 0.05}

TUNED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "cuad": {
        "all": {"pretraining_epochs": 16, "learning_rate": 2e-3},
        "noiseless": {"epochs": 2},
        "de-identification": {"epochs": 2},
        "user-level": _FEDERATED,
        "uedp-alg1": _ONE_USER_EACH,
        "uedp-alg1-all-users": _FEDERATED,
        "uedp-bounded": {
            "epochs": 4,
            "sampling_rate": 0.2,
            "clip_norm": 0.5,
            "dp_learning_rate": 4e-3,
            "bounding": {"k_user": 5, "k_entity": 1},
        },
        "scratch": {
            "noiseless": {"epochs": 4, "learning_rate": 1e-2},
            "de-identification": {"epochs": 4, "learning_rate": 1e-2},
            "user-level": {"dp_learning_rate": 3e-2},
            "uedp-alg1": {"dp_learning_rate": 2e-2},
            "uedp-bounded": {"dp_learning_rate": 2e-2},
        },
    },
    "customersim": {
        "all": {"pretraining_epochs": 2, "vocabulary_size": 400, "learning_rate": 5e-3},
        "noiseless": {"epochs": 1},
        "de-identification": {"epochs": 1},
        "user-level": {
            **_FEDERATED,
            "dp_learning_rate": 1.25e-2,
            "federated": {**_FEDERATED["federated"], **_MORE_STEPS},
        },
        "uedp-alg1": {**_ONE_USER_EACH, "federated": {**_ONE_USER_EACH["federated"], **_MORE_STEPS}},
        "uedp-alg1-all-users": {**_FEDERATED, "federated": {**_FEDERATED["federated"], **_MORE_STEPS}},
        "uedp-bounded": {
            "epochs": 2,
            "sampling_rate": 0.01,
            "clip_norm": 0.5,
            "dp_learning_rate": 5e-4,
            "bounding": {"k_user": 9, "k_entity": 2},
        },
        "scratch": {
            "user-level": {"dp_learning_rate": 2e-2},
            "uedp-alg1": {"dp_learning_rate": 2e-2},
            "uedp-bounded": {"dp_learning_rate": 1e-2},
        },
    },
}
"""Chosen on the validation users: by corpus, for all methods, for each, and for each from scratch."""
AT_TWO = 0.4
"""What step sizes of noisy steps are multiplied by at epsilon 2."""


def tuned(job: Job) -> dict[str, Any]:
    """What was tuned for a training, before the job's own changes."""
    own = TUNED[job.corpus.removesuffix("-45")]
    if job.method == PRETRAINED:
        return {**own["all"], **_NOTHING}
    found = {**own["all"], **own[job.method]}
    if job.start == "scratch":
        found |= own["scratch"].get(job.trainer, {})
    if job.target == 2.0 and job.start == "donated":
        found["dp_learning_rate"] *= AT_TWO
    return found


def every_job() -> Iterator[Job]:
    """Every training; those whose figures answer the most come first."""
    yield Job("perplexity", "cuad", "donated", PRETRAINED)
    yield from _perplexity("cuad", "donated", METHODS, EPSILONS)
    yield from _perplexity("customersim", "scratch", METHODS, EPSILONS[:1])
    yield from _perplexity("cuad", "scratch", METHODS, EPSILONS[:1])
    yield from _classify(EPSILONS[:1])
    yield Job("perplexity", "cuad-45", "donated", PRETRAINED)
    yield from _perplexity("cuad-45", "donated", METHODS, EPSILONS[:1])
    yield from _sweeps()
    yield from _awd()
    yield Job("perplexity", "customersim", "donated", PRETRAINED)
    yield from _perplexity("customersim", "donated", METHODS, EPSILONS[:1])
    yield from _classify(EPSILONS[1:])
    yield from _perplexity("customersim", "scratch", METHODS[2:], EPSILONS[1:])
    yield from _perplexity("cuad", "scratch", METHODS[2:], EPSILONS[1:])
    yield from _perplexity("customersim", "donated", METHODS[2:], EPSILONS[1:])
    yield Job("perplexity", "cuad", "donated", "uedp-alg1-all-users", 8.0)
    yield from _again([Job("perplexity", "cuad", "donated", PRETRAINED)])
    yield from _again(_perplexity("cuad", "donated", METHODS, EPSILONS))
    yield from _again(_classify(EPSILONS[:1]))
    yield from _again(_classify(EPSILONS[1:]))
    yield from _again(_perplexity("cuad", "scratch", METHODS, EPSILONS[:1]))
    yield from _again([Job("perplexity", "customersim", "donated", PRETRAINED)])
    yield from _again(_perplexity("customersim", "donated", METHODS, EPSILONS[:1]))


def _again(jobs: Iterable[Job]) -> Iterator[Job]:
    """The same trainings with other coins, and other first weights."""
    for job in jobs:
        yield from (replace(job, seed=seed) for seed in MORE_SEEDS)


def _perplexity(corpus: str, start: str, methods: Sequence[str], epsilons: Sequence[float]) -> Iterator[Job]:
    for target in epsilons:
        for method in methods:
            if method == "uedp-alg1-all-users":
                continue
            if method not in WITHOUT_EPSILON:
                yield Job("perplexity", corpus, start, method, target)
            elif target == epsilons[0]:
                yield Job("perplexity", corpus, start, method)


def _sweeps() -> Iterator[Job]:
    for cap in (1, 10):
        caps = {"bounding": {"k_user": cap, "k_entity": 1}}
        yield Job("k", "cuad", "donated", "uedp-bounded", 8.0, f"k{cap}", caps)
    for percent in (0, 50):
        rate = {"federated": {"related_entity_rate": percent / 100}}
        yield Job("q-s", "cuad", "donated", "uedp-alg1", 8.0, f"qs{percent}", rate)


def _classify(epsilons: Sequence[float]) -> Iterator[Job]:
    if epsilons[0] == EPSILONS[0]:
        for method in (PRETRAINED, *WITHOUT_EPSILON):
            yield Job("classify", "cuad", "donated", method)
    for target in epsilons:
        for method in ("user-level", "uedp-alg1", "uedp-bounded"):
            yield Job("classify", "cuad", "donated", method, target)


def _awd() -> Iterator[Job]:
    for method, target in ((PRETRAINED, None), ("noiseless", None), ("uedp-bounded", 8.0)):
        yield Job("awd", "cuad", "donated", method, target, "p16", {"model": AWD})
