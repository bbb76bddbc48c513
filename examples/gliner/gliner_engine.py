"""GLiNER as an engine for Redactory: names of the kinds that the configuration asks for, from a local folder.

GLiNER cuts off what is longer than it takes, with no more than a warning; here a longer text is read in
windows that share as many words as an entity may have, and one that does not fit even so has failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gliner import GLiNER

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


class Gliner:
    files = ("folder",)

    @staticmethod
    def labels(folder: str, labels: Mapping[str, str] = KINDS, threshold: float = 0.3) -> list[str]:
        return list(labels)

    def __init__(self, language: str, folder: str, labels: Mapping[str, str] = KINDS, threshold: float = 0.3) -> None:
        with silence_model_libraries():
            self._model = GLiNER.from_pretrained(folder, local_files_only=True).eval()
        self._labels = {words: label for label, words in labels.items()}
        self._threshold = threshold
        config, data = self._model.config, self._model.data_processor
        self._split, self._tokenizer = data.words_splitter, data.transformer_tokenizer
        self._most_words, self._shared = config.max_len, config.max_width
        positions = getattr(config.encoder_config, "max_position_embeddings", None)
        self._most_tokens = min(self._tokenizer.model_max_length, positions or self._tokenizer.model_max_length)
        self._prompt = [part for words in self._labels for part in (config.ent_token, words)] + [config.sep_token]

    def read(self, texts: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        with isolate_inference():
            return [sorted(set(self._found(text))) for text in texts]

    def _found(self, text: str) -> Iterator[tuple[int, int, str, float]]:
        for window in self._windows(list(self._split(text))):
            begin, end = window[0][1], window[-1][2]
            for hit in self._hits(text[begin:end]):
                yield begin + hit["start"], begin + hit["end"], self._labels[hit["label"]], hit["score"]

    def _hits(self, text: str) -> list[dict[str, Any]]:
        # overlapping ones too: what may be something else should be seen
        return self._model.inference([text], list(self._labels), flat_ner=False, threshold=self._threshold)[0]

    def _windows(self, words: list[Word]) -> Iterator[list[Word]]:
        if not words or self._fits(words):
            yield from [words] if words else []
        elif len(words) <= 4 * self._shared:
            raise ValueError("words that are too long for the model")
        else:
            half = len(words) // 2
            yield from self._windows(words[: half + self._shared])
            yield from self._windows(words[half - self._shared :])

    def _fits(self, words: list[Word]) -> bool:
        pieces = [*self._prompt, *(word for word, _, _ in words)]
        tokens = self._tokenizer(pieces, is_split_into_words=True, truncation=False)["input_ids"]
        return len(words) <= self._most_words and len(tokens) <= self._most_tokens
