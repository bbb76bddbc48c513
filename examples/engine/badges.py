"""An engine for Redactory: finds the badge numbers of a company's staff."""

import re
from collections.abc import Sequence


class Badges:
    labels = ("BADGE",)
    batch_independent = True

    def __init__(self, language: str, letter: str = "B") -> None:
        self.form = re.compile(rf"\b{re.escape(letter)}-\d{{4}}\b")

    def read(self, texts: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        return [[(*hit.span(), "BADGE", 0.9) for hit in self.form.finditer(text)] for text in texts]
