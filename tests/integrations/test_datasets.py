"""Hugging Face's datasets finds both sides of a run by its card, and the public one of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redactory
from tests.integrations.sides import SIDES, rows_of, run_of


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``datasets.load_dataset``, offline, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        import datasets

        datasets.disable_progress_bars()
        cache = str(tmp_path_factory.mktemp("datasets"))

        def loaded(folder: Path, *name: str, **more: Any) -> Any:
            return datasets.load_dataset(str(folder), *name, cache_dir=cache, **more)

        yield loaded


@pytest.mark.parametrize("side", SIDES)
def test_each_side_is_a_configuration_of_the_run(load: Any, curated: Path, side: str) -> None:
    found = load(curated, side)
    assert list(found) == ["train"]
    assert found["train"].column_names == SIDES[side]
    assert found["train"].to_list() == rows_of(curated, side)


def test_the_public_side_is_what_one_gets_without_asking(load: Any, curated: Path) -> None:
    import datasets

    assert datasets.get_dataset_config_names(str(curated)) == ["public", "private"]
    assert load(curated, split="train").to_list() == rows_of(curated, "public")


def test_shards_are_streamed_and_shared_by_part(load: Any, curated: Path) -> None:
    stream = load(curated, "private", split="train", streaming=True)
    due = rows_of(curated, "private")
    assert list(stream) == due
    assert stream.num_shards == 3
    halves = [list(stream.shard(num_shards=3, index=number)) for number in range(3)]
    assert [row for half in halves for row in half] == due


def test_an_export_has_the_public_side_alone(load: Any, tmp_path: Path) -> None:
    import datasets

    run = run_of(tmp_path)
    told = redactory.export(run, tmp_path / "shards")
    assert datasets.get_dataset_config_names(told["to"]) == ["public"]
    assert load(Path(told["to"]), split="train").to_list() == rows_of(run, "public")
    # nothing was left behind in it
    assert redactory.verify(told["to"])["ok"]
