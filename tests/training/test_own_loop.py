"""A loop of one's own: the same mechanism, bit for bit, and what it does wrong is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jsonschema import Draft202012Validator
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, InputError, RunStateError
from redactory.foundation.files import write_json
from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import list_broken_files
from redactory.training import PrivateLoop, TrainSettings, load_model, make_guarantee_card, train_model
from redactory.training import loop as training_loop
from redactory.training.data import Batch, open_public_text
from redactory.training.guarantee.budget import BudgetExceeded
from redactory.training.mechanisms.ledger import NOISY_STEP
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.tokenizer import Tokenizer
from redactory.training.vocabulary import build_vocabulary
from tests.training.conftest import PUBLIC_TEXTS, make_initial_model, make_small_settings, write_run
from tests.training.tiny_folders import causal_folder
from tests.training.uedp.unit_runs import TRAINING, write_unit_run

MakeRun = Callable[[], RunFolder]


class Words(nn.Module):
    """A network that knows the last word alone; ``spoilt`` is what a careless author does on the way."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.words, self.next = nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary)
        self.register_buffer("seen", torch.zeros(1))
        self.fixed = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.spoilt: Callable[[Tensor], Tensor] = lambda states: states

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.next(self.spoilt(self.words(ids)))
        return found


def losses(network: nn.Module, batch: Batch) -> Tensor:
    each = F.cross_entropy(network(batch.inputs).transpose(1, 2), batch.targets, reduction="none")
    return (each * batch.real).sum(1)


SHORT = {"trainer": "dpsgd", "epochs": 1}


class Bench:
    """A loop over a run, its network and its optimizer, and what a careful author does in a step."""

    def __init__(self, run: RunFolder, network: nn.Module | None = None, **changes: Any) -> None:
        said, letters = changes.pop("public_steps", None), run.root.with_name("letters.json")
        if not letters.exists():
            write_json(letters, Tokenizer.from_texts(PUBLIC_TEXTS, 30).to_json())
        if "model" not in changes:
            changes["tokenizer"] = letters
        settings = make_small_settings(**{**SHORT, **changes})
        self.loop = PrivateLoop(run, settings, public_steps=said)
        self.network: Any = (network or Words(self.loop.tokenizer.size)).to(settings.device)
        self.step: Any = None
        self.optimizer: Optimizer = SGD([p for p in self.network.parameters() if p.requires_grad], lr=0.5)

    def begin(self, *optimizers: Optimizer) -> PrivateLoop:
        return self.loop.begin(self.network, *(optimizers or (self.optimizer,)), losses=losses)

    def carry_out(self, steps: int | None = None) -> None:
        for _ in range(len(self.loop) if steps is None else steps):
            next(self.loop).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def whole(self) -> dict[str, Any]:
        self.begin()
        self.carry_out()
        return self.loop.finish()


@pytest.fixture
def bench(fresh_run: MakeRun) -> Bench:
    return Bench(fresh_run())


def followed(run: RunFolder, settings: TrainSettings) -> dict[str, Any]:
    """A loop that does as the settings say, from the weights that ``redactory train`` draws."""
    vocabulary = build_vocabulary(run, settings, open_public_text(run, None))
    network: Any = make_initial_model(settings, RandomStream.from_seed(7), vocabulary).network
    rule = AdamW if settings.optimizer == "adam" else SGD
    plain, noisy = (rule(network.parameters(), lr=1.0, weight_decay=0.0) for _ in range(2))
    used = (plain, noisy) if settings.trainer.startswith("crt") else (noisy,)
    with PrivateLoop(run, settings) as loop:
        for step in loop.begin(network, *used):
            optimizer = noisy if step.noisy else plain
            step.backward()
            for group in optimizer.param_groups:
                group["lr"] = step.learning_rate
            optimizer.step()
            optimizer.zero_grad()
        return loop.finish()


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": "crt", "precision": "bf16"},
        {"trainer": "dpsgd", "learning_rate_schedule": "linear", "warm_up": 0.2},
        {"trainer": "crt-drop", "optimizer": "sgd", "public_share": 0.5},
    ],
    ids=lambda changes: changes["trainer"],
)
def test_a_loop_by_the_settings_gives_the_same_bits(changes: dict[str, Any], fresh_run: MakeRun) -> None:
    trained, own, settings = fresh_run(), fresh_run(), make_small_settings(**changes)
    told, card = train_model(trained, settings)["guarantee"], followed(own, settings)["guarantee"]
    name = settings.model_name
    assert own.get_model_folder(name).weights.read_bytes() == trained.get_model_folder(name).weights.read_bytes()
    optimizers = [one["training"].pop("optimizer") for one in (card, told)]
    assert "loop" in optimizers[0]
    assert settings.optimizer in optimizers[1]
    of_its_own = {"own_loop", "assumptions", "ledger", "side_channels"}
    assert {k: v for k, v in card.items() if k not in of_its_own} == {
        k: v for k, v in told.items() if k not in of_its_own
    }
    (said,) = set(card["assumptions"]) - set(told["assumptions"])
    assert "LstmLanguageModel" in said
    steps = [r.body for r in read_records(own.get_model_folder(name).ledger) if r.type == "noisy_step"]
    assert steps == [r.body for r in read_records(trained.get_model_folder(name).ledger) if r.type == "noisy_step"]
    assert load_model(own.get_model_folder(name)).network.state_dict().keys()


@pytest.mark.parametrize(
    "changes", [{}, {"task": "classify", "classes": ("letter", "meeting"), "model": {"kind": "bag"}}]
)
def test_users_entities_and_classes_are_hidden_as_well(changes: dict[str, Any], tmp_path: Path) -> None:
    settings = TrainSettings(**(TRAINING | changes))
    trained, own = (write_unit_run(tmp_path / name, classes="task" in changes) for name in "ab")
    told, card = train_model(trained, settings)["guarantee"], followed(own, settings)["guarantee"]
    name = settings.model_name
    assert own.get_model_folder(name).weights.read_bytes() == trained.get_model_folder(name).weights.read_bytes()
    assert card["epsilon"] == told["epsilon"]
    Draft202012Validator(redactory.schema("unit-guarantee")).validate(card)


def test_the_folder_of_an_own_network_holds_its_state_dict_and_a_card(bench: Bench) -> None:
    told = bench.whole()
    folder = bench.loop._folder
    kept = load_file(folder.weights)
    assert kept.keys() == bench.network.state_dict().keys()
    assert all(torch.equal(kept[name], value.cpu()) for name, value in bench.network.state_dict().items())
    assert list_broken_files(folder) == []
    card = told["guarantee"]
    assert (card["kind"], card["own_loop"]["public_steps"]) == ("own", None)
    assert make_guarantee_card(bench.loop._run, "dpsgd") == card
    Draft202012Validator(redactory.schema("guarantee")).validate(card)
    head = json.loads(folder.ledger.read_text(encoding="utf-8").splitlines()[0])
    Draft202012Validator(redactory.schema("ledger-record")).validate(head)
    assert "test_own_loop.Words" in folder.card.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="build it there"):
        load_model(folder)
    assert not bench.loop._run.list_unfinished_training_files()
    assert Bench(bench.loop._run).begin().finish()["guarantee"] == card


def test_a_network_of_hugging_face_is_saved_as_its_library_reads_it(fresh_run: MakeRun, tmp_path: Path) -> None:
    run, base = fresh_run(), causal_folder(tmp_path / "base", "llama", attention_dropout=0.0)
    bench = Bench(run, nn.Linear(1, 1), model={"kind": "folder", "folder": base}, max_tokens=40, name="own")
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(bench.loop.tokenizer.size)
    adapted: Any = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    optimizer = AdamW([p for p in adapted.parameters() if p.requires_grad], lr=0.01)
    for step in bench.loop.begin(adapted, optimizer):
        step.backward()
        optimizer.step()
        optimizer.zero_grad()
    told, folder = bench.loop.finish(), run.get_model_folder("own")
    assert (told["guarantee"]["kind"], told["guarantee"]["own_loop"]["model_type"]) == ("llama", "llama")
    ids = torch.arange(5)[None]
    plain: Any = AutoModelForCausalLM.from_pretrained(folder.root)
    ours: Any = load_model(folder).network
    expected = adapted.eval()(input_ids=ids).logits
    assert torch.allclose(plain(input_ids=ids).logits, expected, atol=1e-5)
    assert torch.allclose(ours.model(input_ids=ids).logits, expected, atol=1e-5)
    kept = json.loads((folder.root / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert kept["base_model_name_or_path"] == "base"


@pytest.mark.parametrize("steps", [0, 2])
def test_a_loop_that_was_interrupted_goes_on_with_the_same_bits(
    steps: int, fresh_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "CHECKPOINT_STEPS", 1)
    whole, run = Bench(fresh_run()), fresh_run()
    whole.whole()
    first = Bench(run)
    with first.loop:
        first.begin()
        first.carry_out(steps)
        if steps:
            next(first.loop).backward()  # on the ledger, and in no checkpoint
    again = Bench(run, Words(first.loop.tokenizer.size, seed=1))
    again.begin()
    assert len(again.loop) == 4 - steps
    again.carry_out()
    again.loop.finish()
    assert run.get_model_folder("dpsgd").weights.read_bytes() == whole.loop._folder.weights.read_bytes()


# Misuse: what an author does, one thing after the other, and what the loop says of it.


def take(b: Bench) -> None:
    b.step = next(b.loop)


def compute(b: Bench) -> None:
    b.step.backward()


def move(b: Bench) -> None:
    b.optimizer.step()


def skip(b: Bench) -> None:
    next(b.loop, None)


def one_step(b: Bench) -> None:
    b.carry_out(1)


def finish(b: Bench) -> None:
    b.loop.finish()


def stray_backward(b: Bench) -> None:
    """A backward pass over examples that nobody drew."""
    ids = torch.arange(6).reshape(2, 3)
    batch = Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool))
    losses(b.network, batch.to(next(b.network.parameters()).device)).sum().backward()


@torch.no_grad()
def nudge(b: Bench) -> None:
    b.network.words.weight[0, 0] += 1e-6


def nudge_data(b: Bench) -> None:
    b.network.next.bias.data[0] += 1e-6


def set_gradient(b: Bench) -> None:
    b.network.next.bias.grad = torch.ones_like(b.network.next.bias)


def clip_again(b: Bench) -> None:
    nn.utils.clip_grad_norm_(b.network.parameters(), 1e-3)


def add_parameter(b: Bench) -> None:
    b.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def count_states(b: Bench) -> None:
    def spoilt(states: Tensor) -> Tensor:
        b.network.seen += len(states)
        return states

    b.network.spoilt = spoilt


def centre_states(b: Bench) -> None:
    b.network.spoilt = lambda states: states - states.mean(0, keepdim=True).detach()


def drop_states(b: Bench) -> None:
    b.network.spoilt = lambda states: F.dropout(states, 0.5)


def round_states(b: Bench) -> None:
    """As ``accelerate`` does to the network that it prepares."""
    b.network.forward = torch.autocast("cpu", torch.bfloat16)(b.network.forward)


def watch_gradients(b: Bench) -> None:
    """As wandb.watch does."""
    b.network.next.bias.register_hook(print)


def perform(b: Bench, actions: list[Callable[[Bench], Any]]) -> None:
    for action in actions:
        action(b)


MISUSE: dict[str, tuple[list[Callable[[Bench], Any]], str]] = {
    "before noise": ([take, move], "stepped before the step's noisy gradient was computed"),
    "stray backward": ([take, stray_backward], "in step 1: another backward pass"),
    "stray backward after noise": ([take, compute, stray_backward], "another backward pass reached the parameters"),
    "stray backward between": ([stray_backward], "outside every step: another backward pass"),
    "gradient set": ([take, set_gradient, compute], "gradients are already present"),
    "clipped again": ([take, compute, clip_again, move], "max_grad_norm 0"),
    "moved before the step": (
        [take, compute, nudge_data, move],
        "changed between its gradient and its optimizer's step",
    ),
    "moved after the step": ([one_step, nudge, take], "changed after its optimizer's step"),
    "moved before the first": ([nudge, take], "changed between two steps"),
    "moved before its gradient": ([take, nudge, compute], "changed before its gradient was computed"),
    "moved after the end": ([Bench.carry_out, skip, nudge, finish], "changed between two steps"),
    "moved at the end": ([Bench.carry_out, nudge, finish], "changed after its optimizer's step"),
    "frozen moved": ([lambda b: b.network.fixed.add_(1.0), Bench.carry_out, finish], "frozen weights changed"),
    "buffer moved": ([take, compute, lambda b: b.network.seen.add_(1.0), move], "weights or buffers changed"),
    "stepped twice": ([one_step, move], "stepped twice"),
    "another optimizer": (
        [take, compute, lambda b: SGD(b.network.parameters(), lr=0.5).step(), move],
        "changed between its gradient",
    ),
    "closure": ([take, compute, lambda b: b.optimizer.step(lambda: 0.0)], "closure"),  # type: ignore[arg-type]
    "between steps": ([move], "the ledger has no such step"),
    "after the last": ([Bench.carry_out, skip, move], "the ledger has no such step"),
    "skipped": ([take, take], "was skipped"),
    "not taken": ([take, compute, take], "no optimizer used its gradient"),
    "computed twice": ([take, compute, compute], "already computed"),
    "old step": ([take, compute, move, lambda b: b.optimizer.zero_grad(), skip, compute], "step 1, which is already"),
    "private examples": ([take, lambda b: print(b.step.batch)], "are private, and not available"),
    "one more parameter": ([add_parameter, take], "has parameters that are not trained here"),
    "frozen": ([lambda b: b.network.words.requires_grad_(False), take], "trains other parameters"),
    "dropout": ([one_step, drop_states, take, compute], "draws random numbers"),
    "autocast": ([one_step, round_states, take, compute], "noisy steps need float32"),
    "counting": ([count_states, take, compute], "changed while its gradient was computed"),
    "watched": ([watch_gradients, take, compute], "a hook on a parameter would see private gradients"),
    "centring": ([centre_states, take, compute], "with the other examples"),
}


@pytest.mark.parametrize(("actions", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused_from_then_on(actions: list[Callable[[Bench], Any]], message: str, bench: Bench) -> None:
    bench.begin()
    perform(bench, actions[:-1])
    with pytest.raises((CheckFailed, ConfigurationError), match=message):
        actions[-1](bench)
    step, watch = bench.optimizer.step, bench.loop._guard
    later = (lambda: next(bench.loop), bench.loop.finish, step, lambda: stray_backward(bench))
    for anything in (*later, lambda: watch.compute_gradient(watch._step_number or 1, step, by_autograd=False)):
        with pytest.raises(CheckFailed, match="already refused"):
            anything()
    with pytest.raises(GuaranteeError, match="unfinished"):
        make_guarantee_card(bench.loop._run, "dpsgd")


@pytest.mark.parametrize("wrong", ["moved after the step", "gradient set", "dropout"])
def test_a_refused_loop_can_be_fixed(wrong: str, bench: Bench) -> None:
    bench.begin()
    with pytest.raises(CheckFailed):
        perform(bench, MISUSE[wrong][0])
    bench.loop.close()
    Bench(bench.loop._run).whole()
    assert sum(r.type == "noisy_step" for r in read_records(bench.loop._folder.ledger)) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"between": nn.BatchNorm1d(8)}, "batch normalisation"),
        ({"spoilt": nn.Dropout(0.5).forward}, "dropout"),
        (
            {"fixed": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16), requires_grad=False)},
            "fixed: is torch.bfloat16",
        ),
        ({"fixed": nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)}, "fixed: is torch.uint8"),
        ({"seen": torch.zeros(1, dtype=torch.float16)}, "seen: is torch.float16"),
        ({"spoilt": lambda states: states - states.mean((0, 1), keepdim=True)}, "beside a longer one"),
    ],
)
def test_a_network_that_is_not_clipped_exactly_is_refused(change: dict[str, Any], message: str, bench: Bench) -> None:
    for name, value in change.items():
        setattr(bench.network, name, value)
    bench.optimizer = SGD(bench.network.parameters(), lr=0.5)
    with pytest.raises(ConfigurationError, match=message):
        bench.begin()
    assert not bench.loop._folder.root.exists()


def test_optimizers_move_exactly_what_is_clipped(bench: Bench) -> None:
    network = bench.network
    beside = SGD([*network.parameters(), nn.Parameter(torch.zeros(2))], lr=0.5)
    for given, said in (
        ((SGD(network.words.parameters(), lr=0.5),), "are in no optimizer"),
        ((beside,), "not trained here"),
        (("adam",), "expected a torch.optim.Optimizer"),
    ):
        bench = Bench(bench.loop._run, network)
        with pytest.raises(ConfigurationError, match=said):
            bench.begin(*given)  # type: ignore[arg-type]
    both = SGD(network.words.parameters(), lr=0.5), SGD(network.next.parameters(), lr=0.1)
    shared = Bench(bench.loop._run, network)
    for step in shared.begin(*both):
        step.backward()
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
    assert shared.loop.finish()["steps"] == 4


def test_data_that_changed_are_refused_on_the_way_and_at_the_end(fresh_run: MakeRun) -> None:
    at_the_end, on_the_way = Bench(fresh_run()), Bench(fresh_run())
    at_the_end.begin()
    at_the_end.carry_out()
    on_the_way.begin()
    on_the_way.carry_out(2)
    on_the_way.loop.close()
    for bench in (at_the_end, on_the_way):
        (part,) = bench.loop._run.vault.glob("part-*")
        part.write_bytes(part.read_bytes() + b"\n")
    with pytest.raises(CheckFailed, match="parts of vault"):
        at_the_end.loop.finish()
    with pytest.raises(CheckFailed, match="parts of vault"):
        Bench(on_the_way.loop._run).begin()


def test_examples_cannot_be_changed_in_memory(bench: Bench) -> None:
    bench.begin()
    with pytest.raises(ValueError, match="read-only"):
        next(bench.loop)._step.kind.examples.ids[0] = 1  # type: ignore[attr-defined]


def test_adapters_of_any_name_are_saved(fresh_run: MakeRun) -> None:
    run = fresh_run()
    loop = PrivateLoop(run, make_small_settings(**SHORT, max_tokens=32))
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    network = LlamaForCausalLM(LlamaConfig(vocab_size=loop.tokenizer.size, **sizes))  # type: ignore[arg-type]
    network = get_peft_model(network, LoraConfig(r=2, target_modules=["q_proj"]), adapter_name="mine")
    bench = SimpleNamespace(loop=loop, optimizer=SGD([p for p in network.parameters() if p.requires_grad], lr=0.5))
    loop.begin(network, bench.optimizer)
    Bench.carry_out(bench)  # type: ignore[arg-type]
    loop.finish()
    (path,) = run.get_model_folder("dpsgd").root.rglob("adapter_model.safetensors")
    saved = load_file(path)
    trained = {name.replace(".mine", ""): p for name, p in network.named_parameters() if p.requires_grad}
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], trained[name]) for name in saved)


def test_one_ledger_has_one_loop(fresh_run: MakeRun) -> None:
    own, trained = Bench(fresh_run()), fresh_run()
    own.begin()
    own.carry_out(2)
    with pytest.raises(RunStateError, match="of the loop's steps are not done"):
        own.loop.finish()
    own.loop.close()
    run = own.loop._run
    with pytest.raises(RunStateError, match="own_loop"):
        train_model(run, own.loop._settings)
    larger = Words(own.loop.tokenizer.size + 1)
    with pytest.raises(RunStateError, match="own_loop"):
        Bench(run, larger).begin()
    Bench(run).whole()
    with pytest.raises(RunStateError, match="loop around its steps"):
        train_model(run, own.loop._settings)
    train_model(trained, own.loop._settings)
    with pytest.raises(RunStateError, match="loop around its steps"):
        Bench(trained).begin().finish()


def test_a_loop_stays_within_its_budget(fresh_run: MakeRun) -> None:
    run = fresh_run()
    budget = {"path": run.root.with_name("budget.jsonl"), "epsilon": 6.0}
    Bench(run, budget=budget, seed=None).whole()
    more = Bench(run, budget=budget, seed=None, name="more")
    with pytest.raises(BudgetExceeded):
        more.begin()
    assert not more.loop._folder.root.exists()


def test_a_loop_that_was_killed_before_its_seal_is_sealed(bench: Bench) -> None:
    told, folder = bench.whole()["guarantee"], bench.loop._folder
    for path in (folder.success, folder.manifest, folder.guarantee, folder.card):
        path.unlink()
    assert Bench(bench.loop._run).begin().finish()["guarantee"] == told
    assert list_broken_files(folder) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"trainer": "sgd"}, "no noisy steps"), ({"trainer": "crt", "held_out": 0.1}, "train.held_out")],
)
def test_settings_that_a_loop_cannot_follow_are_refused(changes: dict[str, Any], said: str, fresh_run: MakeRun) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Bench(fresh_run(), **changes)


def test_what_steps_without_noise_learn_from_is_the_loops_or_said_on_the_card(fresh_run: MakeRun) -> None:
    strict = Bench(fresh_run(), trainer="crt")
    step = next(strict.begin())
    assert not step.noisy
    assert len(step.batch.inputs)
    with pytest.raises(CheckFailed, match="another backward pass reached the parameters"):
        stray_backward(strict)
    said = "a dictionary"
    free = Bench(fresh_run(), trainer="crt", public_steps=said)
    free.begin()
    for step in free.loop:
        if step.noisy:
            step.backward()
        else:
            stray_backward(free)
            free.optimizer.step()
        free.optimizer.step()
        free.optimizer.zero_grad()
    card = free.loop.finish()["guarantee"]
    assert card["own_loop"]["public_steps"] == said
    assert any(said in words for words in card["assumptions"])
    careless = Bench(fresh_run(), trainer="crt", public_steps=said)
    assert next(step for step in careless.begin() if step.noisy).number > 1
    with pytest.raises(CheckFailed, match="another backward pass reached the parameters"):
        stray_backward(careless)


def iterate(run: RunFolder, torch_seed: int, **changes: Any) -> tuple[list[str], list[Any], list[NDArray[np.int64]]]:
    """Take all steps through a ``DataLoader``; return phases, the ledger's records and the rows of noisy steps."""
    samples: list[NDArray[np.int64]] = []
    bench = Bench(run, **{"trainer": "crt", "sampling_rate": 0.25, **changes})
    draw, phases = PoissonGaussian.sample_rows, []

    def recorded(mechanism: PoissonGaussian, stream: RandomStream, step: int, count: int) -> NDArray[np.int64]:
        samples.append(draw(mechanism, stream, step, count))
        return samples[-1]

    torch.manual_seed(torch_seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PoissonGaussian, "sample_rows", recorded)
        loader = DataLoader(bench.begin(), batch_size=None)
        assert len(loader) == len(bench.loop)
        for step in loader:
            phases.append(step.phase)
            if step.phase != "private":
                assert len(step.batch.inputs)
            step.backward()
            assert any(bool(p.grad.any()) for p in bench.optimizer.param_groups[0]["params"])
            bench.optimizer.step()
            bench.optimizer.zero_grad()
    bench.loop.finish()
    ledger = read_records(run.get_model_folder("crt").ledger)
    return phases, [record.body for record in ledger if record.type == NOISY_STEP], samples


def test_the_phases_are_a_data_set_whose_samples_are_the_loops(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, private=[f"a {MASK}", f"{MASK} b"]) for name in "abc"]
    phases, sums, samples = iterate(runs[0], 0, min_public_steps=2, seed=7)
    assert phases == ["public"] * phases.count("public") + ["private"] * 4
    assert "public" in phases
    stream, mechanism = RandomStream.from_seed(7), PoissonGaussian(0.25, 1.0, 1.0, 1.0)
    assert [rows.tolist() for rows in samples] == [mechanism.sample_rows(stream, n, 2).tolist() for n in range(4)]
    assert not all(len(rows) for rows in samples)  # a Poisson sample may be empty
    assert iterate(runs[1], 1, min_public_steps=2, seed=7)[1] == sums  # whatever torch's generator draws
    assert iterate(runs[2], 0, min_public_steps=2, seed=None)[1] != sums


def test_mixed_phases_follow_the_schedule(fresh_run: MakeRun) -> None:
    phases, _, _ = iterate(fresh_run(), 0, public_share=0.5, sampling_rate=0.125)
    assert sorted(phases) == ["private"] * 8 + ["public"] * 8
    assert phases != sorted(phases, reverse=True)


def test_a_data_set_of_phases_gives_nobody_a_private_batch(bench: Bench, fresh_run: MakeRun) -> None:
    loop = bench.begin()
    for workers in ("fork", "spawn"):
        with pytest.raises(ConfigurationError, match="num_workers"):
            next(iter(DataLoader(loop, None, num_workers=1, timeout=60, multiprocessing_context=workers)))
    read_ahead = iter(DataLoader(loop, batch_size=None))
    next(read_ahead)
    with pytest.raises(CheckFailed, match="skipped"):
        next(read_ahead)
    step = next(iter(DataLoader(Bench(fresh_run()).begin(), batch_size=None)))
    assert step.phase == "private"
    assert not [value for value in vars(step).values() if isinstance(value, Tensor | Batch)]
    with pytest.raises(CheckFailed, match="are private"):
        step.batch  # noqa: B018


def test_public_texts_of_the_callers_make_batches(fresh_run: MakeRun) -> None:
    bench = Bench(fresh_run(), trainer="crt", public_steps="a dictionary")
    texts = ["Hello, how can I help you?", "Thank you!"]
    (batch,) = DataLoader([{"text": text} for text in texts], batch_size=2, collate_fn=bench.loop.collate)  # type: ignore[arg-type]
    assert batch.real.sum(1).tolist() == [len(bench.loop.tokenizer.encode(text)) + 1 for text in texts]
    assert bench.loop.tokenizer.decode(batch.inputs[0, 1:].tolist()) == texts[0]
    assert torch.equal(bench.loop.collate(texts).inputs, batch.inputs)
