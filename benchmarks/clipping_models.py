"""The models and methods of ``benchmarks/clipping.py``: the same sizes with each library's own layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.training.clipping import compute_clipped_gradient
from redactory.training.clipping.layers import Lstm, compute_vocabulary_losses

Layer = Callable[[int, int], nn.Module]


class Size(NamedTuple):
    """B points of T tokens over a vocabulary of V."""

    points: int
    tokens: int
    vocabulary: int


SIZES = {
    "lstm_200": Size(16, 64, 5000),
    "gpt2_4x256": Size(8, 64, 5000),
    "qwen3_4x256": Size(8, 64, 5000),
    "bert_4x256": Size(16, 64, 5000),
    "bag_64": Size(256, 32, 20_000),
    "gpt2_2x128": Size(16, 64, 50257),
    "awd_lstm": Size(8, 32, 5000),
    "distilgpt2": Size(4, 64, 50257),
    "gemma3_lora": Size(16, 64, 262_144),
}
LEARNING_RATE = 1e-3
warnings.filterwarnings("ignore", message="Full backward hook is firing")
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`")  # peft reads it


def libraries(model: str, method: str) -> None:
    """Import what a method needs, and run each library's kernels and optimizer once in small."""
    small = nn.LSTM(4, 4, batch_first=True)
    small(torch.randn(2, 2, 4))[0].sum().backward()
    torch.optim.SGD(small.parameters(), lr=LEARNING_RATE).step()
    if "lstm" not in model and "bag" not in model:
        from transformers import BertForSequenceClassification, GPT2LMHeadModel, Qwen3ForCausalLM  # noqa: F401
    if method.startswith("opacus"):
        import opacus.utils.fast_gradient_clipping_utils  # noqa: F401


class LstmNet(nn.Module):
    """Embedding 200, one LSTM layer of 200, output layer (CRT, appendix A.3)."""

    def __init__(self, vocabulary: int, layer: Layer) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 200)
        self.lstm = layer(200, 200)
        self.output = nn.Linear(200, vocabulary)

    def hidden(self, ids: Tensor) -> Tensor:
        return states_of(self.lstm(self.embedding(ids)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.hidden(ids))


class AwdNet(nn.Module):
    """Embedding 100, LSTM layers of 1150, 1150 and 100, tied output layer, AWD-LSTM's dropouts.

    Word dropout 0.1, recurrent weights 0.5 (where the layer can), variational dropout 0.4, 0.25, 0.25, 0.4.
    """

    def __init__(self, vocabulary: int, layer: Layer, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 100)
        self.layers = nn.ModuleList([layer(100, 1150), layer(1150, 1150), layer(1150, 100)])
        self.output = nn.Linear(100, vocabulary)
        if tied:
            self.output.weight = self.embedding.weight

    def hidden(self, ids: Tensor) -> Tensor:
        words = F.dropout(torch.ones(self.embedding.num_embeddings, 1), 0.1)
        states = self.embedding(ids) * words[ids]
        for layer, rate in zip(self.layers, (0.4, 0.25, 0.25), strict=True):
            states = states_of(layer(locked(states, rate)))
        return locked(states, 0.4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.hidden(ids))


class DroppedLstm(nn.LSTM):
    """PyTorch's own LSTM with half of the recurrent weights dropped in every step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        zero = x.new_zeros(1, len(x), self.hidden_size)
        weights = [self.weight_ih_l0, F.dropout(self.weight_hh_l0, 0.5), self.bias_ih_l0, self.bias_hh_l0]
        return torch._VF.lstm(x, (zero, zero), weights, True, 1, 0.0, True, False, True)


class OurDroppedLstm(Lstm):
    """Our LSTM with half of the recurrent weights dropped in every step."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.empty(4 * self.hidden_size, self.hidden_size).bernoulli_(0.5).mul_(2.0)
        return super().forward(x, [mask])


class Gpt2(nn.Module):
    """GPT-2 from a configuration, explicit positions, no dropout, output layer tied to the embedding."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int, tied: bool) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocabulary, n_layer=layers, n_embd=width, n_head=heads, n_positions=128,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0, eos_token_id=0,
            tie_word_embeddings=tied,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.model.transformer(input_ids=ids, position_ids=positions(ids)).last_hidden_state

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, position_ids=positions(ids)).logits

    @property
    def output(self) -> nn.Module:
        return self.model.lm_head


class Decoder(nn.Module):
    """A language model of transformers."""

    model: Any

    def hidden(self, ids: Tensor) -> Tensor:
        return self.model.model(input_ids=ids).last_hidden_state

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids).logits

    @property
    def output(self) -> nn.Module:
        return self.model.lm_head


class Qwen3(Decoder):
    """Qwen3 from a configuration: grouped queries, norms of queries and keys, untied."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config(
            vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=width, intermediate_size=3 * width,
            num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=width // heads,
            use_cache=False, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
        )  # fmt: skip
        self.model = Qwen3ForCausalLM(config)


class Gemma3Lora(Decoder):
    """Gemma 3 in the size of 270 million weights from a configuration, frozen, with adapters of rank 4 by peft."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        from peft import LoraConfig, get_peft_model
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig

        config = Gemma3TextConfig(
            vocab_size=vocabulary, num_hidden_layers=18, hidden_size=640, intermediate_size=2048,
            num_attention_heads=4, num_key_value_heads=1, head_dim=256, sliding_window=512, use_cache=False,
        )  # fmt: skip
        self.adapted = get_peft_model(Gemma3ForCausalLM(config), LoraConfig(r=4, target_modules="all-linear"))
        self.model = self.adapted.get_base_model()


class Bert(nn.Module):
    """BERT from a configuration, without dropout, and a class for each text: one place, three classes."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=width, intermediate_size=4 * width,
            num_attention_heads=heads, max_position_embeddings=128, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, num_labels=3,
        )  # fmt: skip
        self.model = BertForSequenceClassification(config)

    def hidden(self, ids: Tensor) -> Tensor:
        own = {"position_ids": positions(ids), "token_type_ids": torch.zeros_like(ids)}
        return self.model.bert(input_ids=ids, **own).pooler_output[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.hidden(ids))

    @property
    def output(self) -> nn.Module:
        return self.model.classifier


class Bag(nn.Module):
    """The mean of a text's embeddings of 64 numbers, and three classes."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(vocabulary, 64), nn.Linear(64, 3)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.embedding(ids).mean(1, keepdim=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.hidden(ids))


def positions(ids: Tensor) -> Tensor:
    """0, 1, 2, … for every row."""
    return torch.arange(ids.shape[1]).expand_as(ids).contiguous()


def locked(states: Tensor, rate: float) -> Tensor:
    """Variational dropout: one mask for all places of a row."""
    return states * F.dropout(torch.ones(len(states), 1, states.shape[2]), rate)


def states_of(output: Any) -> Tensor:
    """An LSTM's states, whatever else it gives."""
    return output if isinstance(output, Tensor) else output[0]


def network(model: str, method: str) -> nn.Module:
    """The network of a model with the layers of a method.

    Opacus refuses tied weights (ghost clipping) or gets their gradient wrong, and its LSTM cannot drop
    recurrent weights: its networks are untied and drop none.
    """
    vocabulary = SIZES[model].vocabulary
    ours = method in ("redactory", "sgd_same_layers")
    if model == "gpt2_4x256":
        return Gpt2(vocabulary, 4, 256, 4, not method.startswith("opacus"))
    if model == "gpt2_2x128":
        return Gpt2(vocabulary, 2, 128, 4, not method.startswith("opacus"))
    if model == "bag_64":
        return Bag(vocabulary)
    if model == "qwen3_4x256":
        return Qwen3(vocabulary, 4, 256, 4)
    if model == "bert_4x256":
        return Bert(vocabulary, 4, 256, 4)
    if model == "gemma3_lora":
        return Gemma3Lora(vocabulary)
    if model == "distilgpt2":
        return Gpt2(vocabulary, 6, 768, 12, not method.startswith("opacus"))
    if method.startswith("opacus"):
        from opacus.layers import DPLSTM

        layer: Layer = lambda inputs, hidden: DPLSTM(inputs, hidden, batch_first=True)  # noqa: E731
    elif model == "awd_lstm":
        layer = OurDroppedLstm if ours else DroppedLstm
    else:
        layer = Lstm if ours else lambda inputs, hidden: nn.LSTM(inputs, hidden, batch_first=True)
    if model == "lstm_200":
        return LstmNet(vocabulary, layer)
    return AwdNet(vocabulary, layer, not method.startswith("opacus"))


def stepper(model: str, method: str, clip_norm: float) -> Callable[[], None]:
    """A function that takes one step of ``method`` on ``model``, always on the same random batch."""
    torch.manual_seed(0)
    net, size = network(model, method), SIZES[model]
    ids = torch.randint(size.vocabulary, (size.points, size.tokens + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if model.startswith(("bert", "bag")):
        targets = targets[:, :1] % 3
    optimizer = torch.optim.SGD(trainable(net), lr=LEARNING_RATE)
    match method:
        case "sgd":
            return lambda: sgd(net, optimizer, inputs, targets)
        case "sgd_same_layers":
            return lambda: sgd_same_layers(net, optimizer, inputs, targets)
        case "redactory":
            return lambda: redactory(net, optimizer, inputs, targets, clip_norm)
        case "micro_batch":
            return lambda: micro_batch(net, optimizer, inputs, targets, clip_norm)
        case "opacus_hooks":
            return opacus_hooks(net, optimizer, inputs, targets, clip_norm)
        case _:
            return opacus_ghost(net, optimizer, inputs, targets, clip_norm)


def trainable(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step moves."""
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def losses(net: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each point as everybody writes it."""
    logits = net(inputs)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view_as(targets).sum(1)


def sgd(net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> None:
    """Plain SGD on PyTorch's layers."""
    optimizer.zero_grad()
    losses(net, inputs, targets).sum().backward()
    optimizer.step()


def sgd_same_layers(net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> None:
    """Plain SGD on the layers that our engine runs on."""
    optimizer.zero_grad()
    real = torch.ones_like(targets, dtype=torch.bool)
    compute_vocabulary_losses(net.output, net.hidden(inputs), targets, real).sum().backward()
    optimizer.step()


def redactory(net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, clip_norm: float) -> None:
    """Our engine."""
    real = torch.ones_like(targets, dtype=torch.bool)
    if targets.shape[1] == 1:  # a class for each text
        compute: Callable[[], Tensor] = lambda: losses(net, inputs, targets)  # noqa: E731
    else:
        compute = lambda: compute_vocabulary_losses(net.output, net.hidden(inputs), targets, real)  # noqa: E731
    found = compute_clipped_gradient(net, compute, clip_norm)
    parameters = trainable(net)
    shares = torch.split(found.flat, [p.numel() for p in parameters])
    for parameter, share in zip(parameters, shares, strict=True):
        parameter.grad = share.view_as(parameter)
    optimizer.step()


def micro_batch(net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, clip_norm: float) -> None:
    """One example at a time."""
    parameters = trainable(net)
    total = [torch.zeros_like(p) for p in parameters]
    for row in range(len(inputs)):
        loss = losses(net, inputs[row : row + 1], targets[row : row + 1]).sum()
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        weight = (clip_norm / norm).clamp(max=1.0)
        for share, gradient in zip(total, gradients, strict=True):
            share.add_(gradient * weight)
    for parameter, share in zip(parameters, total, strict=True):
        parameter.grad = share
    optimizer.step()


def opacus_hooks(
    net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, clip_norm: float
) -> Callable[[], None]:
    """Opacus, gradients of every example (``GradSampleModule``)."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(net, loss_reduction="sum")
    private = DPOptimizer(
        optimizer, noise_multiplier=0.0, max_grad_norm=clip_norm, expected_batch_size=None, loss_reduction="sum"
    )

    def step() -> None:
        private.zero_grad(set_to_none=True)
        losses(wrapped, inputs, targets).sum().backward()
        private.step()

    return step


def opacus_ghost(
    net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, clip_norm: float
) -> Callable[[], None]:
    """Opacus, norms first and a second backward pass (ghost clipping)."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(
        net, max_grad_norm=clip_norm, use_ghost_clipping=True, loss_reduction="sum"
    )
    private = DPOptimizerFastGradientClipping(
        optimizer, noise_multiplier=0.0, max_grad_norm=clip_norm, expected_batch_size=None, loss_reduction="sum"
    )

    def step() -> None:
        private.zero_grad(set_to_none=True)
        each = losses(wrapped, inputs, targets)
        DPTensorFastGradientClipping(wrapped, private, each, "sum").backward()
        private.step()

    return step
