"""Stanza's recognizer, and the probability of each tag at each token: marginals of its linear-chain CRF."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, Finds, Plain, Reading, Span, public_spans
from redactory.detectors.settings import KNOWN_LABELS, StanzaSettings, kind_of
from redactory.detectors.spacy_model import lean_spacy, memory_zone, with_quick_suffixes
from redactory.detectors.torch_reading import closed_reading, folder_identity, silence
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.language import Language


Matrix = NDArray[np.float64]


def marginals(emissions: Matrix, transitions: Matrix) -> Matrix:
    """P(tag of token t is j), by forward-backward in log space.

    ``emissions`` [n, tags] and ``transitions`` [tags, tags] (from row to column) are unnormalised log
    weights: a sequence y weighs exp(sum_t emissions[t, y_t] + sum_t transitions[y_t, y_(t+1)]).  As in
    Stanza's ``CRFLoss`` nothing is added for the start or the end.  Returns [n, tags]; each row sums to 1
    up to rounding.  ``ValueError`` where a weight is not finite or a shape does not fit.
    """
    emissions = np.asarray(emissions, dtype=np.float64)
    transitions = np.asarray(transitions, dtype=np.float64)
    count, tags = emissions.shape
    if transitions.shape != (tags, tags):
        raise ValueError("transitions must be square, with one row per tag")
    if not (np.isfinite(emissions).all() and np.isfinite(transitions).all()):
        raise ValueError("weights must be finite")
    if count == 0:
        return np.empty((0, tags))
    # one loop for both directions: row 0 runs forward, row 1 backward over the mirrored chain
    weights = np.stack([emissions, emissions[::-1]])
    moves = np.stack([transitions, transitions.T])
    reached = np.empty_like(weights)
    reached[:, 0] = weights[:, 0]
    for t in range(1, count):
        reached[:, t] = weights[:, t] + _log_sum_exp(reached[:, t - 1, :, None] + moves)
    # both directions count the token's own emission
    joint = reached[0] + reached[1, ::-1] - emissions
    joint = np.exp(joint - joint.max(axis=1, keepdims=True))
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _log_sum_exp(scores: Matrix) -> Matrix:
    """log sum exp over axis 1, safe for large weights."""
    top = scores.max(axis=1)
    return np.asarray(top + np.log(np.exp(scores - top[:, None]).sum(axis=1)))


# A Stanza tagger from a local folder, with the emissions of its CRF beside its tags.


class StanzaTagger:
    """A loaded tagger: words of one sequence in, tags and P(plain) out."""

    def __init__(self, settings: StanzaSettings, language: str) -> None:
        self._trainer = trainer = _load(settings, language)
        self._column = int(trainer.args.get("predict_tagset") or 0)
        tags = trainer.vocab["tag"].items(self._column)
        if "O" not in tags:
            raise ConfigurationError("detect.stanza: the model has no tag O for tokens outside entities")
        self._outside, self._kinds = tags.index("O"), [_kind(tag) for tag in tags]
        self._public: dict[str, list[int]] = {}
        import torch

        # the loss, against tags that nobody knows here, would take a third of the time
        trainer.model.crits = torch.nn.ModuleList([_without_loss(crf) for crf in trainer.model.crits])
        trainer.model.register_forward_hook(self._keep)

    def fold(self, kinds: Collection[str]) -> None:
        """From now on a word is as plain as its tag is O or of one of ``kinds``."""
        public = [kind for kind in dict.fromkeys(self._kinds) if kind is not None and kind_of(kind) in kinds]
        self._public = {kind: [n for n, own in enumerate(self._kinds) if own == kind] for kind in public}

    def read(self, words: list[str]) -> tuple[list[str], list[float], list[tuple[float, str]]]:
        """The most probable tags, as Stanza decodes them, and P(plain) and P(public) of each word.

        Tags of public kinds are O among them; with P(public) stands the likeliest such kind.
        """
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
        probability = marginals(self._emissions, self._transitions)
        if not len(tags) == len(probability) == len(words):
            raise ValueError("expected one tag per word")
        outside, public = probability[:, self._outside], [(0.0, "")] * len(words)
        if self._public:
            tags = ["O" if _kind(tag) in self._public else tag for tag in tags]
            each = np.stack([probability[:, own].sum(axis=1) for own in self._public.values()])
            outside = np.minimum(outside + each.sum(axis=0), 1.0)
            likeliest = (list(self._public)[best] for best in each.argmax(axis=0))
            public = list(zip(each.sum(axis=0).tolist(), likeliest, strict=True))
        return tags, outside.tolist(), public

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
        raise ConfigurationError("detect.stanza: Stanza is not installed; pip install 'redactory[stanza]'") from None
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
            f"({type(error).__name__}); are its files and its dependencies there?"
        ) from None


def _package(settings: StanzaSettings, language: str) -> str:
    """The ner package that is asked for, or the folder's default or only one."""
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


# Stanza's entity recognizer with the marginals of its CRF, which Stanza itself throws away.


NAME = "stanza"
RUN = 100
"""Most characters between white space that are read as one; a longer run is cut.  The tokenizer takes
the square of a run's length, and the character network pads every token of a line to the longest one."""

_LINE = re.compile(r"[^\r\n]+")
_RUN = re.compile(rf"\S{{1,{RUN}}}")
_PROBE = "Anna Schmidt doesn't live in Paris."


class Word(NamedTuple):
    """One token: code points [start, end) of the text, and what stands there."""

    start: int
    end: int
    text: str


class StanzaEngine:
    """Entities of a Stanza model, with P(plain) of each token from the CRF's marginals.

    Spans are those of the most probable tag sequence, each scored by the mean of 1 - P(plain) over its
    tokens.  Lines are read one at a time: sequences in one batch are padded, and the last bits of a float
    product depend on the batch's shape.  ``ConfigurationError`` where the folder holds no such model.
    """

    def __init__(self, settings: StanzaSettings, language: str) -> None:
        self._nlp = _tokenizer(language)
        self._tagger = StanzaTagger(settings, language)
        if self.read([_PROBE])[0].failure:
            raise ConfigurationError("detect.stanza: the model cannot read a simple English sentence")

    def fold(self, kinds: Collection[str]) -> None:
        """Hold words of ``kinds`` for as plain as those that nothing is found in."""
        self._tagger.fold(kinds)

    @classmethod
    def identity(cls, settings: StanzaSettings, language: str) -> dict[str, Any]:
        """Content of the folder and versions of what reads it."""
        readers = ("stanza", "torch", "spacy", "numpy")
        return folder_identity("detect.stanza.folder", settings.folder, "resources.json", *readers)

    @classmethod
    def finds(cls, settings: StanzaSettings, language: str) -> list[Finds]:
        """The kinds of entity among the model's tags; its package is one of ``language``."""
        cls.identity(settings, language)  # refuses a folder that is not there
        tags = tags_in(settings.folder, settings.package, language)
        kinds = frozenset(kind for tag in tags if (kind := _kind(tag)) is not None)
        return [Finds(f"Stanza {settings.folder}", kinds, language, kinds - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text, each a function of that text alone."""
        with closed_reading(), memory_zone(self._nlp):
            return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        try:
            lines = list(self._lines(text))
            if not aligned(text, [word for line in lines for word in line]):
                return Reading(failure=MISALIGNED)
            spans: list[Span] = []
            plain: list[Plain] = []
            for line in lines:
                tags, outside, public = self._tagger.read([word.text for word in line])
                spans += _spans(line, tags, outside)
                own = [Plain(w.start, w.end, p, NAME) for w, p in zip(line, outside, strict=True)]
                spans += public_spans((token, *open_) for token, open_ in zip(own, public, strict=True))
                plain += own
        except Exception:
            # whatever its message quotes, it ends here
            return Reading(failure=ENGINE_ERROR)
        return Reading(tuple(spans), tuple(plain))

    def _lines(self, text: str) -> Iterator[list[Word]]:
        """The words of each line that has any."""
        for line in _LINE.finditer(text):
            words = [word for run in _RUN.finditer(text, *line.span()) for word in self._words(run)]
            if words:
                yield words

    def _words(self, run: re.Match[str]) -> Iterator[Word]:
        for token in self._nlp.make_doc(run.group()):
            start = run.start() + token.idx
            yield Word(start, start + len(token), token.text)


def aligned(text: str, words: Sequence[Word]) -> bool:
    """Whether ``words`` follow each other in ``text`` and leave out nothing but white space."""
    reached = 0
    for start, end, word in words:
        if start < reached or start >= end or text[start:end] != word or text[reached:start].strip():
            return False
        reached = end
    return not text[reached:].strip()


def _kind(tag: str) -> str | None:
    """The type of entity of one tag; None of O."""
    return next((kind for *_, kind in entities([tag])), None)


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first token, end, type) of each run of one type, cut before B- and S- and after E- and S-.

    Every token whose tag is not O lies in exactly one of them, also where the scheme is broken.
    """
    found: list[tuple[int, int, str]] = []
    closed = True
    for index, tag in enumerate(tags):
        if tag == "O":
            closed = True
            continue
        place, kind = ("", tag) if tag[1:2] not in ("-", "_") else (tag[0], tag[2:])
        if closed or place in ("B", "S") or kind != found[-1][2]:
            found.append((index, index + 1, kind))
        else:
            found[-1] = (found[-1][0], index + 1, kind)
        closed = place in ("E", "S")
    return found


def _spans(line: Sequence[Word], tags: Sequence[str], outside: Sequence[float]) -> Iterator[Span]:
    for first, end, kind in entities(tags):
        score = 1.0 - sum(outside[first:end]) / (end - first)
        yield Span(line[first].start, line[end - 1].end, kind, round(max(score, 0.0), 6), NAME)


def _tokenizer(language: str) -> Language:
    spacy: Any = lean_spacy()
    try:
        return with_quick_suffixes(spacy.blank(language))
    except ImportError:
        raise ConfigurationError(
            f"detect.language: spaCy has no tokenizer for '{language}', which the Stanza engine needs"
        ) from None
