"""Every network: points apart, equal bits, perplexity and exposure, read by plain ``transformers``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from redactory.evaluation import canary_exposure
from redactory.evaluation.utility import perplexity
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.stream import RandomStream
from redactory.pipelines.predict import _next_words
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import read_manifest
from redactory.training import load_model, train_model
from redactory.training.data import EncodedPoints
from redactory.training.model import LanguageModel, identity_of, network_of
from redactory.training.models.network import LanguageNetwork
from redactory.training.models.settings import AwdLstmSettings
from redactory.training.settings import TrainSettings, by_name, settings_json
from redactory.training.tokenizer import FolderTokenizer, Tokenizer
from redactory.training.train import update_norms
from tests.training.conftest import PUBLIC_TEXTS, small
from tests.training.tiny_folders import causal_folder

TEXTS = ["Hello, how are you?", "My ID is: 1023", "", f"{MASK} said 12", "😀"]
SIZES = {"layers": 2, "width": 16, "heads": 2, "context": 64}
FRESH: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 8, "hidden_size": 12, "layers": 2},
    "awd-lstm": {"kind": "awd-lstm", "embedding_size": 8, "hidden_size": 12},
    "gpt2": {"kind": "gpt2", **SIZES},
    "llama": {"kind": "llama", **SIZES},
}
CANARIES = {"template": "My ID is: {digits}", "inserted": ["041"], "control": ["306"], "copies": 1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A pretrained folder of each kind."""
    root = tmp_path_factory.mktemp("pretrained")
    return {kind: causal_folder(root / kind, kind) for kind in ("gpt2", "llama")}


@pytest.fixture(params=[*FRESH, "gpt2 of a folder", "llama of a folder", "gpt2 with adapters"])
def model(request: pytest.FixtureRequest, folders: dict[str, Path]) -> LanguageModel:
    """A language model of every kind as it is before the first step, in float64."""
    section = FRESH.get(request.param)
    if section is None:
        kind = request.param.split()[0]
        lora = {"lora": {"rank": 2}} if "adapters" in request.param else {}
        section = {"kind": kind, "folder": folders[kind], **lora}
    settings = TrainSettings(model=section, max_tokens=64).model
    pretrained = section.get("folder")
    tokenizer = FolderTokenizer.from_folder(pretrained, True) if pretrained else _words()
    network = network_of(settings, tokenizer)
    network.initialise(RandomStream.from_seed(3))
    return LanguageModel(tokenizer, network.double())


def _words() -> Tokenizer:
    return Tokenizer.from_texts(PUBLIC_TEXTS, 30)


def test_a_point_has_its_own_loss_whatever_stands_beside_it(model: LanguageModel) -> None:
    network = model.network.train()
    points = EncodedPoints.from_texts(TEXTS, model.tokenizer, 40)
    network.begin_step(RandomStream.from_seed(1), "plain step", 4)
    together = network.point_losses(points.batch([4, 0, 2, 1, 3]))
    network.begin_step(RandomStream.from_seed(1), "plain step", 4)
    alone = torch.cat([network.point_losses(points.batch([row])) for row in (4, 0, 2, 1, 3)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


def test_scores_follow_the_cache_token_by_token_and_evaluation_works(model: LanguageModel) -> None:
    found = model.token_log_probs(TEXTS, batch_size=2)
    for text, scores in zip(TEXTS, found, strict=True):
        state, last, walked = model.network.initial_state(1), model.tokenizer.begin_id, []
        for number in [*model.tokenizer.encode(text), model.tokenizer.end_id]:
            log_probs, state = model.network.step(torch.tensor([last]), state)
            walked.append(float(log_probs[0, number]))
            last = number
        assert scores == pytest.approx(walked, rel=1e-9)
    result = canary_exposure(model, CANARIES)
    assert result["candidates"] == 1000
    assert result["highest_exposure"] < result["largest_possible"]
    assert perplexity(model, TEXTS)["perplexity"] < 3 * model.tokenizer.size


def test_the_first_weights_are_a_function_of_the_stream(model: LanguageModel) -> None:
    network = model.network.float()

    def drawn(seed: int) -> list[torch.Tensor]:
        network.initialise(RandomStream.from_seed(seed))
        return [p.detach().clone() for p in network.parameters() if p.requires_grad]

    first, again, other = drawn(3), drawn(3), drawn(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    read = getattr(network, "pretrained", False) and all(p.requires_grad for p in network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True)) == read


@pytest.mark.parametrize("kind", ["awd-lstm", "gpt2 of a folder", "llama with adapters"])
def test_every_kind_trains_and_is_read_again(
    kind: str, curated: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "RUN")
    shutil.copytree(curated, run.root)
    section = FRESH.get(kind) or {"kind": kind.split()[0], "folder": folders[kind.split()[0]]}
    if "adapters" in kind:
        section = {**section, "lora": {"rank": 2}}
    settings = small(model=section, max_tokens=40, epochs=1, name="m", learning_rate=0.01)
    summary = train_model(run, settings)
    assert all(norm > 0 for norm in summary["update_norms"].values())
    loaded = load_model(run.model("m"))
    assert np.isfinite(np.concatenate(loaded.token_log_probs(TEXTS))).all()
    assert len(loaded.tokenizer.encode(MASK)) == 1
    (words,) = _next_words(run.model("m"), ["Hello"], 3)  # one token may begin, end and pad
    assert len(words) == 3


def test_an_octet_that_is_no_text_is_spelled_as_what_it_is(folders: dict[str, Path]) -> None:
    """Ids spelled one after the other give the text, each octet of signs that are no ASCII by its value."""
    theirs = FolderTokenizer.from_folder(folders["gpt2"])
    for codec in (theirs, Tokenizer.from_texts(["hello"], 10)):
        text = "10 hello Ω, 10 €\n"
        spelled = "".join(codec.spelled(number) for number in codec.encode(text))
        assert spelled == "".join(
            sign if sign < "\x80" else "".join(f"\\x{octet:02x}" for octet in sign.encode()) for sign in text
        )
        assert all("\ufffd" not in codec.spelled(number) for number in range(codec.size))


def test_adapters_move_and_all_else_stays(curated: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "RUN")
    shutil.copytree(curated, run.root)
    section = {"kind": "gpt2", "folder": folders["gpt2"], "lora": {"rank": 2}}
    summary = train_model(run, small(model=section, max_tokens=40, epochs=1))
    assert all("lora" in layer for layer in summary["update_norms"])
    before = load_file(folders["gpt2"] / "model.safetensors")
    after = load_file(run.model("crt").weights)
    moved = {name for name, value in before.items() if not torch.equal(value, after[name][: len(value)])}
    assert moved == {f"transformer.h.{layer}.attn.c_attn.weight" for layer in range(2)}


def test_the_folder_is_named_and_not_where_it_lies(
    curated: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A model leaves with its ledger and its manifest."""
    run = RunFolder(tmp_path / "RUN")
    shutil.copytree(curated, run.root)
    own = shutil.copytree(folders["gpt2"], tmp_path / "a place of mine" / "gpt2")
    settings = small(model={"kind": "gpt2", "folder": own}, max_tokens=40, epochs=1)
    told = train_model(run, settings)
    model = run.model("crt")
    assert read_manifest(model)["settings"]["model"]["folder"] == "gpt2"
    assert not [p.name for p in model.root.iterdir() if b"a place of mine" in p.read_bytes()]
    # an earlier version wrote the whole path
    spelled = {"kind": "gpt2", "folder": str(own), "layers": 4, "width": 256, "heads": 4, "context": 128}
    assert by_name({"model": {**spelled, "lora": None}})["model"] == settings_json(settings)["model"]
    elsewhere = shutil.copytree(own, tmp_path / "elsewhere" / "gpt2")
    moved = small(model={"kind": "gpt2", "folder": elsewhere}, max_tokens=40, epochs=1)
    assert train_model(run, moved) == told
    (elsewhere / "generation_config.json").write_text("{}")
    with pytest.raises(RunStateError, match=r"another gpt2 \(train.model.folder\)"):
        train_model(run, moved)
    shutil.rmtree(elsewhere)
    assert train_model(run, moved) == told


def test_what_did_not_move_is_a_failure() -> None:
    network = network_of(TrainSettings(model=FRESH["lstm"]).model, _words())
    network.initialise(RandomStream.from_seed(0))
    with pytest.raises(CheckFailed, match="no weight moved"):
        update_norms(dict(network.named_parameters()), network)
    broken = network_of(TrainSettings(model=FRESH["lstm"]).model, _words())
    with torch.no_grad():
        broken.lstm.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(CheckFailed, match="finite"):
        update_norms(dict(network.named_parameters()), broken)


def test_a_folder_is_named_by_its_content_and_one_fitted_to_labels_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    own = shutil.copytree(folders["gpt2"], tmp_path / "own")
    settings = TrainSettings(model={"kind": "gpt2", "folder": own}).model
    before = identity_of(settings)
    (own / "generation_config.json").write_text("{}")
    assert identity_of(settings) != before
    tokenizer = FolderTokenizer.from_folder(own)
    (own / "fit.json").touch()
    with pytest.raises(ConfigurationError, match="redactory fit"):
        network_of(settings, tokenizer)


def test_a_folders_tokenizer_keeps_text_and_makes_no_special_token_of_it(folders: dict[str, Path]) -> None:
    tokenizer = FolderTokenizer.from_folder(folders["gpt2"], single_digits=True)
    text = f"Hello 1023, <|endoftext|> and {MASK}."
    ids = tokenizer.encode(text)
    assert tokenizer.end_id not in ids
    assert ids.count(tokenizer.mask_id) == 1
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("1023")) == 4
    assert len(FolderTokenizer.from_folder(folders["gpt2"]).encode("1023")) == 2


def test_long_texts_are_scored_in_windows(folders: dict[str, Path]) -> None:
    settings = TrainSettings(
        model={"kind": "gpt2", "layers": 1, "width": 8, "heads": 1, "context": 10}, max_tokens=10
    ).model
    network = network_of(settings, _words())
    network.initialise(RandomStream.from_seed(1))
    model = LanguageModel(_words(), network.double())
    long = "12345678" * 4
    scores = model.token_log_probs([long, "123"])
    assert [len(own) for own in scores] == [33, 4]
    assert scores[0][:10] == pytest.approx(model.token_log_probs([long[:12]])[0][:10])


def test_dropout_is_a_function_of_step_and_point_alone() -> None:
    sizes = {"kind": "awd-lstm", "embedding_size": 6, "hidden_size": 9}
    network = network_of(TrainSettings(model=sizes, max_tokens=16).model, _words()).double()
    network.initialise(RandomStream.from_seed(1))
    points = EncodedPoints.from_texts(TEXTS, _words(), 40)

    def losses(step: int, rows: list[int], purpose: str = "noisy step") -> dict[int, float]:
        network.begin_step(RandomStream.from_seed(5), purpose, step)
        return dict(zip(rows, network.point_losses(points.batch(rows)).tolist(), strict=True))

    network.train()
    first = losses(0, [0, 1, 3])
    assert losses(0, [3, 0])[0] == pytest.approx(first[0], rel=1e-12)
    assert losses(1, [0])[0] != pytest.approx(first[0], rel=1e-6)
    assert losses(0, [0], "plain step")[0] != pytest.approx(first[0], rel=1e-6)
    network.eval()
    assert losses(0, [0])[0] == losses(1, [0])[0]


def test_no_dropout_is_the_plain_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("word", "input", "layer", "output", "weight"):
        monkeypatch.setattr(AwdLstmSettings, f"{where}_dropout", 0.0)
    settings = AwdLstmSettings(kind="awd-lstm", embedding_size=6, hidden_size=9)
    network: LanguageNetwork = network_of(settings, _words()).double()
    network.initialise(RandomStream.from_seed(1))
    batch = EncodedPoints.from_texts(TEXTS, _words(), 40).batch([0, 1])
    network.begin_step(RandomStream.from_seed(5), "noisy step", 0)
    trained = network.train().point_losses(batch)
    torch.testing.assert_close(trained, network.eval().point_losses(batch))
