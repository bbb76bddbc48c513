"""Coverage-guided fuzzing with atheris: ``python -m tests.soak.fuzz readers|masker|policies [EXECUTIONS]``.

Of a target's mutated seeds so many are executed, and then the figures printed.  The exit code is 0 after
that; not 0 where the target raised, took half a minute or 2 GiB, or ended the process: the input that did
it is then left in the system's folder for temporary files.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

with atheris.instrument_imports(
    include=["redactory.detectors", "redactory.redaction", "redactory.pipelines.readers", "csv", "gzip", "json"]
):
    from redactory.detectors import Detection, Detector, DetectSettings, Span
    from redactory.pipelines.readers import Document, InputSettings, Rejection, find_sources, read_documents
    from redactory.redaction import MASK, route_example

from redactory.foundation.errors import InputError
from tests.pipelines.oracles import is_masked_as_marked, is_usable, parse_expected_texts

SEED = 20260401
_PLACE = tempfile.TemporaryDirectory(prefix="redactory-fuzz-")
FOLDER = Path(_PLACE.name)
"""For files that a target needs; gone after the last execution."""
MAX_CHARS = 500
KINDS = ("jsonl", "csv", "tsv", "text", "parquet", "arrow")
PACKERS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
}
REFUSALS = re.compile(
    r"rows(\.\w+)*( cannot be read: (it is (truncated|damaged).*|\w+)|.* decompress it first"
    r"| is not a complete (Parquet|Arrow) file: it cannot be read after row \d+; .*"
    r"| has no column '(text|id)'; .*| has two columns '(text|id|user_id)': .*"
    r"|: its first line is not a header \(\w+\)|: its first line is not UTF-8; .*)"
)


def readers(data: bytes) -> None:
    """The first three bytes say which format, how it is compressed and which limit; the rest is the file."""
    if len(data) < 3:
        return
    kind, ending = KINDS[data[0] % len(KINDS)], list(PACKERS)[data[1] % len(PACKERS)]
    raw, limit = bool(data[2] & 1), (100, 1_000, 1 << 20)[data[2] // 2 % 3]
    content = data[3:]
    path = FOLDER / f"rows.{kind}{ending}"
    path.write_bytes(content if raw else PACKERS[ending](content))
    settings = InputSettings(path=(str(path),), format=kind, max_row_bytes=limit, max_chars=MAX_CHARS, **named(data[2]))
    entries = read(settings)
    assert entries == read(settings)
    if entries is None:
        return
    numbers = [entry.row for entry in entries]
    assert numbers == sorted(set(numbers))
    assert all(is_usable(entry, MAX_CHARS) for entry in entries)
    if kind == "jsonl" and not raw:
        expected = parse_expected_texts(content, limit)
        assert len(entries) == len(expected)
        for entry, text in zip(entries, expected, strict=True):
            if text is not None and len(text) <= MAX_CHARS and "id" not in settings.model_fields_set:
                assert isinstance(entry, Document)
                assert entry.text == text
    if kind == "parquet" and not ending:
        assert len(entries) == pq.ParquetFile(io.BytesIO(path.read_bytes())).metadata.num_rows


def named(flags: int) -> dict[str, str]:
    """Columns that the configuration names, and that must then be there."""
    return {"id": "id"} if flags & 0x80 else {}


def read(settings: InputSettings) -> list[Document | Rejection] | None:
    """The entries of the one file; None where it is refused, in words that quote nothing of it."""
    (source,) = find_sources(settings.path, settings.format)
    try:
        return list(read_documents(source, settings))
    except InputError as error:
        said = str(error)
    assert REFUSALS.fullmatch(said)
    return None


def readers_seeds() -> list[bytes]:
    """A small file of each format, in each compression, packed here or as it is."""
    lines = b'{"text": "a line", "id": "1"}\n{"text": 1}\n\xff\n{"text": "\\ud800", "user_id": 2}\n[[{}]]\n'
    table = b'text,id,user_id\n"a ""b""\nc",1,2\nd,2,\n"open,3\n'
    files = {"jsonl": lines, "csv": table, "tsv": table.replace(b",", b"\t"), "text": "é\r\n🙂".encode()}
    for compression in ("none", "snappy", "zstd"):
        out = io.BytesIO()
        rows = pa.table({"text": ["a", "b", None, "a"], "id": [1, 2, 3, 4], "user_id": ["x"] * 4})
        pq.write_table(rows, out, compression=compression, store_schema=False)
        files[f"parquet{compression}"] = out.getvalue()
    for form, writer in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        out = io.BytesIO()
        with writer(out, rows.schema) as written:
            written.write_table(rows, max_chunksize=3)
        files[f"arrow{form}"] = out.getvalue()
    found = []
    for name, content in files.items():
        kind = next(number for number, kind in enumerate(KINDS) if name.startswith(kind))
        for number, pack in enumerate(PACKERS.values()):
            found += [bytes([kind, number, 4]) + content, bytes([kind, number, 5]) + pack(content)]
    return found


def masker(data: bytes) -> None:
    """The head gives the spans, the rest the text."""
    given = atheris.FuzzedDataProvider(data)
    ends = [given.ConsumeInt(1) & 0xFF for _ in range(2 * given.ConsumeIntInRange(0, 8))]
    flagged, failed = given.ConsumeBool(), given.ConsumeIntInRange(0, 15) == 15
    text = given.ConsumeUnicodeNoSurrogates(given.remaining_bytes()).replace("\0", "<MASK>")
    pairs = ((min(a, b), min(max(a, b), len(text))) for a, b in zip(ends[::2], ends[1::2], strict=True))
    spans = tuple(Span(start, end, "L", 1.0, "d") for start, end in pairs if start < end)
    whole = (Span(0, len(text), "W", 0.5, "d"),) if flagged and text else ()
    decision = route_example(text, Detection(spans, whole, "engine_error" if failed else None))
    if failed:
        assert (decision.split, decision.text, decision.failure) == ("private", "", "engine_error")
        return
    assert (decision.split == "private") == bool(spans or whole or MASK in text)
    assert is_masked_as_marked(text, spans, decision)
    assert decision.masks <= len(spans)


def masker_seeds() -> list[bytes]:
    """Heads of some spans before texts of masks, parts of masks and other signs."""
    texts = ("Anna lives in Rome.", "<MASK> and <MA<MASK>SK>", "e\u0301 \u202e\u200b 🙂 <MASK> \u3000<MASK>")
    return [text.encode("utf-32-le") + bytes(head) for text in texts for head in ((2, 5, 1, 3, 8), range(16))]


OTHER = "Write to mary.smith@example.org, or call 212-555-0101."


@functools.cache
def detector() -> Detector:
    """The engines of a configuration that says nothing."""
    return Detector(DetectSettings())


def policies(data: bytes) -> None:
    """The bytes are the text, where they are one; every second code point would be no text else."""
    text = data.decode("utf-8", "replace").replace("\0", "\ufffd")
    if not text.strip():
        return
    (found,) = detector().detect([text])
    assert found.failure in (None, "pattern_timeout")
    decision = route_example(text, found)
    marked = [*found.strict, *found.conservative]
    assert all(0 <= span.start < span.end <= len(text) for span in marked)
    assert (decision.split == "private") == bool(marked or found.failure or MASK in text)
    assert found.failure or is_masked_as_marked(text, found.strict, decision)
    if found.failure is None and data[0] % 8 == 0:
        # a text's decision does not hang on the texts beside it
        assert [*detector().detect([OTHER, text])][1] == found


def policies_seeds() -> list[bytes]:
    """Texts with hits of many kinds, and signs that are none to see."""
    texts = (
        OTHER,
        "Mr. John O'Brien of 12 Main St., Apt. 4, was born on 03/04/1985.",
        "GB82 WEST 1234 5698 7654 32, 4111 1111 1111 1111, 078-05-1120, fe80::1, http://a.b/c?d=e",
        "n\u200bo\u00ad \u202ethgir ot tfel\u202c, e\u0301, ﬁ, а, Ⅷ, １２３, 👩\u200d👩\u200d👧 <MASK>",
        "it is fine, and so is this.",
        "\\ \" ' ` $(x) {0} %s [a](b) ((((((((",
    )
    return [text.encode() for text in texts]


def fuzz(target: Callable[[bytes], None], seeds: Iterable[bytes], executions: int, longest: int) -> None:
    """Run ``target`` on mutations, at most ``longest`` bytes, of ``seeds``; the process ends with it."""
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    begun, done = time.monotonic(), 0

    def counted(data: bytes) -> None:
        nonlocal done
        target(data)
        done += 1
        if done == executions:
            # the fuzzer ends the process, and nothing runs after it
            _PLACE.cleanup()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"\n{done} executions in {time.monotonic() - begun:.0f} s, at most {peak:.0f} MiB", flush=True)

    options = {
        "runs": executions,
        "seed": SEED,
        "max_len": longest,
        "timeout": 30,
        "rss_limit_mb": 2048,
        "verbosity": 0,
        "reload": 0,  # the corpus is gone when the last execution has ended
        "artifact_prefix": f"{tempfile.gettempdir()}/redactory-fuzz-",
    }
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], counted)
    atheris.Fuzz()


TARGETS = {
    "readers": (readers, readers_seeds, 60_000, 3_000),
    "masker": (masker, masker_seeds, 400_000, 400),
    "policies": (policies, policies_seeds, 4_000, 300),
}

if __name__ == "__main__":
    called, written, most, size = TARGETS[sys.argv[1]]
    fuzz(called, written(), int(sys.argv[2]) if len(sys.argv) > 2 else most, size)
