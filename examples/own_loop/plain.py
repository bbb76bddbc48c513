"""A plain loop over a small transformer: only its steps are Redactory's."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.training import PrivateLoop, TrainSettings


class Block(nn.Module):
    """One layer of a small transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.mixed(self.before(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.joined(seen)
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class SmallTransformer(nn.Module):
    """Predicts the next token of every position."""

    def __init__(self, vocabulary: int, width: int = 16, longest: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks, self.last = nn.Sequential(Block(width, 2), Block(width, 2)), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]).expand_as(ids)
        return self.last(self.blocks(self.tokens(ids) + self.places(places)))


def losses(network: nn.Module, batch) -> Tensor:
    """Return the loss of each example: the sum over its real targets."""
    each = F.cross_entropy(network(batch.inputs).transpose(1, 2), batch.targets, reduction="none")
    return (each * batch.real).sum(1)


def main() -> None:
    settings = TrainSettings(
        name="plain",
        noise_multiplier=1.0,
        group_sizes=(),  # no figures for groups, which take a second
        threads=1,
        sampling_rate=0.25,
        expected_batch_size=30,
        epochs=1,
        max_tokens=32,
        min_public_steps=2,
        vocabulary_size=300,
    )
    torch.manual_seed(0)
    with PrivateLoop("run", settings) as loop:
        network = SmallTransformer(loop.tokenizer.size)
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
        for step in loop.begin(network, optimizer, losses=losses):
            step.backward()
            optimizer.step()
            optimizer.zero_grad()
        card = loop.finish()["guarantee"]
    print(f"{card['steps']} steps with noise, epsilon {card['epsilon']:.2f} at delta {card['delta']}")


if __name__ == "__main__":
    main()
