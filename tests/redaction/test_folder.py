"""The run folder: distinct places, all inside it, and model names that cannot lead out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError
from redactory.redaction import RunFolder, SealedFolder, part_name
from redactory.redaction.folder import Inside

RUN = RunFolder(Path("/somewhere/run"))

TRICKS = [
    "", ".", "..", "...", "a/b", "/etc", "../x", "a\\b", "a b", "a\n", "\na", "a\0", "-x", ".x", "_x", "é",
    "x" * 65, "~", "a:b", "$HOME", "*", "a/..",
]  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_path_tricks_are_no_names(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RUN.model(name)
    assert "name must be" in str(caught.value)


@given(
    st.text(st.sampled_from("./\\ab0_-~\0\n é"), max_size=6) | st.sampled_from(["crt", "a.b-c_1", "x" * 64])
)
def test_a_name_is_refused_or_lies_right_below_models(name: str) -> None:
    try:
        model = RUN.model(name)
    except ConfigurationError:
        return
    assert model.root.resolve().parent == RUN.models.resolve()
    assert model.root.name == name


def places(folder: SealedFolder) -> list[Path]:
    kinds = {name: kind for own in type(folder).__mro__ for name, kind in vars(own).items()}
    found = [getattr(folder, name) for name, kind in kinds.items() if isinstance(kind, Inside)]
    return [place for place in found if isinstance(place, Path)]


@pytest.mark.parametrize("folder", [RUN, RUN.model("crt")])
def test_no_two_places_meet_and_none_lies_outside(folder: SealedFolder) -> None:
    found = places(folder)
    assert len(found) >= 8
    assert len(set(found)) == len(found)
    assert all(place.is_relative_to(folder.root) and place != folder.root for place in found)


def test_nothing_else_lies_in_the_data_folders() -> None:
    for data in RUN.data_folders:
        assert not any(place.is_relative_to(data) and place != data for place in places(RUN))


def test_only_finished_models_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.model_names() == []
    for name in ("sgd", "crt", "broken"):
        run.model(name).root.mkdir(parents=True)
        if name != "broken":
            run.model(name).success.touch()
    assert run.model_names() == ["crt", "sgd"]


@given(st.sets(st.integers(0, 99_999), min_size=2, max_size=5))
def test_part_names_sort_as_partitions_do(partitions: set[int]) -> None:
    ordered = sorted(partitions)
    assert sorted(part_name(n) for n in ordered) == [part_name(n) for n in ordered]
