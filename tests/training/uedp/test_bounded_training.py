"""``uedp-bounded`` from a run to a model: its points, its sums on neighbouring worlds, resuming, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.training import load_model, loop, train_model
from redactory.training.data import PublicText
from redactory.training.loop import TrainingContext
from redactory.training.model import load_classifier
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.steps import NoisySteps
from redactory.training.tokenizer import Tokenizer
from redactory.training.trainers import get_trainer
from redactory.training.uedp.incidence import Incidence, get_columns
from redactory.training.uedp.units import OriginalExamples
from redactory.training.unit_settings import PrivacyUnit
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import make_initial_model
from tests.training.greybox import Recorder
from tests.training.test_train import Interrupted, interrupt_after
from tests.training.uedp.unit_runs import ROWS, Row, training, write_public, write_unit_run

STREAM = RandomStream.from_seed(9)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_public(tmp_path_factory.mktemp("public") / "donated.jsonl")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Read only."""
    return write_unit_run(tmp_path_factory.mktemp("units") / "RUN")


def originals_of(run: RunFolder, settings: TrainSettings) -> OriginalExamples:
    found: Any = get_trainer(settings).read_original_examples(run, settings)
    return found


@dataclass(frozen=True)
class Sums:
    """What enters the noise in each step, with some of the points null."""

    run: RunFolder
    settings: TrainSettings

    @property
    def incidence(self) -> Incidence:
        found: Any = originals_of(self.run, self.settings).incidence
        return found

    def phase(self, null: NDArray[np.bool_], recorder: Recorder) -> NoisySteps:
        text = PublicText(self.settings.public_text, "words")
        model = make_initial_model(self.settings, STREAM, build_vocabulary(self.run, self.settings, text))
        network = model.network.double()
        mechanism = get_trainer(self.settings).make_mechanism(self.settings)
        originals = originals_of(self.run, self.settings)
        made = TrainingContext(self.run, self.settings, network, model.tokenizer, STREAM, originals)
        noisy = made.make_step_kinds(mechanism, recorder).noisy
        noisy.dropped_mask = null
        return noisy

    def distances(self, null: NDArray[np.bool_]) -> Iterator[tuple[float, int]]:
        """(‖sum on D − sum on D'‖ in clips, points of the unit that were sampled) of each step."""
        ours, theirs = Recorder(), Recorder()
        one = self.phase(np.zeros(len(null), bool), ours)
        other = self.phase(null, theirs)
        for step in range(4):
            other.network.load_state_dict(one.network.state_dict())
            drawn = one.sample_step_rows(step)
            one.step(step)
            other.step(step)
            apart = (ours.sums[-1] - theirs.sums[-1]).norm() / one.mechanism.clip_norm
            yield float(apart), int(null[drawn].sum())


def units_of(graph: Incidence) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The kept points of every user, every entity, and every pair of them."""

    def rows_of(rows: Any, unit: int) -> NDArray[np.bool_]:
        return np.array([unit in get_columns(rows, row) for row in range(len(graph))])

    users = [rows_of(graph.users, user) for user in range(graph.users.shape[1])]
    entities = [rows_of(graph.entities, entity) for entity in range(graph.entities.shape[1])]
    yield from (("users", null) for null in users)
    yield from (("entities", null) for null in entities)
    yield from (("both", first | second) for first in users for second in entities)


@pytest.mark.parametrize("max_tokens", [2, 128])
def test_a_null_unit_moves_a_sum_by_its_clips(max_tokens: int, run: RunFolder, public: Path) -> None:
    """Whoever is taken away: at most K points, and a sum moves by at most one clip for each one sampled.

    Whose entities lie behind the cut as well: the graph is made of whole texts.
    """
    sums, seen = Sums(run, training(public, clip_norm=0.2, max_tokens=max_tokens)), 0
    for protect, null in units_of(sums.incidence):
        if not null.any():
            continue
        units = sums.settings.units.model_copy(update={"privacy_unit": PrivacyUnit(protect)})
        size = TRAINERS["uedp-bounded"].count_exchanged_rows(sums.settings.model_copy(update={"units": units}), None)
        assert null.sum() <= size
        if protect != "both" or null.sum() == size:
            for apart, sampled in sums.distances(null):
                assert apart <= sampled + 1e-9
                seen += sampled > 0 and apart > 0
    assert seen > 3


def test_only_the_graph_selects(tmp_path: Path, run: RunFolder, public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = [row._replace(text=row.text.replace("day", "a much longer day").replace("new", "n")) for row in ROWS]
    other = write_unit_run(tmp_path / "OTHER", longer)
    for bounding in ({"k_user": 2, "k_entity": 2}, {"k_user": 2, "k_entity": 3}):
        settings = training(public, bounding=bounding)
        kept: Any = originals_of(run, settings).example_ids
        assert 0 < len(kept) < len(ROWS)
        assert kept.tolist() == np.asarray(originals_of(other, settings).example_ids).tolist()
        for secret in ("k" * 32, "another key, as long as that.."):
            monkeypatch.setenv("REDACTORY_KEY", secret)
            assert kept.tolist() == np.asarray(originals_of(run, settings).example_ids).tolist()


def test_nothing_public_comes_from_the_corpus(tmp_path: Path, public: Path) -> None:
    run = write_unit_run(tmp_path / "RUN")
    told: list[str] = []
    card = train_model(
        run, training(public, seed=None), lambda _work, _done, _total, unit="": told.extend([unit] * bool(unit))
    )["guarantee"]
    assert told[-1].startswith("steps, ε ≤ ")
    assert float(told[-1].split()[-1]) == pytest.approx(card["epsilon"], rel=1e-2)
    folder = run.get_model_folder("uedp-bounded")
    tokenizer = load_model(folder).tokenizer
    assert isinstance(tokenizer, Tokenizer)
    assert not {" corpus", " Ada", " Acme"} & set(tokenizer.words)
    head = read_records(folder.ledger)[0].body
    assert head["vocabulary"]["made_of"].keys() == {"public_text", "shipped"}
    assert head["vocabulary"]["sha256"] == tokenizer.digest
    assert head["public_text"] == file_sha256(public)
    assert head["settings"]["public_text"] == public.name
    assert str(tmp_path) not in folder.ledger.read_text() + folder.manifest.read_text()


def test_an_interrupted_training_ends_with_the_same_bits(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_STEPS", 2)
    settings = training(public, pretraining_epochs=2)
    whole, cut = write_unit_run(tmp_path / "WHOLE"), write_unit_run(tmp_path / "CUT")
    seen: list[str] = []

    def progress(work: str, done: int, total: int | None, unit: str = "") -> None:
        if unit:
            seen.append(work)

    train_model(whole, settings, progress)
    assert seen == [*["pretraining"] * 6, *["epoch 1, with noise"] * 2, *["epoch 2, with noise"] * 2]
    with pytest.raises(Interrupted):
        train_model(cut, settings, interrupt_after(9))
    train_model(cut, settings)
    ours, theirs = cut.get_model_folder("uedp-bounded"), whole.get_model_folder("uedp-bounded")
    assert file_sha256(ours.weights) == file_sha256(theirs.weights)
    assert ours.ledger.read_bytes() == theirs.ledger.read_bytes()


def test_a_list_that_changed_meanwhile_is_not_trained_on(tmp_path: Path, public: Path) -> None:
    run, listed = write_unit_run(tmp_path / "RUN"), tmp_path / "list.txt"
    listed.write_text("letter\n")
    wide = {"k_user": 9, "k_entity": 2}
    settings = training(public, units={"entities": str(listed)}, bounding=wide, sampling_rate=1.0)
    with pytest.raises(Interrupted):
        train_model(run, settings, interrupt_after(1))
    listed.write_text("Zed\nnothing\n")
    with pytest.raises(CheckFailed, match="a sum that differs"):
        train_model(run, settings)


def test_noiseless_is_sgd_on_the_same_points(tmp_path: Path) -> None:
    run = write_unit_run(tmp_path / "RUN")
    for trainer in ("sgd", "noiseless"):
        train_model(run, training(None, trainer=trainer))
    assert file_sha256(run.get_model_folder("sgd").weights) == file_sha256(run.get_model_folder("noiseless").weights)


def test_de_identification_masks_what_is_protected_and_nothing_else(tmp_path: Path, run: RunFolder) -> None:
    listed, hubs = tmp_path / "list.txt", tmp_path / "hubs.txt"
    listed.write_text("letter 2\n")
    hubs.write_text("acme\n")
    units = {"entities": str(listed), "high_degree_entities": (str(hubs),)}
    texts = list(originals_of(run, training(None, trainer="de-identification", units=units)).read_texts())
    assert texts[0] == f"{MASK} met Acme on day 0."
    assert f"{MASK} wrote {MASK}." in texts
    assert not any(name in text for text in texts for name in ("Ada", "Bob", "Zed", "letter 2"))
    assert len(texts) == len(ROWS)


def test_merged_copies_are_trained_on_once(tmp_path: Path, public: Path) -> None:
    rows = [*ROWS, Row("c", ROWS[0].text, copy_of=0), Row("e", ROWS[0].text, copy_of=0)]
    run = write_unit_run(tmp_path / "RUN", rows)
    merged = originals_of(run, training(public, units={"duplicates": "merge"}, bounding={"k_user": 9, "k_entity": 9}))
    assert merged.example_ids.tolist() == list(range(len(ROWS)))
    assert len(get_columns(merged.incidence.users, 0)) == 3
    baseline = originals_of(run, training(public, trainer="noiseless", units={"duplicates": "merge"}))
    assert len(list(baseline.read_texts())) == len(ROWS)
    kept = originals_of(run, training(public, trainer="noiseless"))
    assert len(list(kept.read_texts())) == len(rows)


def test_classes_are_learnt_and_a_point_without_one_is_null(tmp_path: Path) -> None:
    run = write_unit_run(tmp_path / "RUN", classes=True)
    public = write_public(tmp_path / "donated.jsonl", kind="letter")
    task = {"task": "classify", "classes": ("letter", "meeting"), "pretraining_epochs": 1}
    for trainer in ("uedp-bounded", "noiseless"):
        card = train_model(run, training(public, trainer=trainer, **task))["guarantee"]
        assert card["task"] == "classify"
        assert load_classifier(run.get_model_folder(trainer)).classes == ("letter", "meeting")
    page = run.get_model_folder("uedp-bounded").card.read_text()
    assert "text-classification" in page
    settings = training(public, **task)
    sums = Sums(run, settings)
    chosen = originals_of(run, settings)
    silent = chosen.read_classes(settings.classes) < 0
    assert silent.any()
    for apart, _ in sums.distances(silent):
        assert apart < 1e-12  # zeros are added in another order


GIVEN: dict[str, Any] = {"public_text": "x"}
CLASSIFY: dict[str, Any] = {"task": "classify", "classes": ("a", "b")}
MERGED: dict[str, Any] = {**GIVEN, "units": {"duplicates": "merge"}}
R_LOC: dict[str, Any] = {"rule": "r-loc", "k_user": 1, "k_entity": 1, "entities_per_point": 3}
USERS: dict[str, Any] = {**GIVEN, "trainer": "uedp-alg1", "federated": {"users": 9}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tokenizer": "public_text"}, "train.public_text"),
        ({"tokenizer": "public"}, "train.tokenizer"),
        ({"trainer": "noiseless", "pretraining_epochs": 1}, "train.public_text"),
        ({**GIVEN, "bounding": {"k_user": 2}}, "train.bounding.k_entity"),
        ({**GIVEN, "bounding": {}, "units": {"privacy_unit": "users"}}, "train.bounding.k_user"),
        ({**GIVEN, "bounding": {"rule": "none"}, "noise_multiplier": None}, "noise_multiplier"),
        ({**GIVEN, "bounding": {"rule": "none", "k_user": 1}}, "enforces no cap"),
        ({**GIVEN, "bounding": {"rule": "r-loc", "k_user": 1}}, "entities_per_point"),
        ({**GIVEN, "bounding": {"k_user": 1, "entities_per_point": 3}}, "requires rule r-loc"),
        ({**MERGED, "bounding": R_LOC}, "train.units.duplicates"),
        ({**GIVEN, "task": "classify"}, "train.classes"),
        ({**GIVEN, "task": "classify", "classes": ("a", "a")}, "train.classes"),
        ({**GIVEN, "classes": ("a", "b")}, "train.classes"),
        ({**CLASSIFY, "trainer": "sdp"}, "train.task"),
        ({**GIVEN, **CLASSIFY, "model": {"kind": "gpt2"}}, "train.model.kind"),
        ({**GIVEN, "model": {"kind": "bert"}}, "train.model.kind"),
        ({**USERS, "federated": {}}, "train.federated.users"),
        ({**USERS, "budget": {"path": "b", "epsilon": 1.0}}, "train.budget"),
    ],
)
def test_settings_that_contradict_a_promise_are_refused_with_their_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        training(None, **changes)
    assert key in str(caught.value)


def test_text_of_the_corpus_is_not_public(tmp_path: Path) -> None:
    given = write_public(tmp_path / "corpus.jsonl", [row.text for row in ROWS])
    run = write_unit_run(tmp_path / "RUN", inputs=[given])
    (run.root / "exported.txt").write_text("Ada met Acme on day 0.\n")
    copied = tmp_path / "copied.jsonl"
    copied.write_bytes(given.read_bytes())
    for path in (given, copied, run.root / "exported.txt"):
        with pytest.raises(ConfigurationError, match=r"train\.public_text: .* is part of the corpus"):
            train_model(run, training(path))
    assert not run.get_model_folder("uedp-bounded").root.exists()


def test_public_text_is_the_file_that_the_ledger_names(tmp_path: Path) -> None:
    public = write_public(tmp_path / "donated.jsonl")
    run, settings = write_unit_run(tmp_path / "RUN"), training(public, pretraining_epochs=1)
    whole, other = public.read_text(), "".join(sorted(public.read_text().splitlines(True)))
    assert other != whole

    def changed(work: str, done: int, total: int | None, unit: str = "") -> None:
        # at its first step, when the text has been read
        if unit:
            public.write_text(other)

    with pytest.raises(CheckFailed, match=r"donated\.jsonl changed"):
        train_model(run, settings, changed)
    with pytest.raises(RunStateError, match="public_text"):
        train_model(run, settings)
    public.write_text(whole)
    train_model(run, settings)
    public.write_text(other)
    with pytest.raises(RunStateError, match=r"another donated\.jsonl"):
        train_model(run, settings)
    public.unlink()
    assert train_model(run, settings)["guarantee"]["public_text"] is not None


def test_files_that_are_missing_or_broken_are_named_and_not_quoted(tmp_path: Path, run: RunFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.public_text: there is no file gone\.jsonl"):
        train_model(run, training(tmp_path / "gone.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"words": "fine"}\n\n{"other": "Secretname"}\n')
    with pytest.raises(InputError, match=r"row 3 of broken\.jsonl has no text in column 'words'") as caught:
        list(PublicText(broken, "words").read_texts())
    assert "Secretname" not in str(caught.value)
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n \ntwo  \n")
    assert list(PublicText(plain).read_texts()) == ["one", "two  "]
    plain.write_bytes(b"one\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"plain\.txt is not UTF-8"):
        list(PublicText(plain).read_texts())
    for key, content in (("entities", None), ("aliases", "Secretname\n"), ("high_degree_entities", b"\xff")):
        path = tmp_path / f"{key}.txt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content:
            path.write_text(content)
        with pytest.raises(ConfigurationError, match=rf"train\.units\.{key}") as refused:
            originals_of(
                run, training(tmp_path / "x", units={key: [str(path)] if key == "high_degree_entities" else str(path)})
            )
        assert "Secretname" not in str(refused.value)
