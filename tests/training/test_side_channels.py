"""The 25 side channels of ``docs/guarantees.md``: each check holds, and fails once its channel is put back.

Checks are functions of the part that could hold the channel.  A saboteur's part stands beside each.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import redactory
from redactory.detectors import Detector, DetectSettings
from redactory.detectors.detector import Detection
from redactory.detectors.settings import require_unfitted_rows, write_fit_record
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.foundation.keys import DigestKey
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import read_manifest
from redactory.redaction.shards import read_column
from redactory.training import train, train_model
from redactory.training.data import TokenizedExamples
from redactory.training.mechanisms.ledger import StepLedger
from redactory.training.settings import TrainSettings
from redactory.training.trainers import get_trainer
from tests.training.conftest import PRIVATE_TEXTS, make_small_settings, write_run
from tests.training.greybox import TOKENIZER
from tests.training.test_recorded import SABOTAGES

SECRET, MASKED = "my name is Grace Hopper and i wait", f"my name is {MASK} and i wait"
STREAM = RandomStream.from_seed(7)
DETECT: dict[str, Any] = {
    "tagger": None,
    "patterns": None,
    "spacy": {"model": "blank:en"},
    "lists": {"deny": [{"label": "PERSON", "words": ["Ada", "Ada Smith"]}]},
}
OTHERS = ["thank you", "have a nice day", "a b c d e f g"]


def fails(check: Callable[..., None], *arguments: Any) -> None:
    """The check must not hold for the saboteur's part."""
    with pytest.raises((AssertionError, CheckFailed, ConfigurationError, GuaranteeError)):
        check(*arguments)


@dataclass(frozen=True)
class World:
    """The two sides of a finished run."""

    public: list[str]
    private: list[str]


@pytest.fixture(scope="module")
def detector() -> Detector:
    """A real one, quickly loaded: a deny list, a blank pipeline, the conservative rules."""
    return Detector(DetectSettings.model_validate(DETECT))


@pytest.fixture(scope="module")
def worlds(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, World]:
    """Curated: a corpus with a secret that π misses, and the same with the secret masked."""
    folder = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDACTORY_KEY", "k" * 32)
        return _curated(folder, "secret", SECRET, detector), _curated(folder, "masked", MASKED, detector)


def _curated(folder: Path, name: str, point: str, detector: Detector) -> World:
    texts = [
        "thank you for the parcel\nwe are glad to help you\nAda was here",
        f"{point}\nhave a nice day\nmy name is known and i wait",
        "we are glad to help you\ncall me at 5\nMY NAME IS GRACE HOPPER",
    ]
    rows = folder / f"{name}.jsonl"
    rows.write_text("".join(json.dumps({"id": str(n), "text": t}) + "\n" for n, t in enumerate(texts)))
    config = {"input": str(rows), "output": str(folder / name), "segment": {"mode": "line"}, "detect": DETECT}
    redactory.curate(config, detector=detector)
    run = RunFolder(folder / name)
    return World(list(read_column(run.public, "text")), list(read_column(run.private, "text")))


def unchanged(world: World) -> World:
    """What the product does after routing: nothing that looks across the sides."""
    return world


def check_public_side_is_equal(worlds: tuple[World, World], treatment: Callable[[World], World]) -> None:
    """The public sides are the same, in the same order; the private ones differ in one point."""
    first, second = treatment(worlds[0]), treatment(worlds[1])
    assert first.public == second.public
    lost = Counter(first.private) - Counter(second.private)
    gained = Counter(second.private) - Counter(first.private)
    assert lost.total() <= 1
    assert gained.total() <= 1


def test_02_what_a_policy_misses_is_not_measured_on_what_it_was_fitted_on(tmp_path: Path) -> None:
    key = DigestKey(b"k" * 32)
    record = {
        "rows": 3, "secrets": 3, "unit": "row", "misses": 0, "miss_rate": 0.5, "confidence": 0.9,
        "segment": "{}", "policies": {}, "date": "2026-01-02",
    }  # fmt: skip
    fitted = write_fit_record(tmp_path / "rows", record, PRIVATE_TEXTS[:3], key)

    def check(texts: list[str]) -> None:
        require_unfitted_rows(texts, fitted, key)

    check(PRIVATE_TEXTS[5:])
    fails(check, PRIVATE_TEXTS[2:])


def test_03_detection_sees_one_point_at_a_time(detector: Detector) -> None:
    texts = ["Ada Smith was here", "smith was here too", "thank you"]

    def check(detect: Callable[[Sequence[str]], list[Detection]]) -> None:
        alone = [detect([text])[0] for text in texts]
        assert detect(texts) == alone
        assert detect(texts[::-1])[::-1] == alone

    def with_coreference(given: Sequence[str]) -> list[Detection]:
        found = list(detector.detect(given))
        names = {
            w.lower() for t, d in zip(given, found, strict=True) for s in d.strict for w in t[s.start : s.end].split()
        }
        known = [any(word in names for word in text.lower().split()) for text in given]
        return [replace(d, strict=found[0].strict) if k else d for d, k in zip(found, known, strict=True)]

    check(lambda given: list(detector.detect(given)))
    fails(check, with_coreference)


def test_04_no_private_text_decides_what_is_public(worlds: tuple[World, World]) -> None:
    def without_near_duplicates(world: World) -> World:
        """Of the whole corpus, public texts that nearly repeat a private one are left out."""
        words = [set(re.findall(r"\w+", text.lower())) for text in world.private]
        own = [set(re.findall(r"\w+", text.lower())) for text in world.public]
        near = [any(len(a & b) >= 0.8 * len(a | b) for b in words) for a in own]
        return World([t for t, close in zip(world.public, near, strict=True) if not close], world.private)

    check_public_side_is_equal(worlds, unchanged)
    extra = [World([*w.public, "my name is known by grace hopper and i wait"], w.private) for w in worlds]
    fails(check_public_side_is_equal, (extra[0], extra[1]), without_near_duplicates)


def test_05_a_point_is_a_row(worlds: tuple[World, World]) -> None:
    def rows(texts: list[str]) -> list[bytes]:
        points = TokenizedExamples.from_texts(texts, TOKENIZER, 40)
        return [points.get_targets(row).tobytes() for row in range(len(points))]

    def packed(texts: list[str]) -> list[bytes]:
        ids = TokenizedExamples.from_texts(texts, TOKENIZER, None).ids
        return [ids[start : start + 8].tobytes() for start in range(0, len(ids), 8)]

    def check(made: Callable[[list[str]], list[bytes]]) -> None:
        first, second = made([SECRET, *OTHERS]), made([MASKED, *OTHERS])
        assert len(first) == len(second)
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1

    check(rows)
    fails(check, packed)


def test_08_rates_steps_and_normaliser_are_constants(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(n), private=PRIVATE_TEXTS[:n]) for n in (8, 40)]

    def check(settings_of: Callable[[RunFolder], TrainSettings]) -> None:
        heads = []
        for run in runs:
            own = settings_of(run)
            mechanism: Any = get_trainer(own).make_mechanism(own)
            heads.append((mechanism.to_json(), get_trainer(own).count_noisy_steps(own)))
        assert heads[0] == heads[1]

    def from_counts(run: RunFolder) -> TrainSettings:
        return make_small_settings(sampling_rate=4 / sum(1 for _ in read_column(run.private, "text")))

    check(lambda run: make_small_settings())
    fails(check, from_counts)


STEP_KEYS, SUMMARY_KEYS = {"step", "event", "sum"}, {
    "model", "trainer", "parameters", "steps", "update_norms", "seconds", "peak_mb",
}  # fmt: skip


def check_release(model: Path) -> None:
    """What lies beside the weights says nothing of single points: no loss, norm, count or batch size."""
    own = RunFolder(model.parent.parent).get_model_folder(model.name)
    assert {key for r in read_records(own.ledger) if r.type == "noisy_step" for key in r.body} <= STEP_KEYS
    manifest = read_manifest(own)
    assert set(manifest["summary"]) <= SUMMARY_KEYS
    assert {Path(name).suffix for name in manifest["files"]} <= {".safetensors", ".json", ".jsonl", ".md"}


def test_14_no_loss_norm_or_count_is_released(trained: RunFolder, tmp_path: Path) -> None:
    check_release(trained.get_model_folder("crt").root)

    class Telling(StepLedger):
        def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
            self._event = {**self._event}
            self._log.append("noisy_step", {"step": step, "event": self._event, "sum": "", "norm": 1.0})

    run = write_run(tmp_path / "RUN")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "StepLedger", Telling)
        train_model(run, make_small_settings(epochs=1))
    fails(check_release, run.get_model_folder("crt").root)


def test_15_the_root_is_the_systems_entropy_or_the_card_says_otherwise(tmp_path: Path) -> None:
    def check(seed: int | None) -> None:
        made = [RandomStream.from_entropy() if seed is None else RandomStream.from_seed(seed) for _ in "ab"]
        assert made[0].root != made[1].root

    check(None)
    fails(check, 5)
    run = write_run(tmp_path / "RUN")
    for seed, holds in ((None, True), (5, False)):
        settings = make_small_settings(epochs=1, seed=seed, name=f"m{seed}")
        assert train_model(run, settings)["guarantee"]["holds"] is holds


def test_16_which_points_are_private_is_equal_in_both_worlds(worlds: tuple[World, World]) -> None:
    def check(treatment: Callable[[World], World]) -> None:
        first, second = (treatment(world) for world in worlds)
        assert (len(first.public), len(first.private)) == (len(second.public), len(second.private))

    def moved_for_a_near_duplicate(world: World) -> World:
        """A public point that looks like a private one is moved over to it."""
        names = {word for text in world.private for word in re.findall("[A-Z][a-z]+", text)}
        known = "Grace" in names
        return World(world.public[known:], [*world.private, *world.public[:known]])

    check(unchanged)
    fails(check, moved_for_a_near_duplicate)


def test_18_points_are_cut_before_anything_is_masked(worlds: tuple[World, World]) -> None:
    def cut_again(world: World) -> World:
        """What is left after masking, in pieces of one length."""
        joined = " ".join([*world.private, *world.public])
        pieces = [joined[start : start + 25] for start in range(0, len(joined), 25)]
        return World(pieces[len(world.private) :], pieces[: len(world.private)])

    check_public_side_is_equal(worlds, unchanged)
    fails(check_public_side_is_equal, worlds, cut_again)


def test_19_a_long_neighbour_changes_no_detection(detector: Detector) -> None:
    def check(detect: Callable[[Sequence[str]], list[Detection]]) -> None:
        short = ["thank you", "Ada was here"]
        assert detect([*short, "word " * 2000])[:2] == detect(short)

    def timed_out_together(given: Sequence[str]) -> list[Detection]:
        """The time is that of the batch."""
        late = sum(map(len, given)) > 5000
        return [replace(d, failure="late") if late else d for d in detector.detect(given)]

    check(lambda given: list(detector.detect(given)))
    fails(check, timed_out_together)


def test_25_measurements_on_private_text_are_releases_of_their_own(trained: RunFolder, tmp_path: Path) -> None:
    def check(model: Path) -> None:
        check_release(model)
        manifest = json.loads((model / "manifest.json").read_text())
        assert not {name.split("/")[0] for name in manifest["files"]} & {"perplexity", "canary"}
        card = json.loads((model / "guarantee.json").read_text())
        assert any("Evaluations on private text" in sentence for sentence in card["not_covered"])

    check(trained.get_model_folder("crt").root)
    copy = RunFolder(tmp_path / "RUN")
    shutil.copytree(trained.root, copy.root)
    own = copy.get_model_folder("crt")
    manifest = json.loads(own.manifest.read_text())
    manifest["summary"]["private_perplexity"] = 3.2
    own.manifest.write_text(json.dumps(manifest))
    fails(check, own.root)


RECORDED = {
    1: "vocabulary from private text",
    7: "coins follow the lengths",
    9: "an end by the private loss",
    10: "clip by the batch",
    12: "divided by the tokens",
    13: "a private row in the plain steps",
    17: "an average of the sums before noise",
    20: "small batches are left out",
    22: "a checkpoint that holds the key",
    24: "digests of sums without a key",
}
"""The channels whose saboteurs spoil a whole recorded training (``test_recorded``)."""
ELSEWHERE = {
    6: ("clipping/test_refusals.py", "test_refused_when_it_runs_or_computed_rightly"),
    11: ("clipping/test_refusals.py", "test_a_batch_that_is_centred_or_weighted_without_a_gradient"),
    21: ("clipping/test_equality.py", "test_a_point_without_a_finite_gradient_counts_as_zero"),
    23: ("test_stages.py", "test_what_cannot_be_added_up_is_no_start"),
}
"""Those that stand with the part that could hold them."""


def test_every_channel_of_the_page_has_its_test() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text(encoding="utf-8")
    section = page.split("## Side channels")[1].split("\n## ")[0]
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    here = [int(name[5:7]) for name in globals() if re.match(r"test_\d\d_", name)]
    assert numbers == sorted([*here, *RECORDED, *ELSEWHERE]) == list(range(1, 26))
    assert set(RECORDED.values()) <= SABOTAGES.keys()
    for file, name in ELSEWHERE.values():
        assert f"def {name}" in (Path(__file__).parent / file).read_text(encoding="utf-8")
