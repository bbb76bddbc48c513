"""Local privacy: noisy vectors, fictitious queries, noisy words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import results_data as data
from results_data import Row, digits, share, table
from scipy.stats import norm

CLASSES = 12


def ldp() -> Row:
    """Accuracy of a service that sees noise alone, and the published figure beside the sound one."""
    rows, calculated = data.read("ldp_accuracy"), data.read("ldp_epsilon")
    columns = ("accuracy", "on queries without noise")

    def of(figure: str) -> list[Row]:
        return sorted((row for row in rows if row["figure"] == figure), key=lambda row: row["epsilon"] or 1e9)

    def measured(row: Row) -> tuple[str, str]:
        return share(row["accuracy"], "mean"), f"{row['accuracy_without_noise']:.3f}"

    def noise(row: Row) -> tuple[str, str]:
        return ("no noise" if row["epsilon"] is None else f"{row['noise']:.2f}", digits(row["epsilon"], 1))

    def published(row: Row) -> tuple[str, str, str]:
        keys = ("epsilon_as_published", "epsilon_as_published_sampled")
        a_message, sampled = (digits(row[key], 2) for key in keys)
        return a_message, sampled, f"{best(CLASSES, row['noise']):.3f}"

    eight = [row for row in of("epsilon") if row["epsilon"] == 8.0]
    heads = ("z", "ε, sound", "as published, a message", "as published, sampled", "best possible")
    clt = ("as_published", "exact_add_remove", "hidden", "visible", "expected_sends_sound")
    return {
        "one": rows[0],
        "epsilon": table((*heads, *columns), ((*noise(r), *published(r), *measured(r)) for r in of("epsilon"))),
        "token": table((*heads[:2], *columns), ((*noise(row), *measured(row)) for row in of("token"))),
        "pairs": table((*heads[:2], *columns), ((*noise(row), *measured(row)) for row in of("pairs"))),
        "pairs_majority": of("pairs")[0]["majority_accuracy"],
        "dimension": table(
            ("dimension", *columns),
            (
                (row["dimension"], *measured(row))
                for row in sorted([*of("dimension"), *eight], key=lambda row: row["dimension"])
            ),
        ),
        "clt": table(
            ("p", "T", "as published", "exact, there or not", "hidden coins", "coins seen", "J = pT sends"),
            (
                (digits(row["rate"], 4), f"{row['steps']:,}", *(digits(row[key]) for key in clt))
                for row in calculated["training"]
            ),
        ),
        "query": calculated["queries"][0],
        "steps": calculated["composition"][-1],
        "answered": _answered(calculated["answered"]),
        "steps_asked": calculated["answered"][0]["queries"],
        **_sampling(),
        **_words(),
        **_dpnr(),
    }


def _answered(calculated: Sequence[Row]) -> str:
    """What a rate costs until all queries are answered, by accounting alone."""
    heads = ("ε, sound", "p", "T", "z", "noise of the true ones", "best possible at it", "as published")
    lines = (
        (
            digits(round(row["sound"]), 0),
            digits(row["rate"]),
            f"{row['steps']:,}",
            f"{row['noise_multiplier']:.2f}",
            f"{row['noise_of_true']:.2f}",
            f"{best(CLASSES, row['noise_of_true']):.3f}",
            digits(row["as_published"], 2),
        )
        for row in calculated
    )
    return table(heads, lines)


def _sampling() -> Row:
    """Fictitious messages in training and in queries, with and without."""
    rows, heads = data.read("ldp_sampling"), ("sent", "p", "T", "z", "as published", "accuracy")

    def ways(part: str, epsilon: float | None) -> list[list[Row]]:
        """The rows of a part by how messages are sent, a row for each repetition."""
        found: dict[str, list[Row]] = {}
        for row in rows:
            if row["part"] == part and row.get("epsilon") == epsilon:
                found.setdefault(json.dumps(row["sampling"]), []).append(row)
        return list(found.values())

    def mean(own: Sequence[Row], key: str = "accuracy") -> float:
        return fmean(row[key] for row in own)

    def reach(own: Sequence[Row], key: str = "accuracy") -> str:
        ends = [row[key] for row in own]
        return f"{mean(own, key):.3f} ({min(ends):.3f} to {max(ends):.3f})"

    def line(own: Sequence[Row]) -> tuple[str, ...]:
        one, way = own[0], own[0]["sampling"]
        kind = "once" if way["kind"] == "fixed" else way["kind"] + ", with the class" * ("classes" in way)
        figures = (digits(one[key], 2) for key in ("noise_multiplier", "epsilon_as_published"))
        return kind, digits(way.get("rate", 1.0)), f"{way.get('steps', 1):,}", *figures, reach(own)

    clean, trained = "accuracy_without_noise", ways("training", None)
    asked = {epsilon: ways("query", epsilon) for epsilon in (8.0, 2.0)}
    return {
        "sampled": {**rows[0], "encoders": len({row["repeat"] for row in rows})},
        "clean": fmean(mean(own, clean) for own in asked[8.0]),
        "clean_once": mean(trained[0], clean),
        "clean_hidden": mean(trained[1], clean),
        "once": {epsilon: mean(found[0]) for epsilon, found in asked.items()},
        "most": {epsilon: max(map(mean, found)) for epsilon, found in asked.items()},
        "both": {epsilon: mean(ways("both", epsilon)[0]) for epsilon in asked},
        "asked": {
            epsilon: table(heads, map(line, sorted(found, key=lambda own: own[0]["query"]["messages"])))
            for epsilon, found in asked.items()
        },
        "trainings": table((*heads, "without noise on queries"), ((*line(own), reach(own, clean)) for own in trained)),
    }


def _words() -> Row:
    """Words replaced by noisy embeddings, at their own epsilon and at the plain local one."""
    found = data.read("ldp_words")
    rows = found["runs"][0]["rows"]
    lines = [
        (
            digits(row["epsilon_of_a_word_as_published"], 2),
            digits(row["epsilon_of_a_typical_exchange"], 0),
            digits(row["epsilon_plain"], 0),
            f"{row['kept']:.1%}",
            *(
                f"{fmean(run['rows'][number][key] for run in found['runs']):.3f}"
                for key in ("words", "ours_at_published", "ours_at_plain")
            ),
        )
        for number, row in enumerate(rows)
    ]
    heads = (
        *("ε of a word, as published", "a typical exchange", "plain local ε", "words kept"),
        *("words", "ours at the first ε", "ours at the plain ε"),
    )
    return {"words": found["runs"][0], "words_width": found["width"], "words_table": table(heads, lines)}


def _dpnr() -> Row:
    found = data.read("dpnr")
    keys = ("published", "revised", "revised_with_dropout", "sound")

    def accuracy(told: Row) -> str:
        return f"{told['value']:.3f} ({told['least']:.3f} to {told['greatest']:.3f})"

    lines = [
        (*(digits(row[key], 3) for key in keys), accuracy(row["dpnr"]), accuracy(row["gaussian"]))
        for row in found["table"]
    ]
    heads = ("published, not a guarantee", "revised", "with dropout", "sound", "DPNR", "Gaussian, same sound ε")
    return {"dpnr": found, "dpnr_table": table(heads, lines)}


def best(classes: int, noise: float) -> float:
    """Share of right answers at noise ``noise`` that nobody can surpass, for equally frequent ``classes``."""
    y = np.linspace(-12.0, 12.0, 24_001)
    shift = np.sqrt(classes / (classes - 1)) / noise
    return float(np.trapezoid(norm.pdf(y) * norm.cdf(y + shift) ** (classes - 1), y))
