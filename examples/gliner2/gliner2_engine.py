"""GLiNER2 as an engine for Redactory: names of the kinds that the configuration describes, from a local folder.

GLiNER2 truncates nothing, but its encoder takes a limited number of tokens. Longer texts are read in windows that
overlap by more words than an entity may have; if a window does not fit, reading fails.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gliner2 import GLiNER2

from redactory.detectors.torch_inference import isolate_inference, silence_model_libraries

Word = tuple[str, int, int]
KINDS = {
    "PERSON": "person",
    "ORGANIZATION": "organization",
    "LOCATION": "location",
    "STREET_ADDRESS": "street address",
    "PHONE_NUMBER": "phone number",
    "EMAIL_ADDRESS": "email address",
    "IDENTIFIER": "identification number",
    "DATE": "date",
}
MAX_WORDS = 384
"""Window size in words, as in ``GLiNER2.extract_long``, if the model's configuration has no ``max_len``."""


class Gliner2:
    """Engine over a span checkpoint; ``ValueError`` if its encoder needs code that transformers lacks."""

    files = ("folder",)

    @staticmethod
    def labels(folder: str, labels: Mapping[str, str] = KINDS, threshold: float = 0.3) -> list[str]:
        return list(labels)

    def __init__(self, language: str, folder: str, labels: Mapping[str, str] = KINDS, threshold: float = 0.3) -> None:
        # the library runs, and may download, the code that auto_map names
        if "auto_map" in json.loads((Path(folder) / "encoder_config" / "config.json").read_text("utf-8")):
            raise ValueError("the encoder needs code that transformers lacks")
        with silence_model_libraries():
            # "standard": the environment variable USE_FLASHDEBERTA changes nothing
            model = GLiNER2.from_pretrained(folder, local_files_only=True, attention_backend="standard").eval()
        self._model, self._processor = model, model.processor
        self._labels, self._threshold = dict(labels), threshold
        self._schema = model.create_schema().entities(list(dict.fromkeys(labels.values())))
        self._max_words, self._max_width = model.config.max_len or MAX_WORDS, model.config.max_width
        tokens = self._processor.tokenizer.model_max_length
        self._max_tokens = min(tokens, getattr(model.encoder.config, "max_position_embeddings", None) or tokens)

    def read(self, texts: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        """Return the spans of each text; ``ValueError`` if words are too long for the model."""
        with isolate_inference():
            return [sorted(set(self._read_text(text))) for text in texts]

    def _read_text(self, text: str) -> Iterator[tuple[int, int, str, float]]:
        for words in self._split(text, list(self._processor.word_splitter(text, lower=False))):
            begin, stop = words[0][1], words[-1][2]
            entities = self._extract(text[begin:stop])
            for label, description in self._labels.items():
                for entity in entities.get(description, ()):
                    # GLiNER2 appends a full stop, which may end an entity, or be one
                    start, end = begin + entity["start"], min(begin + entity["end"], stop)
                    if start < end:
                        yield start, end, label, entity["confidence"]

    def _extract(self, text: str) -> dict[str, list[dict[str, Any]]]:
        # overlapping entities too: a doubtful one must not hide another
        options = {"include_confidence": True, "include_spans": True, "overlap_policy": "allow"}
        return self._model.extract(text, self._schema, threshold=self._threshold, **options)["entities"]

    def _split(self, text: str, words: list[Word]) -> Iterator[list[Word]]:
        """Split the words into windows that fit."""
        if not words or self._fits(text[words[0][1] : words[-1][2]]):
            yield from [words] if words else []
        elif len(words) <= 4 * self._max_width:
            raise ValueError("words that are too long for the model")
        else:
            half = len(words) // 2
            yield from self._split(text, words[: half + self._max_width])
            yield from self._split(text, words[half - self._max_width :])

    def _fits(self, text: str) -> bool:
        """Encode the text as ``extract`` does, with its prompt and a full stop; raise if that fails."""
        record = self._processor.transform_record(text, self._schema)
        return len(record.text_tokens) <= self._max_words and len(record.input_ids) <= self._max_tokens
