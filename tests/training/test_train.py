"""Training end to end on a small run: what is written, what is refused, and resuming bit for bit."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import make_private_folder, write_json
from redactory.foundation.records import RecordLog, read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import list_broken_files, read_manifest
from redactory.redaction.shards import EXAMPLES, write_part
from redactory.training import load_model, train_model
from redactory.training.data import count_public_occurrences
from redactory.training.loop import TrainingContext, schedule_steps
from redactory.training.settings import TRAINERS
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import PUBLIC_TEXTS, make_initial_model, make_small_settings, write_run
from tests.training.greybox import Recorder

MakeRun = Callable[[], RunFolder]
LARGER = {"hidden_size": 32, "embedding_size": 16}


class Interrupted(Exception):
    """Stands for a crash."""


def interrupt_after(calls: int) -> Callable[..., None]:
    seen = 0

    def progress(work: str, done: int, total: int | None, unit: str = "") -> None:
        nonlocal seen
        # what is told of its beginning and end alone has no unit
        seen += bool(unit)
        if seen == calls:
            raise Interrupted

    return progress


def weights(run: RunFolder, name: str = "crt") -> str:
    return file_sha256(run.get_model_folder(name).weights)


def test_a_model_is_sealed_with_all_it_needs(trained: RunFolder) -> None:
    for name in ("crt", "dpsgd", "sgd"):
        folder = trained.get_model_folder(name)
        manifest = read_manifest(folder)
        assert list_broken_files(folder) == []
        assert manifest["parent"] == file_sha256(trained.manifest)
        assert set(manifest["files"]) == {
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "ledger.jsonl",
            "guarantee.json",
            "README.md",
        }
        assert folder.card.read_text(encoding="utf-8").startswith("---\n")
    assert trained.list_model_names() == ["crt", "dpsgd", "sgd"]
    assert not list(trained.state.glob("train-*"))


def test_the_summary_is_json_and_a_finished_training_gives_it_again(trained: RunFolder) -> None:
    again = train_model(trained, make_small_settings())
    keys = {"model", "trainer", "parameters", "steps", "update_norms", "seconds", "peak_mb", "guarantee"}
    assert keys == set(again)
    assert all(norm > 0 for norm in again["update_norms"].values())
    assert again["steps"] == 8
    assert again["parameters"] == sum(
        p.numel() for p in load_model(trained.get_model_folder("crt")).network.parameters()
    )
    json.dumps(again, allow_nan=False)


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(fresh_run: MakeRun, trained: RunFolder) -> None:
    same, other = fresh_run(), fresh_run()
    train_model(same, make_small_settings())
    train_model(other, make_small_settings(seed=8))
    assert weights(same) == weights(trained)
    assert weights(other) != weights(trained)


@pytest.mark.parametrize("calls", [1, 9, 20])
def test_an_interrupted_training_ends_with_the_same_bits(calls: int, fresh_run: MakeRun, trained: RunFolder) -> None:
    run = fresh_run()
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(), interrupt_after(calls))
    assert not run.get_model_folder("crt").success.exists()
    assert stat.S_IMODE((run.state / "train-crt.key").stat().st_mode) == 0o600
    train_model(run, make_small_settings())
    assert weights(run) == weights(trained)
    steps = [r.body["step"] for r in read_records(run.get_model_folder("crt").ledger) if r.type == "noisy_step"]
    assert steps == list(range(8))
    assert run.get_model_folder("crt").ledger.read_bytes() == trained.get_model_folder("crt").ledger.read_bytes()


def test_what_a_killed_attempt_was_writing_is_removed(fresh_run: MakeRun) -> None:
    run, name = fresh_run(), make_small_settings().model_name
    for folder in (run.state, run.get_model_folder(name).root):
        make_private_folder(folder)
    gone = (run.state / f".tmp-1-train-{name}.checkpoint", run.get_model_folder(name).root / ".tmp-1-model.safetensors")
    kept = (run.state / f".tmp-1-train-of-{name}.checkpoint", run.state / f".tmp-x-train-{name}.key")
    for path in (*gone, *kept):
        path.write_bytes(b"half")
    train_model(run, make_small_settings())
    assert not [path for path in gone if path.exists()]
    assert all(path.exists() for path in kept)


def test_without_a_seed_resuming_uses_the_key_in_state_and_two_trainings_differ(fresh_run: MakeRun) -> None:
    first, second, resumed = fresh_run(), fresh_run(), fresh_run()
    train_model(first, make_small_settings(seed=None))
    train_model(second, make_small_settings(seed=None))
    assert weights(first) != weights(second)
    with pytest.raises(Interrupted):
        train_model(resumed, make_small_settings(seed=None), interrupt_after(10))
    reference = RunFolder(resumed.root.with_name("REFERENCE"))
    shutil.copytree(resumed.root, reference.root)
    (reference.state / "train-crt.checkpoint").unlink(missing_ok=True)
    train_model(resumed, make_small_settings(seed=None))
    train_model(reference, make_small_settings(seed=None))
    assert weights(resumed) == weights(reference)


def test_changed_settings_are_refused_when_resuming_and_when_finished(fresh_run: MakeRun, trained: RunFolder) -> None:
    run = fresh_run()
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(), interrupt_after(5))
    before = run.get_model_folder("crt").ledger.read_bytes()
    for change in ({"learning_rate": 0.01}, {"max_physical_batch_tokens": 64}):
        with pytest.raises(RunStateError, match="settings"):
            train_model(run, make_small_settings(**change))
    assert run.get_model_folder("crt").ledger.read_bytes() == before
    with pytest.raises(RunStateError, match="other settings"):
        train_model(trained, make_small_settings(clip_norm=0.5))


def test_a_lost_or_foreign_key_is_refused(fresh_run: MakeRun) -> None:
    run = fresh_run()
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(seed=None), interrupt_after(5))
    key = run.state / "train-crt.key"
    own = key.read_bytes()
    key.write_bytes(bytes(32))
    with pytest.raises(RunStateError, match="another training"):
        train_model(run, make_small_settings(seed=None))
    key.unlink()
    with pytest.raises(RunStateError, match="gone"):
        train_model(run, make_small_settings(seed=None))
    shutil.rmtree(run.get_model_folder("crt").root)
    key.write_bytes(own)
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(seed=None), interrupt_after(1))
    assert key.read_bytes() != own


def test_a_replayed_step_with_another_sum_stops_the_training(fresh_run: MakeRun) -> None:
    run = fresh_run()
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(), interrupt_after(9))
    ledger = run.get_model_folder("crt").ledger
    bodies = [(r.type, r.body) for r in read_records(ledger)]
    ledger.unlink()
    with RecordLog(ledger) as log:
        for kind, body in bodies[:-1]:
            log.append(kind, body)
        log.append(bodies[-1][0], {**bodies[-1][1], "sum": "0" * 32})
    with pytest.raises(CheckFailed, match="a sum that differs"):
        train_model(run, make_small_settings())


def test_changed_parts_and_a_mask_in_public_are_refused(fresh_run: MakeRun, tmp_path: Path) -> None:
    run = fresh_run()
    part = next(run.private.glob("part-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckFailed, match="private/"):
        train_model(run, make_small_settings())
    masked = write_run(tmp_path / "masked", public=[*PUBLIC_TEXTS, f"Hello {MASK}"])
    with pytest.raises(CheckFailed, match="row 48"):
        train_model(masked, make_small_settings())


def test_an_unfinished_run_is_refused(fresh_run: MakeRun) -> None:
    run = fresh_run()
    run.success.unlink()
    with pytest.raises(RunStateError):
        train_model(run, make_small_settings())


@pytest.mark.parametrize("empty", ["public", "private"])
def test_an_empty_side_trains_all_the_same(empty: str, tmp_path: Path) -> None:
    sides: dict[str, Any] = {empty: []}
    run = write_run(tmp_path / "RUN", **sides)
    summary = train_model(run, make_small_settings())
    assert summary["steps"] == 8
    assert summary["guarantee"]["epsilon_substitution"] > 0


def test_numerics_are_left_as_they_were(fresh_run: MakeRun) -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with pytest.raises(Interrupted):
        train_model(fresh_run(), make_small_settings(threads=2), interrupt_after(1))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


@pytest.mark.slow
def test_a_training_does_not_wait_for_torchs_compiler(fresh_run: MakeRun) -> None:
    """Its import takes more than a second of processor time."""
    code = f"""if True:
        import sys, torch
        from redactory.training import TrainSettings, train_model
        from redactory.training.numerics import use_deterministic_numerics
        with use_deterministic_numerics(1):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        from redactory.redaction.folder import RunFolder
        from pathlib import Path
        settings = TrainSettings.model_validate_json({make_small_settings().model_dump_json(exclude_unset=True)!r})
        train_model(RunFolder(Path({str(fresh_run().root)!r})), settings)
        print([name for name in ("torch._dynamo", "torch._inductor", "transformers") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


def test_training_lowers_the_loss_and_crt_learns_the_private_side(curated: Path) -> None:
    learnt = {"noise_multiplier": 0.1, "model": LARGER, "learning_rate": 0.02, "dp_learning_rate": 0.02}
    private = [f"{greeting}, my name is {MASK} and the code is 104." for greeting in ("Hello", "Welcome back")]

    def after(epochs: int) -> Callable[[list[str]], float]:
        run, own, stream = RunFolder(curated), make_small_settings(epochs=epochs, **learnt), RandomStream.from_seed(7)
        model: Any = make_initial_model(own, stream, build_vocabulary(run, own, None))
        made = TrainingContext(run, own, model.network, model.tokenizer, stream)
        phases = made.make_step_kinds(TRAINERS["crt"].make_mechanism(own), Recorder())
        for step in schedule_steps(own, phases, stream):
            step.kind.step(step.number)
        return lambda texts: -float(np.concatenate(model.compute_token_log_probs(texts)).mean())

    long, short = after(15), after(1)
    assert long(PUBLIC_TEXTS) < 0.5 * short(PUBLIC_TEXTS)
    assert long(private) < 0.6 * short(private)


def test_loading_refuses_what_is_not_finished(fresh_run: MakeRun) -> None:
    run = fresh_run()
    with pytest.raises(Interrupted):
        train_model(run, make_small_settings(), interrupt_after(20))
    write_json(run.get_model_folder("crt").config, {})
    with pytest.raises(RunStateError):
        load_model(run.get_model_folder("crt"))


def test_an_epoch_of_occurrences_sees_each_public_text_as_often_as_it_occurred(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", public=["often", "once", "twice"])
    decisions = [("p0", "public", None), ("p1", "public", None), ("p2", "public", None)]
    decisions += [("d", "duplicate", 0)] * 4 + [("d", "duplicate", 2)]
    rows = [
        {"example_id": i, "released_id": released, "split": "public", "decision": decision, "dup_of": original}
        for i, (released, decision, original) in enumerate(decisions)
    ]
    rows.append({"example_id": 99, "released_id": "x", "split": "private", "decision": "duplicate", "dup_of": 0})
    write_part(run.examples / "part-00000.parquet", pa.Table.from_pylist(rows, schema=EXAMPLES))
    assert count_public_occurrences(run).tolist() == [5, 1, 2]
