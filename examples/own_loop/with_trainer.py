"""The same as a ``transformers.Trainer``."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from redactory.training import PrivateLoop, TrainSettings
from redactory.training.integrations import PrivateTrainer


def main() -> None:
    settings = TrainSettings(
        name="trainer",
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
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        network = LlamaForCausalLM(LlamaConfig(vocab_size=loop.tokenizer.size, **sizes))
        arguments = TrainingArguments(
            "trainer-output",
            learning_rate=1e-3,
            logging_steps=2,  # the loss of public steps, and epsilon so far
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = PrivateTrainer(network, arguments, loop=loop)
        trainer.train()
        card = trainer.summary["guarantee"]
    print(f"{card['steps']} steps with noise, epsilon {card['epsilon']:.2f} at delta {card['delta']}")


if __name__ == "__main__":
    main()
