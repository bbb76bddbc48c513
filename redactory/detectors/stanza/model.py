"""A Stanza tagger from a local folder, with the emissions of its CRF beside its tags."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from redactory.detectors.settings import StanzaSettings
from redactory.detectors.stanza.crf import marginals
from redactory.detectors.torch_reading import silence
from redactory.foundation.errors import ConfigurationError


class StanzaTagger:
    """A loaded tagger: words of one sequence in, tags and P(plain) out."""

    def __init__(self, settings: StanzaSettings, language: str) -> None:
        self._trainer = trainer = _load(settings, language)
        self._column = int(trainer.args.get("predict_tagset") or 0)
        tags = trainer.vocab["tag"].items(self._column)
        if "O" not in tags:
            raise ConfigurationError("detect.stanza: the model has no tag O for what lies outside entities")
        self._outside = tags.index("O")
        import torch

        # the loss, against tags that nobody knows here, would take a third of the time
        trainer.model.crits = torch.nn.ModuleList([_without_loss(crf) for crf in trainer.model.crits])
        trainer.model.register_forward_hook(self._keep)

    def read(self, words: list[str]) -> tuple[list[str], list[float]]:
        """The most probable sequence of tags as Stanza decodes it, and P(tag is O) of each word."""
        from stanza.models.ner.data import DataLoader

        trainer = self._trainer
        batches = DataLoader(
            _Sequence(words),
            1,
            trainer.args,
            vocab=trainer.vocab,
            evaluation=True,
            preprocess_tags=False,
            bert_tokenizer=trainer.model.bert_tokenizer,
        )
        if len(batches) != 1:
            # Stanza drops sequences that are too long for a transformer underneath, and says nothing
            raise ValueError("the sequence was dropped")
        tags = trainer.predict(batches[0])[0]
        outside = marginals(self._emissions, self._transitions)[:, self._outside]
        if not len(tags) == len(outside) == len(words):
            raise ValueError("one tag a word was expected")
        return tags, outside.tolist()

    def _keep(self, model: Any, inputs: Any, output: Any) -> None:
        """Keep what the forward pass computes beside the tags."""
        _, logits, transitions = output
        self._emissions = logits[self._column][0].cpu().double().numpy()
        self._transitions = transitions[self._column].cpu().double().numpy()


@functools.lru_cache(maxsize=4)
def tags_in(folder: str, package: str | None, language: str) -> tuple[str, ...]:
    """The tags of the model in ``folder``, which is loaded for it, once a process."""
    trainer = _load(StanzaSettings(folder=folder, package=package), language)
    return tuple(trainer.vocab["tag"].items(int(trainer.args.get("predict_tagset") or 0)))


class _Sequence:
    """As much of a Stanza document as its data loader asks for: one sentence without tags."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def get(self, *fields: Any, **options: Any) -> list[list[tuple[str, None, None]]]:
        return [[(word, None, None) for word in self._words]]


def _without_loss(crf: Any) -> Any:
    """A module that stands in for Stanza's ``CRFLoss`` and hands on its transitions alone."""
    import torch

    class Transitions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._transitions = crf._transitions

        def forward(self, *_: Any) -> tuple[float, Any]:
            return 0.0, self._transitions

    return Transitions()


def _load(settings: StanzaSettings, language: str) -> Any:
    """Stanza's trainer object around the model; nothing is downloaded."""
    package = _package(settings, language)
    try:
        import stanza
    except ImportError:
        raise ConfigurationError(
            "detect.stanza: Stanza is not installed; pip install 'redactory[stanza]'"
        ) from None
    try:
        with silence():
            pipeline = stanza.Pipeline(
                language,
                dir=settings.folder,
                package=None,
                processors={"ner": package},
                ner_check_requirements=False,
                download_method=None,
                use_gpu=False,
                logging_level="CRITICAL",
            )
        return pipeline.processors["ner"].trainers[0]
    except Exception as error:
        raise ConfigurationError(
            f"detect.stanza.folder: the ner package '{package}' in '{settings.folder}' cannot be loaded "
            f"({type(error).__name__}); are its files and those it depends on there?"
        ) from None


def _package(settings: StanzaSettings, language: str) -> str:
    """The ner package that is asked for, or the folder's default or only one."""
    try:
        resources = json.loads((Path(settings.folder) / "resources.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise ConfigurationError(
            f"detect.stanza.folder: '{settings.folder}' has no resources.json that can be read; give the "
            "folder that Stanza's models were downloaded to"
        ) from None
    entry = resources.get(language, {})
    entry = resources.get(entry.get("alias"), entry)
    names = sorted(entry.get("ner", {}))
    default = entry.get("packages", {}).get("default", {}).get("ner")
    package = settings.package or default or (names[0] if len(names) == 1 else None)
    if package not in names:
        raise ConfigurationError(
            f"detect.stanza.package: '{settings.folder}' has these ner packages for '{language}': "
            f"{', '.join(names) or 'none'}; name one of them"
        )
    return str(package)
