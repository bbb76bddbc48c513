"""``redactory generate``: what a trained language model writes, with its guarantee beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows.apply_commands import say_promise
from redactory.flows.options import JsonOption, show
from redactory.flows.output import out, shown_progress


def generate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_FOLDER", help="A trained model: RUN/models/NAME, or a copy.")
    ],
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text to go on with; may be given several times.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Texts for each prompt.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Below 1 likelier tokens, above 1 rarer ones; 0: the likeliest.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Draw from so many likeliest tokens alone.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same texts.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Text that a trained language model writes; its guarantee is printed along."""
    prompts = tuple(prompt or ("",))
    with shown_progress() as progress:
        result = redactory.generate(
            model,
            prompts,
            samples=samples,
            tokens=tokens,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            progress=progress,
        )

    def page(told: dict[str, Any]) -> None:
        written(told, prompts)

    show(result, as_json, page)


def written(result: dict[str, Any], prompts: tuple[str, ...]) -> None:
    """Every text after its prompt, and what may be promised of the model."""
    for prompt, texts in zip(prompts, result["texts"], strict=True):
        for text in texts:
            out.print(_shown(prompt + text), soft_wrap=True, markup=False)
            out.print()
    out.print(f"Seed: {result['seed']}")
    say_promise(result["model"], result["guarantee"])


def _shown(text: str) -> str:
    """``text`` without the control signs that would steer a terminal; line ends and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
