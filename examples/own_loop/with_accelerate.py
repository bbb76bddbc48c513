"""The same with ``accelerate``, for a fresh network of ``transformers``."""

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

from redactory.training import PrivateLoop, TrainSettings

NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def main() -> None:
    settings = TrainSettings(
        name="accelerated",
        trainer="dpsgd",
        noise_multiplier=1.0,
        group_sizes=(),  # no figures for groups, which take a second
        threads=1,
        sampling_rate=0.25,
        expected_batch_size=60,
        epochs=1,
        max_tokens=32,
        vocabulary_size=300,
    )
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    with PrivateLoop("run", settings) as loop:
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        network = GPT2LMHeadModel(GPT2Config(vocab_size=loop.tokenizer.size, **sizes, **NO_DROPOUT))
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        network, optimizer = accelerator.prepare(network, optimizer)
        for step in loop.begin(accelerator.unwrap_model(network), optimizer):
            step.backward()  # in place of accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(step.number, step.metrics)  # public: epsilon so far, and the loss of public examples
        card = loop.finish()["guarantee"]
    print(f"{card['steps']} steps with noise, epsilon {card['epsilon']:.2f} at delta {card['delta']}")


if __name__ == "__main__":
    main()
