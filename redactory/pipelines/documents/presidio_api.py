"""The requests of Presidio's REST services and our answers, for clients that change only the URL.

Names and forms follow https://microsoft.github.io/presidio/api-docs/api-docs.html. The strict policy answers
``/analyze``; ``/anonymize`` applies the operators of a request to its entities.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import ConfigDict, Field, InstanceOf, model_validator

from redactory.detectors.settings import get_kind
from redactory.foundation.errors import InputError
from redactory.foundation.settings import Settings
from redactory.pipelines.curation.policy import Example

Text = InstanceOf[str]
"""A string; unlike pydantic's, it may hold half a surrogate pair."""
MAX_ANSWER_CHARS = 1 << 22
_SEPARATOR = re.compile(" +\n?")


def get_entity_name(label: str) -> str:
    """Return Presidio's name of a label's kind."""
    return "DATE_TIME" if get_kind(label) == "DATE" else get_kind(label)


class AnalyzeRequest(Settings):
    """A request to ``/analyze``; a key that would change detection is refused unless it is empty."""

    text: Text | list[Text]
    language: str
    entities: tuple[str, ...] | None = None
    score_threshold: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored_keys(cls, body: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in body.items() if k in cls.model_fields or (v and k not in ("correlation_id", "trace"))}

    def format_spans(self, examples: Iterable[Example]) -> list[dict[str, Any]]:
        """Format the strict spans of a text that the request asks for, without those inside another one."""
        results, reached = list[dict[str, Any]](), 0
        spans = [span for example in examples for span in example.spans]
        for span in sorted(spans, key=lambda span: (span.start, -span.end, -span.score)):
            entity = get_entity_name(span.label)
            is_requested = entity in (self.entities or (entity,)) and span.score >= (self.score_threshold or 0)
            if span.policy == "strict" and is_requested and span.end > reached:
                place = {"entity_type": entity, "start": span.start, "end": span.end, "score": span.score}
                results.append({**place, "analysis_explanation": None})
                reached = span.end
        return results


class _Operator(Settings):
    type: Literal["replace", "redact", "mask", "hash"] = "replace"
    new_value: str | None = None
    masking_char: str = Field("*", max_length=1)
    chars_to_mask: int = MAX_ANSWER_CHARS
    from_end: bool = False
    hash_type: Literal["sha256", "sha512"] = "sha256"
    salt: str | None = Field(None, min_length=16)

    def apply(self, entity: str, value: str) -> str:
        if self.type == "hash":
            salt = secrets.token_bytes(32) if self.salt is None else self.salt.encode()
            return hashlib.new(self.hash_type, value.encode("utf-8", "surrogatepass") + salt).hexdigest()
        if self.type == "mask":
            count = min(max(self.chars_to_mask, 0), len(value))
            mask = self.masking_char * count
            return value[: len(value) - count] + mask if self.from_end else mask + value[count:]
        return "" if self.type == "redact" else self.new_value or f"<{entity}>"


class _Entity(Settings):
    model_config = ConfigDict(extra="ignore")

    start: int = Field(ge=0)
    end: int
    entity_type: str = Field(min_length=1)
    score: float = 0.0


class AnonymizeRequest(Settings):
    """A request to ``/anonymize``."""

    text: Text
    anonymizers: dict[str, _Operator] | None = None
    analyzer_results: list[_Entity]

    def anonymize(self) -> dict[str, Any]:
        """Return the text with every entity replaced, and the replacements, the last one first.

        ``InputError`` for an entity outside the text, or if the result is too long.
        """
        if any(not entity.start < entity.end <= len(self.text) for entity in self.analyzer_results):
            raise InputError("analyzer_results: expected start < end, inside the text")
        operators = {"DEFAULT": _Operator(), **(self.anonymizers or {})}
        parts, items, position, length = list[str](), list[dict[str, Any]](), 0, 0
        for start, end, entity in self._merge_entities():
            operator = operators.get(entity, operators["DEFAULT"])
            new = operator.apply(entity, self.text[start:end])
            parts += (self.text[position:start], new)
            place = length + start - position
            position, length = end, place + len(new)
            items.append({"operator": operator.type, "entity_type": entity, "start": place, "end": length, "text": new})
            if length > MAX_ANSWER_CHARS:
                raise InputError(f"the anonymized text would have more than {MAX_ANSWER_CHARS:,} characters")
        return {"text": "".join(parts) + self.text[position:], "items": items[::-1]}

    def _merge_entities(self) -> list[tuple[int, int, str]]:
        """Merge entities that overlap, and those of one type that only spaces separate; the longest names the type.

        As in Presidio, a line break may follow the spaces.
        """
        merged = list[tuple[int, int, str]]()
        for entity in sorted(self.analyzer_results, key=lambda one: (one.start, -one.end, -one.score)):
            start, end, name = merged[-1] if merged else (0, -1, "")
            between = self.text[end : entity.start]
            if entity.start < end or (name == entity.entity_type and _SEPARATOR.fullmatch(between)):
                longest = entity.entity_type if entity.end - entity.start > end - start else name
                merged[-1] = (start, max(end, entity.end), longest)
            else:
                merged.append((entity.start, entity.end, entity.entity_type))
        return merged
