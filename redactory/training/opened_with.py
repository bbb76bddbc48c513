"""What opens a model's folder, for its card: other programs where the network is theirs, else our own."""

from __future__ import annotations

_LIBRARY = {
    "gpt2": "AutoModelForCausalLM",
    "llama": "AutoModelForCausalLM",
    "bert": "AutoModelForSequenceClassification",
}


def library_of(kind: str) -> str:
    """The library that reads a network of this kind, as the front matter of a card names it."""
    return "transformers" if kind in _LIBRARY else "redactory"


def opened_with(kind: str) -> str:
    """One sentence for people."""
    if kind in _LIBRARY:
        return (
            f"Plain `transformers` opens this folder: `{_LIBRARY[kind]}.from_pretrained`, and "
            "`AutoTokenizer.from_pretrained` for its tokenizer."
        )
    return (
        "Plain `transformers` does not know this network (`config.json` names no `model_type`): open the "
        "folder with `redactory apply`, or from Python with `redactory.training`."
    )
