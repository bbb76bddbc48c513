"""Words replaced by noisy embeddings, the rivals of LDP-NLP's Figures 4 and 5, beside our latent messages.

    python benchmarks/ldp_words.py --out F --data D [--json FILE] [--repeats N]

Each word's public embedding gets noise of density proportional to exp(-eps*|x|), and the nearest word of the
public vocabulary is sent (Feyisetan et al. 2020).  That is metric privacy: a word w costs eps*d(w, w')
against another w'.  A sentence, cut and filled up to WORDS words so that its length does not show, costs eps
times the sum of these distances, so WORDS*eps*(largest distance of the vocabulary) against any other: plain
local epsilon, delta 0.  The rival's text and our messages go through one encoder of public text, taught
without noise, to one classifier.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from ldp import DELTA, DIMENSION, NO_NOISE
from ldp_corpus import WORDS, Clauses
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds

import redactory
from redactory.foundation.stream import RandomStream
from redactory.training.accounting.published_epsilons import PUBLISHED_NOTE
from redactory.training.ldp.accounting import FixedSends, calibrate_message_noise

TYPES, WIDTH, WINDOW, VOCABULARY = 12, 50, 4, 5000
PUBLISHED = (10.0, 25.0, 50.0, 100.0, 200.0)
"""Epsilon of a word, as those papers print it."""
PLAIN = 8.0
"""Plain local epsilon of a sentence at which both are compared besides."""
DRAWS, LARGEST = 3, 4000.0
UNKNOWN = ""
_WORD = re.compile(r"[^\W_]+")
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words of public text and their vectors of length 1 [words, WIDTH]; the first is all unknown ones."""

    words: list[str]
    vectors: Floats

    @classmethod
    def of(cls, texts: list[str]) -> Vocabulary:
        """The most frequent words; vectors from the positive mutual information of near words, by an SVD."""
        lines = [_WORD.findall(text.lower()) for text in texts]
        counts = Counter(word for line in lines for word in line)
        words = [UNKNOWN, *(word for word, n in counts.most_common(VOCABULARY) if n > 1)]
        place = {word: number for number, word in enumerate(words)}
        near: Counter[tuple[int, int]] = Counter()
        for line in lines:
            numbers = [place.get(word, 0) for word in line]
            for at, one in enumerate(numbers):
                for other in numbers[at + 1 : at + 1 + WINDOW]:
                    near[one, other] += 1
                    near[other, one] += 1
        rows, columns = np.array(list(near)).T
        together = sparse.csr_array((list(near.values()), (rows, columns)), shape=(len(words),) * 2).astype(float)
        sums = np.asarray(together.sum(axis=1)).ravel()
        found = together.tocoo()
        found.data = np.maximum(np.log(found.data * sums.sum() / (sums[found.row] * sums[found.col])), 0.0)
        left, sizes, _ = svds(found.tocsr(), WIDTH, random_state=0)
        vectors = left * np.sqrt(sizes)
        return cls(words, vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9))

    @property
    def reach(self) -> float:
        """The largest distance between two words."""
        return float(np.sqrt(max(0.0, 2.0 - 2.0 * (self.vectors @ self.vectors.T).min())))

    def sent(self, text: str, epsilon: float, stream: RandomStream, number: int) -> tuple[str, float]:
        """What is sent of ``text``, WORDS words, and the share of true words that stayed."""
        place = {word: at for at, word in enumerate(self.words)}
        own = [place.get(word, 0) for word in _WORD.findall(text.lower())][:WORDS]
        true = np.array(own + [0] * (WORDS - len(own)))
        normal = stream.normal("direction", number, WORDS * WIDTH).reshape(WORDS, WIDTH)
        # a radius with the law Gamma(WIDTH, 1/epsilon): a sum of exponentials
        radius = -np.log(stream.uniform("radius", number, WORDS * WIDTH)).reshape(WORDS, WIDTH).sum(1) / epsilon
        noisy = self.vectors[true] + normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius[:, None]
        nearest = np.argmax(noisy @ self.vectors.T, axis=1)  # all have length 1
        kept = nearest[: len(own)] == true[: len(own)]
        text = " ".join(self.words[at] for at in nearest if at)
        return text or "-", float(np.mean(kept)) if len(own) else 1.0


def replaced(source: Path, target: Path, vocabulary: Vocabulary, epsilon: float, seed: int) -> float:
    """Write ``source`` with every word replaced; the share of words that stayed."""
    stream, shares = RandomStream.from_seed(seed), []
    with target.open("w", encoding="utf-8") as out:
        for number, row in enumerate(_rows(source)):
            text, share = vocabulary.sent(row["text"], epsilon, stream, number)
            out.write(json.dumps({**row, "text": text}) + "\n")
            shares.append(share)
    return float(np.mean(shares))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def typical(vocabulary: Vocabulary, texts: list[str]) -> float:
    """The median, over neighbours in the list, of the sum of distances between the words of two clauses."""
    place = {word: at for at, word in enumerate(vocabulary.words)}

    def vectors(text: str) -> Floats:
        own = [place.get(word, 0) for word in _WORD.findall(text.lower())][:WORDS]
        return vocabulary.vectors[own + [0] * (WORDS - len(own))]

    sums = [np.linalg.norm(vectors(a) - vectors(b), axis=1).sum() for a, b in pairwise(texts)]
    return float(np.median(sums))


def accuracy(users: Path, test: Path, encoder: Path, service: Path, noise: float, draws: int) -> float:
    """Of a service that learns from ``users`` and is asked ``test``, at ``noise`` on every message."""
    shutil.rmtree(service, ignore_errors=True)
    redactory.ldp_train(users, encoder, service, {"noise_multiplier": noise, "delta": DELTA})
    return float(redactory.ldp_evaluate(service, encoder, test, draws=draws)["accuracy"]["mean"])


def compared(corpus: Clauses, out: Path, epochs: int, repeat: int) -> dict[str, Any]:
    """Both at every epsilon of PUBLISHED, and at the plain local epsilon PLAIN."""
    encoder = out / "encoders" / f"words-{repeat}"
    if not (encoder / "_SUCCESS").exists():
        shutil.rmtree(encoder, ignore_errors=True)
        settings = {"dimension": DIMENSION, "epochs": epochs, "threads": 1, "seed": repeat}
        redactory.ldp_encoder(corpus.path("public"), encoder, settings)
    vocabulary = Vocabulary.of([row["text"] for row in _rows(corpus.path("public"))])
    reach, service = vocabulary.reach, out / "words-service"
    users, test = corpus.path("users"), corpus.path("test")
    ours: dict[float, float] = {}

    def latent(epsilon: float) -> float:
        noise = NO_NOISE if epsilon > LARGEST else calibrate_message_noise(epsilon, 1, FixedSends(), DELTA)
        if noise not in ours:
            ours[noise] = accuracy(users, test, encoder, service, noise, DRAWS)
        return ours[noise]

    rows = []
    for of_a_word in (PLAIN / (WORDS * reach), *PUBLISHED):
        changed = [out / f"words-{part}.jsonl" for part in ("users", "test")]
        kept = [
            replaced(source, target, vocabulary, of_a_word, 2 * repeat + number)
            for number, (source, target) in enumerate(zip((users, test), changed, strict=True))
        ]
        plain = WORDS * of_a_word * reach
        rows.append(
            {
                "epsilon_of_a_word_as_published": of_a_word,
                "epsilon_plain": plain,
                "epsilon_of_a_typical_exchange": of_a_word * typical(vocabulary, [r["text"] for r in _rows(test)]),
                "kept": kept[1],
                "words": accuracy(changed[0], changed[1], encoder, service, NO_NOISE, 1),
                "ours_at_plain": latent(plain),
                "ours_at_published": latent(of_a_word),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return {
        "repeat": repeat,
        "reach": reach,
        "vocabulary": len(vocabulary.words),
        "sentences": len(_rows(users)),
        "texts": len(_rows(test)),
        "without_noise": latent(2 * LARGEST),
        "rows": rows,
    }


def main() -> None:
    """Compare, and print or write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where corpus, encoders and services lie")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="the public corpora")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10, help="passes over donated text")
    own = parser.parse_args()
    source = own.data / "cuad_clauses" / "clauses.jsonl"
    corpus = Clauses.prepared(source, own.out / f"corpus-{TYPES}", TYPES)
    runs = [compared(corpus, own.out, own.epochs, repeat) for repeat in range(own.repeats)]
    found = {"note": PUBLISHED_NOTE, "width": WIDTH, "words": WORDS, "delta": DELTA, "runs": runs}
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    if own.json is None:
        print(text, end="")
    else:
        own.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
