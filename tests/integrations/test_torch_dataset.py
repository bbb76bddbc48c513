"""Shards as a PyTorch data set: each row once, whoever shares them, and resumed to the row."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import redactory
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.keys import create_key_file
from redactory.redaction import RunFolder, list_parts, read_part, write_part
from redactory.redaction.shards import read_rows
from redactory.training import ShardDataset
from redactory.training.shard_dataset import compute_share_range
from tests.integrations.sides import SIDES, rows_of, run_of

KEY = "REDACTORY_ENCRYPTION_KEY_FILE"


def itself(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A batch left as it is; at the top of the module, for the workers."""
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 rows a side in two parts, of several row groups; copy it before writing."""
    run = run_of(tmp_path_factory.mktemp("shards"))
    folder = RunFolder(run)
    manifest = json.loads(folder.manifest.read_text())
    for side in (folder.public, folder.private):
        for path in list_parts(side):
            write_part(path, read_part(path), group_rows=4)
            entry = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
            manifest["files"][path.relative_to(run).as_posix()] = entry
    folder.manifest.write_text(json.dumps(manifest))
    folder.success.write_text(file_sha256(folder.manifest) + "\n")
    return run


@pytest.mark.parametrize("side", SIDES)
def test_the_rows_are_those_of_the_side_in_order(run: Path, side: str) -> None:
    dataset = ShardDataset(run, side, columns=SIDES[side])
    due = rows_of(run, side)
    assert len(list_parts(run / side)) == 2
    assert list(dataset) == list(dataset) == due
    assert dataset.rows == len(due) > 20
    (batch,) = DataLoader(ShardDataset(run, side, columns=("text",)), batch_size=100)
    assert batch == {"text": [row["text"] for row in due]}
    assert list(ShardDataset(run, side)) == [{k: row[k] for k in ("example_id", "text")} for row in due]


@given(total=st.integers(0, 500), of=st.integers(1, 40))
def test_shares_hold_each_row_once_and_are_even(total: int, of: int) -> None:
    stretches = [compute_share_range(total, number, of) for number in range(of)]
    assert [row for first, last in stretches for row in range(first, last)] == list(range(total))
    sizes = {last - first for first, last in stretches}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (3, 0), (2, 2), (40, 0)])
def test_ranks_and_workers_share_the_rows(run: Path, ranks: int, workers: int) -> None:
    found: list[str] = []
    for rank in range(ranks):
        dataset = ShardDataset(run, "private", rank=rank, world_size=ranks)
        loader = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=itself)
        assert len(dataset) == len(list(dataset))
        found += (row["example_id"] for batch in loader for row in batch)
    ids = [row["example_id"] for row in rows_of(run, "private")]
    assert sorted(found) == sorted(ids)
    assert len(set(ids)) == len(ids)
    if workers:
        dataset = ShardDataset(run, "private")
        with pytest.raises(RunStateError, match="no row was read in this process"):
            dataset.state_dict()


@settings(max_examples=30, deadline=None)
@given(world=st.integers(1, 4), data=st.data())
def test_a_loaded_state_gives_exactly_the_rest(run: Path, world: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world - 1))

    def dataset() -> ShardDataset:
        return ShardDataset(run, "private", rank=rank, world_size=world)

    due, first = list(dataset()), dataset()
    given_ = data.draw(st.integers(0, len(due)))
    before = list(islice(iter(first), given_))
    state = json.loads(json.dumps(first.state_dict()))
    again = dataset()
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert before + list(again) == due
    # and the next epoch is a whole one
    assert list(again) == due
    assert "text" not in state


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_resumes_it_with_its_workers(run: Path, workers: int) -> None:
    def loader() -> Any:
        dataset = ShardDataset(run, "private")
        return StatefulDataLoader(dataset, batch_size=3, num_workers=workers, collate_fn=itself)

    due = list(loader())
    assert sorted(row["example_id"] for batch in due for row in batch) == sorted(
        row["example_id"] for row in rows_of(run, "private")
    )
    stopped = loader()
    before = list(islice(iter(stopped), 4))
    again = loader()
    again.load_state_dict(stopped.state_dict())
    assert before + list(again) == due


def test_a_state_of_something_else_is_refused(run: Path, tmp_path: Path) -> None:
    begun = ShardDataset(run)
    iter(begun)
    state = begun.state_dict()
    with pytest.raises(RunStateError, match="another run, release or split"):
        ShardDataset(run, "private").load_state_dict(state)
    with pytest.raises(RunStateError, match="another run"):
        ShardDataset(run_of(tmp_path)).load_state_dict(state)
    with pytest.raises(RunStateError, match="another run"):
        ShardDataset(run).load_state_dict({})
    half = ShardDataset(run, rank=1, world_size=2)
    half.load_state_dict(state)
    with pytest.raises(RunStateError, match="share 0 of 1, but this is share 1 of 2"):
        iter(half)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/together", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_rank_is_that_of_the_process_group(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(ShardDataset(run)) == rows_of(run, "public")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    last = list(ShardDataset(run))
    assert last == rows_of(run, "public")[-len(last) :]
    assert len(last) == 8


def test_an_encrypted_side_needs_the_key_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_key_file("encryption", tmp_path / "key")
    monkeypatch.setenv(KEY, str(tmp_path / "key"))
    run = run_of(tmp_path / "closed")
    dataset = ShardDataset(run, "private")
    due = [{"example_id": row["example_id"], "text": row["text"]} for row in rows_of(run, "private")]
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(loader, key=lambda row: row["example_id"]) == sorted(due, key=lambda row: row["example_id"])
    # what goes to a worker that is started anew is no key
    secret = (tmp_path / "key").read_bytes().strip()
    assert secret not in pickle.dumps(dataset)
    monkeypatch.delenv(KEY)
    assert len(list(ShardDataset(run, "public"))) == 23
    with pytest.raises(ConfigurationError, match="is encrypted"):
        ShardDataset(run, "private")


def test_an_export_has_the_public_side(run: Path, tmp_path: Path) -> None:
    told = redactory.export(shutil.copytree(run, tmp_path / "run"), tmp_path / "shards")
    assert list(ShardDataset(told["to"])) == rows_of(run, "public")
    with pytest.raises(RunStateError, match="an export contains only the public split"):
        ShardDataset(told["to"], "private")


def test_what_is_not_as_it_was_sealed_is_refused(run: Path, tmp_path: Path) -> None:
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    part, manifest = list_parts(copy.public)[1], copy.manifest.read_bytes()
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckFailed, match="public/ are not those"):
        ShardDataset(copy.root)
    assert list(ShardDataset(copy.root, "private"))
    part.unlink()
    with pytest.raises(CheckFailed, match="public/ are not those"):
        ShardDataset(copy.root)
    part.write_bytes(whole)
    copy.manifest.write_bytes(manifest + b" ")
    with pytest.raises(CheckFailed, match="not the one that the run was finished with"):
        ShardDataset(copy.root)
    copy.manifest.write_bytes(manifest)
    copy.success.unlink()
    with pytest.raises(RunStateError, match="not a finished folder"):
        ShardDataset(copy.root)


def test_a_run_that_is_written_anew_while_it_is_read_is_left(tmp_path: Path) -> None:
    copy = run_of(tmp_path)
    dataset = ShardDataset(copy, "private")
    reading = iter(dataset)
    assert len(list(islice(reading, 3))) == 3
    redactory.erase([copy], doc_ids=["document-20"])
    with pytest.raises(RunStateError, match="was rewritten while it was read"):
        list(reading)
    with pytest.raises(RunStateError, match="another run, release"):
        ShardDataset(copy, "private").load_state_dict(dataset.state_dict())


def test_a_part_that_is_exchanged_as_it_is_opened_gives_no_row(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    dataset = ShardDataset(copy.root)

    def exchanged(path: Path, first: int, columns: list[str]) -> Iterator[Any]:
        """A reissue that begins between the check and the open: shorter parts, and nothing finished."""
        copy.success.unlink()
        write_part(path, read_part(path).slice(0, 1))
        return read_rows(path, first, columns)

    monkeypatch.setattr("redactory.training.shard_dataset.read_rows", exchanged)
    with pytest.raises(RunStateError, match="not a finished folder"):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"split": "vault"}, "public or private"),
        ({"columns": ("text", "user")}, "public/ has example_id, text"),
        ({"columns": ()}, "columns"),
        ({"rank": 0}, "give both"),
        ({"rank": 2, "world_size": 2}, "give both"),
    ],
)
def test_a_mistake_is_named(run: Path, asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ShardDataset(run, **asked)
