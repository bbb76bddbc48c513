"""Forms that belong together, and the Presidio recognizer that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from redactory.detectors.spacy_model import lean_imports
from redactory.detectors.triggers import ALWAYS, Trigger, words_of

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

STRONG, SURE, FAIR, DOUBTFUL = 0.6, 0.5, 0.4, 0.2
"""Scores: of a form that little else has; of one told by a word before it; masked by π under the default
bounds; and seen by π_c alone until a context word raises it."""


class Terms:
    """Terms of one meaning: an expression, and the words without which it cannot match.

    Terms are separated by white space; ``_`` stands for white space inside a term.  Letters must not stand
    directly around them in an expression with their trigger.
    """

    def __init__(self, terms: str, case: Literal["any", "written", "capitals"] = "any") -> None:
        """In any case; as ``written``; or as written and all in ``capitals``."""
        given = terms.split()
        forms = {form for term in given for form in ((term, term.upper()) if case == "capitals" else (term,))}
        listed = "|".join(
            form.replace(".", r"\.").replace("_", r"\s+")
            for form in sorted(forms, key=lambda f: (-len(f), f))
        )
        self.form = f"(?i:{listed})" if case == "any" else f"(?:{listed})"
        # capitals may fold to other letters than the small ones they stand for: the Turkish ı and I
        self.words = frozenset(
            max(words_of(form.replace("_", " ")), key=lambda w: (len(w), w)) for form in forms
        )

    def __format__(self, _: str) -> str:
        return self.form

    def __or__(self, other: Terms) -> frozenset[str]:
        return self.words | other.words

    def needed(self, digits: int = 1) -> Trigger:
        """One of the words, and so many digits."""
        return Trigger(digits, self.words)


class Form(NamedTuple):
    """One expression, in the dialect of the ``regex`` package.

    Case counts unless the expression says otherwise; ``\\K`` drops what stands before it from the hit.
    """

    written: str
    score: float
    needs: Trigger = ALWAYS

    @property
    def expression(self) -> str:
        """As it is run: with bounded white space, of which two long runs would cost the square of one."""
        return self.written.replace(r"\s*", r"\s{0,9}").replace(r"\s+", r"\s{1,9}")


def _refuses_none(value: str) -> bool:
    return False


class Family(NamedTuple):
    """Forms of one label with context words in common.

    ``context`` are words or parts of words, ``needs`` is the trigger of all forms; ``refuses`` is true of a
    match that is none after all.
    """

    label: str
    name: str
    forms: Mapping[str, Form]
    context: str = ""
    needs: Trigger = ALWAYS
    refuses: Callable[[str], bool] = _refuses_none

    def recognizer(self, language: str) -> EntityRecognizer:
        """The family as a recognizer of Presidio's."""
        with lean_imports():
            from presidio_analyzer import Pattern, PatternRecognizer

        refuses = self.refuses

        class Shipped(PatternRecognizer):
            def invalidate_result(self, pattern_text: str) -> bool:
                return refuses(pattern_text)

        return Shipped(
            supported_entity=self.label,
            name=f"Redactory{self.name}",
            supported_language=language,
            patterns=[Pattern(name, form.expression, form.score) for name, form in self.forms.items()],
            context=self.context.split(),
            # letters' case is what tells an address from prose, so no IGNORECASE as Presidio has it
            global_regex_flags=0,
        )

    def within(self) -> dict[str, Trigger]:
        """The triggers of the single forms by name."""
        return {name: form.needs for name, form in self.forms.items()}
