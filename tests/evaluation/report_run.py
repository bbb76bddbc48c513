"""A finished run with realistic numbers, written without a pipeline, for the report's tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import write_json
from redactory.redaction.folder import RunFolder, format_part_name
from redactory.redaction.sealing import seal_folder
from redactory.redaction.shards import PRIVATE, PUBLIC, write_part

HOSTILE = '<script>alert("x")</script> & <MASK'
PUBLIC_TEXTS = [
    HOSTILE,
    "Hello, I am the customer support bot.",
    "How can I help?",
    "Is there anything else I can help with?",
    "I ordered a chair several days ago but I can't track it.",
    "All good.",
    "We will need the shipping address as well.",
    "Please switch it off and on again, and tell me when it is done.",
]
PRIVATE_TEXTS = [
    "Sure, <MASK>.",
    "My address is <MASK> North Zacharyville, <MASK>.",
    "Phone number is <MASK>",
    "The tracking number is <MASK>.",
    "Yep - I'm quillfeather.",
    "Please write to <MASK> or call <MASK> before noon, and ask for my sister Wilhelmina-Rose.",
    "Order number is <MASK>.",
    "<MASK>",
]
_HITS = [
    ("strict", "PERSON", "ner", 11_204),
    ("strict", "PHONE_NUMBER", "presidio", 3_361),
    ("strict", "CARDINAL", "ner", 96),
    *(("conservative", f"rule {n}", "rule", 22_480 - n) for n in range(16)),
]


COUNTS = {
    "rows": 10_000,
    "documents": 9_991,
    "rejected": 9,
    "examples": 118_402,
    "public": 4_316,
    "private": 27_938,
    "duplicate": 86_127,
    "quarantined": 21,
    "public_duplicate": 72_051,
    "private_duplicate": 14_076,
}


def manifest() -> dict[str, Any]:
    """The body of a curated run's manifest."""
    return {
        "format": "redactory-run/1",
        "run": "customersim-train",
        "uncovered": {"kinds": {}, "languages": {"en": 1.0}},
        "created": "2026-03-02T09:41:07+00:00",
        "versions": {
            "redactory": "0.1.0",
            "python": "3.11.7",
            "packages": {"spacy": "3.8.7", "pyarrow": "19.0.1", "numpy": "2.2.6"},
        },
        "configuration": {},
        "configuration_hash": "5d1c" * 16,
        "policies": {
            "strict": {"hash": "a1b2c3d4" * 8, "labels": ["PERSON"]},
            "conservative": {"hash": "0f9e8d7c" * 8, "rules": ["digit"]},
        },
        "engines": {
            "tagger": {"sha256": ["77aa" * 16], "versions": {"spacy": "3.8.7"}},
            "patterns": {"versions": {"presidio-analyzer": "2.2.366"}},
        },
        "key": {"fresh": True, "fingerprint": "1f0c77ab"},
        "encrypted": False,
        "inputs": [{"path": "corpus/train.jsonl", "bytes": 9_120_331, "digest": "bb10" * 8, "rows": 10_000}],
        "counts": COUNTS,
        "rejected": {"broken_json": 5, "lone_surrogate": 1, "too_long": 3},
        "quarantined": {"timeout": 2, "misaligned": 19},
        "reasons": {
            "rule:digit": 22_480, "rule:capital": 18_115, "ner:PERSON": 11_204, "rule:unknown_word": 9_811,
            "ner:unsure": 4_120, "ner:GPE": 3_102, "mask": 12,
        },
        "spans": [
            {"policy": p, "label": label, "detector": d, "count": n, "histogram": [0] * 17 + [1, 0, 3]}
            for p, label, d, n in _HITS
        ],
        "masks": 31_877,
        "dedup": {"mode": "exact", "scope": "corpus", "rule": "S1", "group_size": 1},
        "stages": [
            {"stage": "ingest", "seconds": 1.9, "peak_mb": 310.2, "counts": {}},
            {"stage": "detect", "seconds": 74.3, "peak_mb": 912.8, "counts": {}},
        ],
    }  # fmt: skip


def write_run(root: Path, body: dict[str, Any] | None = None) -> RunFolder:
    """A sealed run folder with the shards above."""
    run = RunFolder(root)
    public = [{"example_id": f"{i:032x}", "text": text} for i, text in enumerate(PUBLIC_TEXTS)]
    private = [
        {"example_id": f"{i:032x}", "user": "u", "text": text, "reasons": ["rule:digit"]}
        for i, text in enumerate(PRIVATE_TEXTS)
    ]
    write_part(run.public / format_part_name(0), pa.Table.from_pylist(public, schema=PUBLIC))
    write_part(run.private / format_part_name(0), pa.Table.from_pylist(private, schema=PRIVATE))
    seal_folder(run, body or manifest(), [])
    return run


def card(trainer: str, seeded: bool = False, **figures: float | str) -> dict[str, Any]:
    """A guarantee card as training writes it; a figure given as text is null with that reason."""
    told = {key: None if isinstance(given, str) else given for key, given in figures.items()}
    nothing = "no noise: nothing is guaranteed" if trainer == "sgd" else "test mode: seed known"
    holds = trainer != "sgd" and not seeded
    return {
        "trainer": trainer,
        "recall": "Recall was not measured." if trainer == "crt" else None,
        "holds": holds,
        "holds_reason": None if holds else nothing,
        "delta": 1e-5,
        "epsilon": told.get("epsilon_substitution"),
        **told,
        "reasons": {
            **{key: given for key, given in figures.items() if isinstance(given, str)},
            "epsilon_group": "no noise: nothing is guaranteed",
        },
        "miss_rates": {"gamma_upper": 0.1425},
        "epsilon_group": dict.fromkeys(("2", "4")) if trainer == "sgd" else {"2": 5.14, "4": 9.87},
        "assumptions": [
            "The policies were fixed before anybody saw this corpus.",
            "The labelled secrets were drawn at random from the secrets of this corpus.",
        ],
        "not_covered": ["Handing out the private shards or this report.", "What a user wrote over many sentences."],
    }


def add_models(run: RunFolder) -> None:
    """Two finished models: ``crt`` with a guarantee and every measurement, ``sgd`` without."""
    cards = {
        "crt": card(
            "crt",
            epsilon_substitution=3.02,
            epsilon_bayesian=1.39,
            epsilon_confidentiality="delta 1e-05 is not above the bound of delta_2, 0.000098",
            coverage_failure=9.8e-5,
        ),
        "sgd": card(
            "sgd",
            epsilon_substitution="it was trained on the original text without noise",
            epsilon_bayesian="no noise",
            epsilon_confidentiality="no noise",
            coverage_failure="not measured",
        ),
    }
    exposures = {"crt": (1.31, 2.02), "sgd": (19.93, 2.4)}
    for name, told in cards.items():
        folder = run.get_model_folder(name)
        folder.root.mkdir(parents=True)
        write_json(folder.guarantee, told)
        seal_folder(folder, {"trainer": name}, [folder.guarantee])
        one = {"perplexity": 4.81, "perplexity_per_word": 6.92, "tokens": 1000, "words": 800, "texts": 90}
        highest, control = exposures[name]
        add_result(run, name, "perplexity", {"as_is": one, "masked": one})
        canary = {"highest_exposure": highest, "control_highest_exposure": control, "copies_left": 10}
        add_result(run, name, "canary", canary)


def add_result(run: RunFolder, model: str, evaluation: str, result: dict[str, Any]) -> None:
    """An evaluation of a finished model."""
    folder = run.get_model_folder(model).get_result_folder(evaluation)
    folder.root.mkdir(exist_ok=True)
    write_json(folder.root / "result.json", result)
    seal_folder(folder, {"parent": file_sha256(run.get_model_folder(model).manifest)}, [folder.root / "result.json"])


QUESTIONS = (
    "What was processed?",
    "What was masked?",
    "What is the measured risk?",
    "May this be released?",
    "Why not?",
)
_NOT_FIRST = re.compile(r"[Ͱ-Ͽ]|[0-9a-f]{8}|\bpoints?\b|\bsides?\b|\bshards?\b|\bsecrets?\b|\bhits?\b")
"""Greek letters, digests and terms that no page's first lines may have."""


def first_lines(page: str) -> str:
    """The answers that a page begins with: in order, and without any of the terms above."""
    start, end = page.index(QUESTIONS[0]), page.index("docs/data-protection.md")
    places = [page.index(question) for question in QUESTIONS]
    assert places == sorted(places)
    assert places[-1] < end
    assert not _NOT_FIRST.search(page[start:end])
    return page[start:end]
