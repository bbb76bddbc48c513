"""Run Stanza's recognizer with the probability of each tag at each token: marginals of its linear-chain CRF."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from redactory.detectors.engine import (
    ENGINE_ERROR,
    MISALIGNED,
    Capability,
    EngineOutput,
    NonEntityScore,
    Span,
    find_public_spans,
)
from redactory.detectors.settings import KNOWN_LABELS, StanzaSettings, get_kind
from redactory.detectors.spacy_model import enter_memory_zone, import_lean_spacy, speed_up_suffix_search
from redactory.detectors.torch_inference import identify_folder, isolate_inference, silence_model_libraries
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from spacy.language import Language


def compute_marginals(emissions: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """Compute P(tag of token t is j) of a linear-chain CRF: the gradient of the log of its partition function.

    ``emissions`` [n, tags] and ``transitions`` [tags, tags] (from row to column) are unnormalised log weights: a
    sequence y weighs exp(sum_t emissions[t, y_t] + sum_t transitions[y_t, y_(t+1)]). As in Stanza's ``CRFLoss``, start
    and end add nothing. Returns [n, tags] in double precision; ``ValueError`` for non-finite weights.
    """
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        weights, moves = emissions.detach().clone().double().requires_grad_(), transitions.detach().clone().double()
        if not (torch.isfinite(weights).all() and torch.isfinite(moves).all()):
            raise ValueError("weights must be finite")
        messages = weights[0]
        for row in weights[1:]:
            messages = row + torch.logsumexp(messages[:, None] + moves, dim=0)
        [marginals] = torch.autograd.grad(torch.logsumexp(messages, dim=0), weights)
    return marginals


def _load_processor(settings: StanzaSettings, language: str) -> Any:
    """Load Stanza's processor with the model; download nothing."""
    package = _choose_package(settings, language)
    import stanza

    try:
        with silence_model_libraries():
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
        return pipeline.processors["ner"]
    except Exception as error:
        raise ConfigurationError(
            f"detect.stanza.folder: the ner package '{package}' in '{settings.folder}' cannot be loaded "
            f"({type(error).__name__}); are its files and its dependencies there?"
        ) from None


@functools.lru_cache(maxsize=4)
def _load_kinds(folder: str, package: str | None, language: str) -> frozenset[str]:
    """Return the entity types of the model in ``folder``; loads it once per process."""
    return frozenset(_load_processor(StanzaSettings(folder=folder, package=package), language).get_known_tags())


def _choose_package(settings: StanzaSettings, language: str) -> str:
    """Return the requested ner package, or the folder's default or only one."""
    try:
        resources = json.loads((Path(settings.folder) / "resources.json").read_text("utf-8"))
    except (OSError, ValueError):
        raise ConfigurationError(
            f"detect.stanza.folder: '{settings.folder}' has no readable resources.json; give the folder "
            "that Stanza's models were downloaded to"
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


NAME = "stanza"
MAX_RUN_CHARS = 100
"""Maximum characters between white space; longer runs are cut.

The tokenizer is quadratic in a run, and the character network pads every token of a line to the longest one.
"""

_LINE_PATTERN = re.compile(r"[^\r\n]+")
_RUN_PATTERN = re.compile(rf"\S{{1,{MAX_RUN_CHARS}}}")
_PROBE_TEXT = "Anna Schmidt doesn't live in Paris."


class StanzaToken(NamedTuple):
    """One token: code points [start, end) of the text, and their content."""

    start: int
    end: int
    text: str


class StanzaEngine:
    """Entities of a Stanza model, with P(non-entity) of each token from the CRF's marginals.

    Spans come from the most probable tag sequence, each scored by the mean of 1 - P(non-entity) over its tokens. Lines
    are read one at a time: a batch pads sequences, and the last bits of a float product depend on the batch's shape.
    ``ConfigurationError`` if the folder holds no such model.
    """

    def __init__(self, settings: StanzaSettings, language: str) -> None:
        self._tokenizer = _make_tokenizer(language)
        self._processor = _load_processor(settings, language)
        trainer = self._processor.trainers[0]
        self._column = int(trainer.args.get("predict_tagset") or 0)
        tags = trainer.vocab["tag"].items(self._column)
        if "O" not in tags:
            raise ConfigurationError("detect.stanza: the model has no tag O for tokens outside entities")
        self._outside_column, self._kinds = tags.index("O"), [_parse_entity_kind(tag) for tag in tags]
        self._public_columns: dict[str, list[int]] = {}
        # the marginals need the weights that the network returns to the decoder
        self._outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
        trainer.model.register_forward_hook(self._capture_output)
        if self.read([_PROBE_TEXT])[0].failure:
            raise ConfigurationError("detect.stanza: the model cannot read a simple English sentence")

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count P(kind) of each of ``kinds`` as P(non-entity) from now on."""
        public = [kind for kind in dict.fromkeys(self._kinds) if kind is not None and get_kind(kind) in kinds]
        self._public_columns = {
            kind: [n for n, tag_kind in enumerate(self._kinds) if tag_kind == kind] for kind in public
        }

    @classmethod
    def collect_fingerprint(cls, settings: StanzaSettings, language: str) -> dict[str, Any]:
        """The folder's digests and the versions of the packages that read it."""
        readers = ("stanza", "torch", "spacy", "numpy")
        return identify_folder("detect.stanza.folder", settings.folder, "resources.json", *readers)

    @classmethod
    def list_capabilities(cls, settings: StanzaSettings, language: str) -> list[Capability]:
        """Return the entity types among the model's tags; its package is for ``language``."""
        cls.collect_fingerprint(settings, language)  # rejects a missing folder
        kinds = _load_kinds(settings.folder, settings.package, language)
        return [Capability(f"Stanza {settings.folder}", kinds, language, kinds - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text, each a function of that text alone."""
        with isolate_inference(), enter_memory_zone(self._tokenizer):
            return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        try:
            lines = list(self._iter_lines(text))
            if not is_aligned(text, [word for line in lines for word in line]):
                return EngineOutput(failure=MISALIGNED)
            spans: list[Span] = []
            plain: list[NonEntityScore] = []
            for line in lines:
                tags, outside, public = self._tag_words([word.text for word in line])
                spans += _iter_spans(line, tags, outside)
                line_scores = [NonEntityScore(w.start, w.end, p, NAME) for w, p in zip(line, outside, strict=True)]
                spans += find_public_spans(
                    (token, *candidate) for token, candidate in zip(line_scores, public, strict=True)
                )
                plain += line_scores
        except Exception:
            # the message may quote text: drop it
            return EngineOutput(failure=ENGINE_ERROR)
        return EngineOutput(tuple(spans), tuple(plain))

    def _iter_lines(self, text: str) -> Iterator[list[StanzaToken]]:
        for line in _LINE_PATTERN.finditer(text):
            words = [
                StanzaToken(run.start() + token.idx, run.start() + token.idx + len(token), token.text)
                for run in _RUN_PATTERN.finditer(text, *line.span())
                for token in self._tokenizer.make_doc(run.group())
            ]
            if words:
                yield words

    def _tag_words(self, words: list[str]) -> tuple[list[str], list[float], list[tuple[float, str]]]:
        """Return the most probable tags as decoded by Stanza, and P(non-entity) and P(public) of each word.

        Tags of public kinds become O; P(public) comes with the most probable public kind.
        """
        from stanza.models.common.doc import Document

        self._outputs.clear()
        sentence = [{"id": number, "text": word} for number, word in enumerate(words, 1)]
        tags = [token.ner for token in self._processor.process(Document([sentence])).sentences[0].tokens]
        # Stanza silently drops sequences that are too long for an underlying transformer
        [(emissions, transitions)] = self._outputs
        probability = compute_marginals(emissions, transitions).numpy()
        if not len(tags) == len(probability) == len(words):
            raise ValueError("expected one tag per word")
        non_entity, public = probability[:, self._outside_column], [(0.0, "")] * len(words)
        if self._public_columns:
            tags = ["O" if _parse_entity_kind(tag) in self._public_columns else tag for tag in tags]
            by_kind = np.stack([probability[:, columns].sum(axis=1) for columns in self._public_columns.values()])
            non_entity = np.minimum(non_entity + by_kind.sum(axis=0), 1.0)
            likeliest = (list(self._public_columns)[best] for best in by_kind.argmax(axis=0))
            public = list(zip(by_kind.sum(axis=0).tolist(), likeliest, strict=True))
        return tags, non_entity.tolist(), public

    def _capture_output(self, model: Any, inputs: Any, output: Any) -> None:
        _, logits, transitions = output
        self._outputs.append((logits[self._column][0].cpu(), transitions[self._column].cpu()))


def is_aligned(text: str, words: Sequence[StanzaToken]) -> bool:
    """Return whether ``words`` occur in order in ``text`` and omit only white space."""
    position = 0
    for start, end, word in words:
        if start < position or start >= end or text[start:end] != word or text[position:start].strip():
            return False
        position = end
    return not text[position:].strip()


def _parse_entity_kind(tag: str) -> str | None:
    return next((kind for *_, kind in decode_entities([tag])), None)


def decode_entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (first token, end, type) of each run of one type, cut before B- and S- and after E- and S-.

    Every token with a tag other than O is in exactly one of them, even in an invalid tag sequence.
    """
    runs: list[tuple[int, int, str]] = []
    is_closed = True
    for index, tag in enumerate(tags):
        if tag == "O":
            is_closed = True
            continue
        prefix, kind = ("", tag) if tag[1:2] not in ("-", "_") else (tag[0], tag[2:])
        if is_closed or prefix in ("B", "S") or kind != runs[-1][2]:
            runs.append((index, index + 1, kind))
        else:
            runs[-1] = (runs[-1][0], index + 1, kind)
        is_closed = prefix in ("E", "S")
    return runs


def _iter_spans(line: Sequence[StanzaToken], tags: Sequence[str], non_entity: Sequence[float]) -> Iterator[Span]:
    for first, end, kind in decode_entities(tags):
        score = 1.0 - sum(non_entity[first:end]) / (end - first)
        yield Span(line[first].start, line[end - 1].end, kind, round(max(score, 0.0), 6), NAME)


def _make_tokenizer(language: str) -> Language:
    spacy: Any = import_lean_spacy()
    try:
        return speed_up_suffix_search(spacy.blank(language))
    except ImportError:
        raise ConfigurationError(
            f"detect.language: spaCy has no tokenizer for '{language}', which the Stanza engine needs"
        ) from None
