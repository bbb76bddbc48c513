"""Write the rows that the encoder and its tagger are trained on.

    python examples/default_tagger/prepare.py ENGLISH_CORPORA ENGLISH
    python examples/european_tagger/prepare.py CORPORA EUROPEAN --first TAGGER
    python examples/encoder_tagger/rows.py CORPORA ENGLISH EUROPEAN OUT --tagger TAGGER

CORPORA has clones of the repositories that are named here, as ``OWNER+NAME/repo``, ``OWNER/NAME`` or ``NAME``.  A row
is {"text", "spans", "ignored", "source"}: where a corpus does not say what a word is (a date in a corpus of names, a
name that the first tagger doubts), the word is ignored instead of being taught as harmless.

Nothing of CoNLL-2003, WikiNEuRal, presidio-research's sets, the test part of MEDDOCAN, or any test part is read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from forms import LANGUAGES, Forms, Span

from redactory.detectors.settings import TaggerSettings
from redactory.detectors.tagger import TaggerEngine

SEED = 20261129
ENGLISH = {"gold": 100_000, "renamed": 100_000, "clauses": 3_000, "talk": 5_000, "support": 3_500, "varied": 48_000}
"""The most rows of each file of the default tagger's rows."""
EUROPEAN, MOST_CHARS = 22_000, 1_500
UNIVERSAL = {
    "Danish-DDT": ("da_ddt", 3_500),
    "Croatian-SET": ("hr_set", 3_500),
    "Slovak-SNK": ("sk_snk", 3_500),
    "Swedish-Talbanken": ("sv_talbanken", 3_000),
    "Serbian-SET": ("sr_set", 1_500),
    "Chinese-GSDSIMP": ("zh_gsdsimp", 2_000),
}
"""Universal NER v1 (CC BY-SA 4.0): persons, places and organisations, nothing else."""
SIMULATED = {"forms": 2_000, "sentences": 1_400, "harmless": 1_500}
HARMLESS_ENGLISH, NAMES_AND_WORDS, CODE, PROSE = 9_000, 3_500, 9_000, 9_000
_NAMES = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION"}
_PERSONAL = {"PERSON", "STREET_ADDRESS", "EMAIL_ADDRESS", "PHONE_NUMBER", "LOCATION", "ORGANIZATION"}
_NUMBER, _CAPITAL = re.compile(r"\S*\d\S*"), re.compile(r"(?<=\w )[^\W\d_a-z][\w'’-]*")
_ORDINAL = re.compile(r"(?i)\b(first|second|third|fourth|fifth|\w+th|twenty|thirty|nineteen)\b")
_NAMES_IN_CODE = re.compile(
    r"@[a-z]|https?:|copyright|author|licen[sc]e|©|contribut|maintain|et al|University|Inc\."
    r"|\bby [A-Z]|[A-Z][a-z]+ [A-Z][a-z]+|\d{5,}|[\u0080-\uffff]"
)
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_PACKAGES = (
    "numpy", "scipy", "pandas", "torch/nn", "torch/utils", "spacy", "prefect", "fastapi", "starlette", "sqlalchemy",
    "pydantic", "rich", "click", "yaml", "jinja2", "requests", "urllib3", "networkx", "sympy/core", "matplotlib",
)  # fmt: skip
"""Installed packages whose code is an example of harmless text."""


class Row(NamedTuple):
    """A text, its spans, and the ranges that do not count."""

    source: str
    text: str
    spans: list[Span]
    ignored: list[tuple[int, int]] = []  # noqa: RUF012 - never changed


def drop_vague_dates(text: str, spans: Iterable[Span]) -> list[Span]:
    """Months and weekdays alone are harmless; a date has a digit, or an ordinal in three words."""

    def is_vague(start: int, end: int) -> bool:
        value = text[start:end]
        return not re.search(r"\d", value) and not (len(value.split()) > 2 and _ORDINAL.search(value))

    return [span for span in spans if span[2] != "DATE_TIME" or not is_vague(span[0], span[1])]


def find_outside(pattern: re.Pattern[str], text: str, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """The matches that overlap no span."""
    matches = (match.span() for match in pattern.finditer(text))
    return [place for place in matches if not any(start < place[1] and place[0] < end for start, end, _ in spans)]


class Sources:
    """Reads every source; ``digests`` has the sha256 of what was read, by name."""

    def __init__(self, corpora: Path, tagger: str, draw: random.Random) -> None:
        self._corpora, self._draw = corpora, draw
        self._tagger = TaggerEngine(TaggerSettings(models=(tagger,)), "en")
        self.digests: dict[str, str] = {}

    def read_prepared(self, path: Path, source: str, most: int, only_names: bool = False) -> Iterator[Row]:
        """Rows of an earlier tagger.  In a corpus of names, numbers outside its spans are ignored."""
        rows = [json.loads(line) for line in self._read(path).splitlines()]
        self._draw.shuffle(rows)
        for row in rows[:most]:
            text, marks = row["text"], [(s["start"], s["end"], s["label"]) for s in row["spans"]]
            if len(text) < MOST_CHARS:
                spans = drop_vague_dates(text, marks)
                has_names = only_names and any(label in _NAMES.values() for *_, label in spans)
                yield Row(source, text, spans, find_outside(_NUMBER, text, spans) if has_names else [])

    def read_universal(self) -> Iterator[Row]:
        """Sentences of other languages; numbers and capitals without a label are ignored."""
        for name, (file, most) in UNIVERSAL.items():
            rows = list(_parse_iob2(self._git(f"UniversalNER/UNER_{name}", f"{file}-ud-train.iob2")))
            self._draw.shuffle(rows)
            for text, spans in rows[:most]:
                ignored = find_outside(_NUMBER, text, spans) + find_outside(_CAPITAL, text, spans)
                yield Row(f"other.{file}", text, spans, ignored)

    def read_web(self, held_back: set[str]) -> Iterator[Row]:
        """The training part of UD English EWT, labelled by the first tagger."""
        name = "UniversalDependencies/UD_English-EWT"
        files = self._git(name, "not-to-release/file-lists/files.train").split()
        trees = (self._git(name, f"not-to-release/sources/{file}") for file in files)
        lines = (line.removeprefix("# text = ") for tree in trees for line in tree.splitlines() if "# text = " in line)
        yield from self._label("en.ewt", [text for text in dict.fromkeys(lines) if text not in held_back])

    def read_code(self, packages: Path) -> Iterator[Row]:
        """Lines of code, and paragraphs of its documentation in which the first tagger finds nobody."""
        python = [path for package in _PACKAGES for path in sorted((packages / package).rglob("*.py"))]
        others = [
            path for end in ("js", "h", "toml", "yaml", "css", "pyx") for path in sorted(packages.rglob(f"*.{end}"))
        ]
        self._draw.shuffle(python)
        self._draw.shuffle(others)
        code = [chunk for path in (*python[:2_200], *others[:900]) for chunk in self._cut_code(path)]
        self._draw.shuffle(code)
        yield from (Row("neg.code", text, []) for text in list(dict.fromkeys(code))[:CODE])
        paragraphs = [text for path in python for text in _read_paragraphs(path)]
        self._draw.shuffle(paragraphs)
        for row in self._label("neg.prose", list(dict.fromkeys(paragraphs))[:PROSE]):
            if not any(label in _PERSONAL for *_, label in row.spans):
                yield row

    def _cut_code(self, path: Path) -> Iterator[str]:
        lines = _read_text(path).splitlines()
        starts = [number for number, line in enumerate(lines) if line.strip()]
        for _ in range(5 if len(starts) >= 10 else 0):
            start, length = self._draw.choice(starts), self._draw.choice((1, 1, 2, 3, 4, 6))
            chunk = "\n".join(lines[start : start + length])[:500]
            if len(chunk) > 8 and not _NAMES_IN_CODE.search(chunk):
                yield chunk.strip() if self._draw.random() < 0.5 else chunk

    def _label(self, source: str, texts: list[str], sure: float = 0.85) -> Iterator[Row]:
        for first in range(0, len(texts), 256):
            batch = texts[first : first + 256]
            for text, output in zip(batch, self._tagger.read(batch), strict=True):
                marks = [(span.start, span.end, span.label) for span in output.spans if span.score >= sure]
                doubts = [(t.start, t.end) for t in output.non_entity_scores if 1 - sure < t.probability < sure]
                free = [d for d in doubts if not any(start < d[1] and d[0] < end for start, end, _ in marks)]
                yield Row(source, text, drop_vague_dates(text, marks), free)

    def _read(self, path: Path) -> str:
        text = path.read_text(encoding="utf-8")
        self.digests[f"{path.parent.name}/{path.name}"] = hashlib.sha256(text.encode()).hexdigest()
        return text

    def _git(self, repository: str, path: str) -> str:
        forms = (f"{repository.replace('/', '+')}/repo", repository, repository.split("/")[1])
        folder = next(folder for folder in map(self._corpora.joinpath, forms) if folder.is_dir())
        command = ["git", "-C", str(folder), "show", f"HEAD:{path}"]
        data = subprocess.run(command, check=True, capture_output=True).stdout
        self.digests[f"{repository}/{path}"] = hashlib.sha256(data).hexdigest()
        return data.decode("utf-8")


def _parse_iob2(text: str) -> Iterator[tuple[str, list[Span]]]:
    for block in text.split("\n\n"):
        lines = block.splitlines()
        sentence = next((line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")), "")
        spans, position, inside = list[Span](), 0, False
        for _, word, tag, *_ in (line.split("\t") for line in lines if line[:1].isdigit()):
            start = sentence.find(word, position)
            if start < 0:
                break
            position, label = start + len(word), _NAMES.get(tag[2:])
            if label and inside and tag.startswith("I-"):
                spans[-1] = (spans[-1][0], position, label)
            elif label:
                spans.append((start, position, label))
            inside = label is not None
        else:
            if sentence:
                yield sentence, spans


def _read_paragraphs(path: Path) -> Iterator[str]:
    for docstring in _DOCSTRING.findall(_read_text(path)):
        for paragraph in docstring.split("\n\n"):
            text = " ".join(paragraph.split())
            is_prose = 40 < len(text) < 400 and text[0].isupper() and text.endswith(".")
            if is_prose and not re.search(r"(?i)@[a-z]|https?:|copyright|author|>>>|\[\d+\]|et al", text):
                yield text


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def simulate(seed: int) -> Iterator[Row]:
    """The rows of ``forms.py``."""
    forms = Forms(seed)
    for language in LANGUAGES:
        for kind, rows in SIMULATED.items():
            count = HARMLESS_ENGLISH if (language, kind) == ("en", "harmless") else rows
            for text, spans in getattr(forms, f"draw_{kind}")(language, count):
                yield Row(f"{language}.{kind}", text, spans)
    yield from (Row("en.names_and_words", text, spans) for text, spans in forms.draw_names_and_words(NAMES_AND_WORDS))


def main() -> None:
    """Write the rows, and ``sources.json`` beside them."""
    parser = argparse.ArgumentParser(description="rows for the encoder")
    for name in ("corpora", "english", "european", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tagger", default="default", help="the first tagger")
    parser.add_argument("--held-back", type=Path, nargs="*", default=[], help="labelled rows for measuring")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_path("purelib")))
    parser.add_argument("--share", type=float, default=1.0, help="the share of the rows that is kept")
    arguments = parser.parse_args()
    draw = random.Random(SEED)
    held_back = {json.loads(line)["text"] for path in arguments.held_back for line in path.open(encoding="utf-8")}
    sources = Sources(arguments.corpora, arguments.tagger, draw)
    rows = [
        *(row for name, most in ENGLISH.items() for row in sources.read_prepared(
            arguments.english / f"{name}.jsonl", f"en.{name}", most)),
        *(row for path in sorted(arguments.european.glob("*.jsonl")) for row in sources.read_prepared(
            path, f"{path.stem}.rows", EUROPEAN, only_names=True)),
        *sources.read_universal(),
        *sources.read_web(held_back),
        *sources.read_code(arguments.packages),
        *simulate(SEED),
    ]  # fmt: skip
    rows = [row for row in rows if row.text.strip() and row.text not in held_back]
    draw.shuffle(rows)
    del rows[round(arguments.share * len(rows)) :]
    with arguments.out.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(_as_json(row), ensure_ascii=False) + "\n")
    digests = json.dumps(sources.digests, indent=1, sort_keys=True)
    arguments.out.with_name("sources.json").write_text(digests + "\n", encoding="utf-8")
    print(len(rows), "rows", dict(Counter(row.source for row in rows)), file=sys.stderr)


def _as_json(row: Row) -> dict[str, Any]:
    spans = [{"start": start, "end": end, "label": label} for start, end, label in row.spans]
    return {"text": row.text, "spans": spans, "ignored": row.ignored, "source": row.source}


if __name__ == "__main__":
    main()
