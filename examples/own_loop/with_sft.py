"""The same with trl's ``SFTTrainer``: adapters on a small model in a local folder, which it creates first."""

import torch
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

from redactory.training import PrivateLoop, TrainSettings
from redactory.training.integrations import PrivateTrainerMixin

FOLDER = "small-qwen3"


class PrivateSFTTrainer(PrivateTrainerMixin, SFTTrainer):
    """An ``SFTTrainer`` that takes the steps of a loop."""


def make_folder() -> None:
    """Write a tiny, fresh Qwen3 over bytes, in place of public weights."""
    pieces = ["<|endoftext|>", "<MASK>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    inner.pre_tokenizer, inner.decoder = (pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    end = "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=end, eos_token=end, additional_special_tokens=["<MASK>"]
    )
    tokenizer.save_pretrained(FOLDER)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(FOLDER)


def main() -> None:
    torch.manual_seed(0)
    make_folder()
    settings = TrainSettings(
        name="sft",
        noise_multiplier=1.0,
        group_sizes=(),  # no figures for groups, which take a second
        threads=1,
        sampling_rate=0.25,
        expected_batch_size=30,
        epochs=1,
        max_tokens=32,
        min_public_steps=2,
        model={"kind": "folder", "folder": FOLDER},
    )
    with PrivateLoop("run", settings) as loop:
        arguments = SFTConfig(
            "sft-output",
            learning_rate=1e-3,
            gradient_checkpointing=False,
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
            bf16=False,
        )
        trainer = PrivateSFTTrainer(
            AutoModelForCausalLM.from_pretrained(FOLDER),
            arguments,
            loop=loop,
            processing_class=AutoTokenizer.from_pretrained(FOLDER),
            peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
        )
        trainer.train()
        card = trainer.summary["guarantee"]
    print(f"{card['steps']} steps with noise, epsilon {card['epsilon']:.2f} at delta {card['delta']}")


if __name__ == "__main__":
    main()
