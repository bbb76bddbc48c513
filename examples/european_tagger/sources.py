"""Public corpora of six languages as rows of the span schema: what the European tagger is trained on.

Each is read from a clone of its repository; none is part of this one.

=====  ==========================================================  ================================
code   corpus (repository)                                         licence
=====  ==========================================================  ================================
de     GermEval 2014 (davidsbatista/NER-datasets)                  CC BY 4.0
de fr  Europeana newspapers (EuropeanaNewspapers/ner-corpora)      CC0
nl
de es  UD GSD (UniversalDependencies/UD_*-GSD)                     CC BY-SA 4.0
fr pt
es     MEDDOCAN (PlanTL-GOB-ES/SPACCC_MEDDOCAN)                    CC BY 4.0
fr     UD ParisStories                                             CC BY-SA 4.0
fr     UD Sequoia                                                  LGPL-LR
de fr  WikiANN (davidsbatista/NER-datasets)                        text of Wikipedia, CC BY-SA
nl pt
it     UD MarkIT, UD TWITTIRO                                      CC BY 4.0, CC BY-SA 4.0
it     Wikinews and novels of KIND (dhfbk/KIND): the text alone    CC BY 2.5, public domain
nl     UD Alpino, UD LassySmall                                    CC BY-SA 4.0
pt     Universal NER on UD Bosque                                  CC BY-SA 4.0
pt     LeNER-Br (peluz/lener-br)                                   MIT
pt     Paramopama (davidsbatista/NER-datasets)                     after WikiNER, CC BY 4.0
=====  ==========================================================  ================================

Treebanks name no kinds: a run of proper nouns is a name, of the kind that the other corpora give its words.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Mark = tuple[int, int, str]
Row = tuple[str, list[Mark]]
Tagged = list[tuple[str, str | None]]
"""The tokens of a sentence, each with the label of the span that it is in."""

NAME = "NAME"
"""The label of a proper noun whose kind is not known."""
LABELS = {
    **dict.fromkeys(("PER", "PERSON", "PESSOA"), "PERSON"),
    **dict.fromkeys(("LOC", "LOCAL", "TERRITORIO", "PAIS"), "LOCATION"),
    **dict.fromkeys(("ORG", "ORGANIZACAO", "HOSPITAL", "INSTITUCION", "CENTRO_SALUD"), "ORGANIZATION"),
    **dict.fromkeys(("OTH", "MISC", "LEGISLACAO", "JURISPRUDENCIA", "OUTROS"), "MISC"),
    **dict.fromkeys(("TEMPO", "FECHAS"), "DATE_TIME"),
    **dict.fromkeys(("NUMERO_TELEFONO", "NUMERO_FAX"), "PHONE_NUMBER"),
    "CALLE": "STREET_ADDRESS",
    "CORREO_ELECTRONICO": "EMAIL_ADDRESS",
    "URL_WEB": "URL",
    "EDAD_SUJETO_ASISTENCIA": "AGE",
}
_MEDDOCAN_PLAIN = {"SEXO_SUJETO_ASISTENCIA", "PROFESION", "FAMILIARES_SUJETO_ASISTENCIA"}
_NER = "davidsbatista/NER-datasets"
_UD = "UniversalDependencies/UD_"


class Corpora:
    """The repositories below a folder, each as ``OWNER+NAME/repo``, ``OWNER/NAME`` or ``NAME``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, dict[str, str]] = {}

    def digests(self) -> dict[str, dict[str, Any]]:
        """Of each repository: how many files were read, and the sha256 over their names and digests."""
        return {
            name: {"files": len(files), "sha256": _sha256(repr(sorted(files.items())))}
            for name, files in sorted(self._read.items())
        }

    def gold(self, language: str) -> Iterator[Row]:
        """Sentences with every name labelled by people."""
        if language == "de":
            for part in ("dev", "test"):
                rows = map(spelled, _columns(self._text(_NER, f"GermEval2014/NER-de-{part}.tsv"), 1, 2))
                yield from (row for number, row in enumerate(rows) if not held_back(part, number))
        elif language == "es":
            for part in ("train", "dev"):
                yield from self.meddocan(part)
        elif language == "pt":
            for part in ("train", "dev"):
                file = f"pt_bosque-ud-{part}.iob2"
                yield from iob2(self._text("UniversalNER/UNER_Portuguese-Bosque", file))
            for part in ("train", "dev"):
                text = self._text("peluz/lener-br", f"leNER-Br/{part}/{part}.conll")
                yield from map(spelled, _columns(text, 0, 1))

    def linked(self, language: str) -> Iterator[Row]:
        """Sentences in which some names are labelled: of encyclopaedias by their links, of old newspapers."""
        wiki = {"de": "WikiANN/de", "fr": "WikiANN/fr", "nl": "WikiANN/nl", "pt": "Portuguese/WikiANN"}.get(language)
        if wiki:
            for part in ("train", "dev"):
                text = re.sub(rf"(?m)^{language}:", "", self._text(_NER, f"{wiki}/{part}"))
                yield from map(spelled, _columns(text, 0, 1))
        if language == "pt":
            text = self._text(_NER, "Portuguese/Paramopama/corpus_Paramopama.txt")
            yield from map(spelled, _columns(text, 0, 1))
        papers = {"de": ("DE.lft", "DE.onb", "DE.sbb"), "fr": ("FR.bnf",), "nl": ("NL.kb",)}
        for paper in papers.get(language, ()):
            text = self._text("EuropeanaNewspapers/ner-corpora", f"enp_{paper}.bio/enp_{paper}.bio")
            yield from map(spelled, _sentences(_columns(text, 0, 1)))

    def treebanks(self, language: str) -> Iterator[Row]:
        """Sentences whose proper nouns are told from their other words."""
        banks = {
            "de": [("German-GSD", "de_gsd-ud-dev"), ("German-GSD", "de_gsd-ud-test")],
            "es": [("Spanish-GSD", "es_gsd-ud-dev"), ("Spanish-GSD", "es_gsd-ud-test")],
            "fr": [
                *(("French-GSD", f"fr_gsd-ud-{part}") for part in ("dev", "test")),
                *(("French-ParisStories", f"fr_parisstories-ud-{part}") for part in ("train", "dev")),
                *(("French-Sequoia", f"fr_sequoia-ud-{part}") for part in ("train", "dev")),
            ],
            "it": [
                *(("Italian-MarkIT", f"it_markit-ud-{part}") for part in ("train", "dev", "test")),
                *(("Italian-TWITTIRO", f"it_twittiro-ud-{part}") for part in ("train", "dev", "test")),
            ],
            "nl": [
                *(("Dutch-Alpino", f"nl_alpino-ud-{part}") for part in ("dev", "test")),
                *(("Dutch-LassySmall", f"nl_lassysmall-ud-{part}") for part in ("dev", "test")),
            ],
            "pt": [("Portuguese-GSD", f"pt_gsd-ud-{part}") for part in ("dev", "test")],
        }
        for bank, file in banks[language]:
            yield from conllu(self._text(_UD + bank, f"{file}.conllu"))
        if language == "pt":
            for number in range(1, 968):
                document = f"not-to-release/documents/pt_gsd-ud-train-{number:04}.conllu"
                yield from conllu(self._text(f"{_UD}Portuguese-GSD", document))

    def unlabelled(self, language: str) -> Iterator[str]:
        """Sentences whose labels are not taken: they are not free, the text is."""
        if language == "it":
            for part in ("wikinews_train", "fiction_train"):
                for tagged in _columns(self._text("dhfbk/KIND", f"dataset/{part}.tsv"), 0, 1):
                    yield spelled(tagged)[0]

    def meddocan(self, part: str) -> Iterator[Row]:
        """Each line of the clinical cases."""
        repository = "PlanTL-GOB-ES/SPACCC_MEDDOCAN"
        for name in sorted(self._names(repository, f"corpus/{part}/brat")):
            if name.endswith(".ann"):
                text = self._text(repository, name.removesuffix("ann") + "txt")
                yield from _lines(text, list(_brat(self._text(repository, name))))

    def _text(self, repository: str, path: str) -> str:
        folder = self._of(repository)
        whole = (folder / path).is_file()
        text = (folder / path).read_text(encoding="utf-8") if whole else _git(folder, "show", f"HEAD:{path}")
        self._read.setdefault(repository, {})[path] = _sha256(text)
        return text

    def _names(self, repository: str, path: str) -> list[str]:
        return _git(self._of(repository), "ls-tree", "-r", "--name-only", "HEAD", path).splitlines()

    def _of(self, repository: str) -> Path:
        forms = (f"{repository.replace('/', '+')}/repo", repository, repository.split("/")[1])
        return next(path for path in map(self._folder.joinpath, forms) if path.is_dir())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
    return done.stdout.decode("utf-8")


def held_back(part: str, number: int) -> bool:
    """Whether a sentence of GermEval is kept for measuring: the last ones of its test part."""
    return part == "test" and number >= 4_000


def _columns(text: str, token: int, tag: int) -> Iterator[Tagged]:
    """Sentences of a file with a token a line, between empty lines."""
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line.split("\t") if "\t" in line else line.split() for line in block.splitlines()]
        tokens = [line for line in lines if len(line) > max(token, tag) and line[0] != "#"]
        if tokens:
            yield [(line[token], _label(line[tag])) for line in tokens]


def _label(tag: str) -> str | None:
    kind = tag.removeprefix("B-").removeprefix("I-")
    # German derivations of names ("deutsch") and compounds with one ("Bundesliga-Spiel")
    return None if kind.endswith("deriv") else LABELS.get(kind.removesuffix("part"))


def _sentences(blocks: Iterable[Tagged]) -> Iterator[Tagged]:
    """Pages without empty lines, cut after a full stop."""
    for block in blocks:
        sentence: Tagged = []
        for token, label in block:
            sentence.append((token, label))
            if (token in ".!?" or re.search(r"\w{3}[.!?]$", token)) and len(sentence) > 4:
                yield sentence
                sentence = []
        if sentence:
            yield sentence


_NO_SPACE_BEFORE = re.compile(r"[.,;:!?)\]}»”’%…]+|'s|''")
_NO_SPACE_AFTER = re.compile(r"[(\[{«“„‘¿¡]|.*\w['’]")


def spelled(tagged: Tagged) -> Row:
    """A sentence as people write it, from its tokens."""
    text, spans, before, open_ = "", [], "", False
    for token, label in tagged:
        if token in ('"', "``"):
            open_ = not open_
        near = _NO_SPACE_BEFORE.fullmatch(token) or _NO_SPACE_AFTER.fullmatch(before)
        near = near or (token == '"' and not open_) or (before == '"' and open_)
        start = len(text) + (0 if near or not text else 1)
        text += token if near or not text else f" {token}"
        if label and spans and spans[-1][2] == label and spans[-1][1] >= start - 1:
            spans[-1] = (spans[-1][0], len(text), label)
        elif label:
            spans.append((start, len(text), label))
        before = token
    return text, spans


def iob2(text: str) -> Iterator[Row]:
    """Universal NER's form: the words of the treebank with their tags."""
    for block in text.split("\n\n"):
        lines = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
        if lines:
            yield spelled(_contracted([(line[1], _label(line[2])) for line in lines]))


_CONTRACTED = {
    **{("de", word): f"d{word}" for word in ("o", "a", "os", "as", "ele", "ela", "este", "esta", "esse")},
    **{("em", word): f"n{word}" for word in ("o", "a", "os", "as", "ele", "ela", "este", "esta", "um", "uma")},
    **{("por", word): f"pel{word}" for word in ("o", "a", "os", "as")},
    ("a", "o"): "ao",
    ("a", "os"): "aos",
    ("a", "a"): "à",
    ("a", "as"): "às",
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}


def _contracted(tagged: Tagged) -> Tagged:
    """With the words that a treebank takes apart together again, as they are written."""
    whole: Tagged = []
    for token, label in tagged:
        pair = _CONTRACTED.get((whole[-1][0].lower(), token)) if whole else None
        if pair and whole[-1][1] == label:
            whole[-1] = (pair.capitalize() if whole[-1][0][0].isupper() else pair, label)
        else:
            whole.append((token, label))
    return whole


def conllu(text: str) -> Iterator[Row]:
    """Sentences of a treebank; a proper noun is a name, with the small words between two of them."""
    for block in text.split("\n\n"):
        lines = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
        raw = re.search(r"(?m)^# text = (.+)$", block)
        if lines and raw:
            row = _placed(raw[1], _surface(lines))
            if row:
                yield row


def _surface(lines: list[list[str]]) -> list[tuple[str, str]]:
    """The written tokens with their part of speech; of a contraction, a proper noun's where it holds one."""
    tags = {line[0]: line[3] for line in lines}
    found, covered = [], set[str]()
    for line in lines:
        if "-" in line[0]:
            first, last = map(int, line[0].split("-"))
            inside = [str(number) for number in range(first, last + 1)]
            covered.update(inside)
            parts = [tags.get(number, "X") for number in inside]
            found.append((line[1], "PROPN" if "PROPN" in parts else parts[0]))
        elif "." not in line[0] and line[0] not in covered:
            found.append((line[1], line[3]))
    return found


def _placed(text: str, tokens: list[tuple[str, str]]) -> Row | None:
    spans: list[Mark] = []
    position, gap = 0, True
    for token, tag in tokens:
        start = text.find(token, position)
        if start < 0:
            return None
        position = start + len(token)
        if tag == "PROPN":
            if spans and not gap:
                spans[-1] = (spans[-1][0], position, NAME)
            else:
                spans.append((start, position, NAME))
            gap = False
        elif not (tag in ("ADP", "DET") and token.islower() and len(token) <= 4):
            gap = True
    return text, spans


def _brat(text: str) -> Iterator[Mark]:
    for line in text.splitlines():
        fields = line.split("\t")
        if line.startswith("T") and len(fields) > 1:
            kind, start, *_, end = re.split("[ ;]", fields[1])
            if kind not in _MEDDOCAN_PLAIN:
                label = "PERSON" if kind.startswith("NOMBRE") else LABELS.get(kind, "IDENTIFIER")
                yield int(start), int(end), label


def _lines(text: str, spans: list[Mark]) -> Iterator[Row]:
    position = 0
    for line in text.split("\n"):
        own = [
            (s - position, min(e - position, len(line)), label)
            for s, e, label in spans
            if position <= s < position + len(line)
        ]
        if line.strip():
            yield line, sorted(own)
        position += len(line) + 1
