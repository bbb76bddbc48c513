"""Filter detections in code and logs, where most findings are identifiers and not people.

With ``detect.profile: code`` a line that looks like code or a log keeps only: secrets and contacts in a recognizable
form, deny list terms, and labels of custom recognizers. Prose and lines that name somebody (``Signed-off-by``,
``Copyright``, an address in angle brackets) are read like any text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from redactory.detectors.engine import EngineOutput, Span
from redactory.detectors.engine_registry import MODEL_ENGINES

_PATTERN_LABELS = frozenset({"API_KEY", "EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "CRYPTO"})
"""Labels with a distinctive form or check digit; other recognizers match numbers, which code is full of."""
_TAGGING_ENGINES = frozenset(MODEL_ENGINES) - {"presidio"}
"""Engines whose spans with these labels are guesses; patterns also find what Presidio finds with such labels."""
_PERSON_LINE = re.compile(
    r"(?i:copyright|\(c\)|©|\bauthors?\b|maintainer|written by|contributed by)"
    r"|^\W*[A-Z][\w-]*:[^\n]*<[^<>\s]+@[^<>\s]+>|^\W*(?i:from|to|cc|bcc|reply-to|sender):\s"
)
_NAME_BEFORE_EMAIL = re.compile(
    r"(?:^|[:,;(]|\b(?i:by|to|from|and)\b)\s*([^\s<>:,;@][^<>:,;@\n]{0,60}?)\s*<[^<>\s@]+@[^<>\s@]+>"
)
_COPYRIGHT_HOLDER = re.compile(
    r"(?i:copyright|\(c\)|©|\bauthors?:)(?:\s|\(c\)|©|[\d,-]|(?i:by\b))*([^\W\d_][^\n<>*]{1,80}?)[\s.*/]*(?:<|$)",
    re.MULTILINE,
)
_PASSWORD_IN_URL = re.compile(r"\b[a-z][a-z\d+.-]{1,20}://([^\s:/@'\"]{1,100}):([^\s/@'\"]{1,200})@")
_CODE_SECRET = re.compile(
    # tokens by known prefix
    r"(?<![\w-])(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?!\w)"
    r"|(?<![\w-])(?:gh[pousr]_[A-Za-z\d]{36,}|github_pat_\w{22,}|glpat-[\w-]{20,}|xox[abeoprs]-[\w-]{10,})"
    r"|(?<![\w-])(?:sk|rk|pk)_(?:live|test)_[A-Za-z\d]{10,}|(?<![\w-])AIza[\w-]{35}"
    r"|(?<![\w-])ya29\.[\w-]{20,}|(?<![\w-])(?:npm_[A-Za-z\d]{36}|pypi-[\w-]{50,}|hf_[A-Za-z]{34})"
    r"|(?<![\w-])SG\.[\w-]{22}\.[\w-]{43}|dop_v1_[a-f\d]{64}|(?<![\w-])sk-(?:ant-|proj-)?[\w-]{32,}"
    # signed tokens, private keys, and values whose name says they are secret
    r"|(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
    r"|-----BEGIN (?:[A-Z]{2,20} ){0,3}PRIVATE KEY-----[A-Za-z\d+/=\s\\]{0,9000}"
    r"|(?i:pass(?:wor[dt]|wd)?|secret|token|api_?key|access_?key)['\"]?\s*[:=]{1,2}>?\s*['\"]([^'\"\s]{6,200})['\"]"
)
_KEYWORDS = (
    "import|from \\S+ import|def|class|return|if|else|elif|for|while|struct|static|const|void|int|char|case"
    "|break|goto|typedef|enum|extern|unsigned|public|private|func|fn|let|var|package|use|msgid|msgstr"
)
_DIFF_STARTS = "diff --git|index [\\da-f]{6,}|---|\\+\\+\\+|@@|(?:old|new|deleted) (?:mode|file)|rename|similarity"
_CODE_LINE = re.compile(
    # the start of a line, after a diff sign
    rf"^(?:{_DIFF_STARTS})|^[+\- ]?(?:\t| {{4}})\S|^[+\- ]?\s*(?:{_KEYWORDS})\b"
    r"|^[+\- ]?\s*(?:[#@]\w|//|/\*|\*(?:\s|/|$)|[{}()\[\];\"$%]|-{2}\w)"
    # the end of a line, and typical content
    r"|[;{}\\,(|&]\s*$|->|::|==|!=|&&|\|\||\+\+|<<|>>|[\w)\]]\(|\w\[\w|=\s*[\w\"'({\[&*-]|\*\)|%[sdiulxb]\b"
    r"|\b0x[\da-fA-F]+|</?\w+[\s/>]|(?:^|\s)\.{0,2}/[\w.-]+/|\b\w+_\w+\b|\b[\da-f]{12,}\b"
    # logs
    r"|^\W{0,3}\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|FATAL|TRACE)\b"
)


def filter_code_output(text: str, output: EngineOutput, custom_labels: Collection[str] = ()) -> EngineOutput:
    """Drop spans in lines of code, except secrets, listed terms and ``custom_labels``; add secrets by form."""
    if output.failure is not None:
        return output
    code = list(_iter_code_lines(text))
    spans = [
        span
        for span in output.spans
        if (span.label in _PATTERN_LABELS and span.detector not in _TAGGING_ENGINES)
        or span.detector == "list"
        or span.label in custom_labels
        or not any(start <= span.start and span.end <= end for start, end in code)
    ]
    plain = [token for token in output.non_entity_scores if not any(start <= token.start < end for start, end in code)]
    return replace(output, spans=(*spans, *_find_secrets(text)), non_entity_scores=tuple(plain))


def _iter_code_lines(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    for line in text.splitlines(keepends=True):
        end = position + len(line)
        if _CODE_LINE.search(line.rstrip("\r\n")) and not _PERSON_LINE.search(line):
            yield position, end
        position = end


def _find_secrets(text: str) -> Iterator[Span]:
    """Find keys, tokens and passwords by form, names before an address, and copyright holders."""
    for match in _CODE_SECRET.finditer(text):
        group = match.lastindex or 0
        yield Span(*match.span(group), "API_KEY", 1.0, "patterns")
    for match in _PASSWORD_IN_URL.finditer(text):
        yield Span(match.start(1), match.end(2), "API_KEY", 1.0, "patterns")
    for pattern in (_NAME_BEFORE_EMAIL, _COPYRIGHT_HOLDER):
        for match in pattern.finditer(text):
            yield Span(*match.span(1), "PERSON", 1.0, "patterns")
