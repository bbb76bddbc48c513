"""Users and entities at once: epsilons, perplexity and classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import results_data as data
from results_data import Row, digits, more, share, spread, table


def uedp() -> Row:
    """Users and entities: corpora, epsilon against steps, and what is learnt."""
    told = data.read("uedp_trainings")
    rows = told["table"]

    def chosen(figure: str, corpus: str = "cuad", start: str = "donated", note: str = "") -> list[Row]:
        own = (figure, corpus, start, note)
        found = [row for row in rows if (row["figure"], row["corpus"], row["start"], row["note"]) == own]
        return sorted(found, key=lambda row: (row["target"] is not None, -(row["target"] or 0)))

    cuad, sim = chosen("perplexity"), chosen("perplexity", "customersim")
    scratch = [chosen("perplexity", corpus, "scratch") for corpus in ("cuad", "customersim")]
    awd, awd_more = chosen("awd"), chosen("awd", note="p16")
    alone = value(cuad, "pretraining-alone")
    noisy = ("user-level", "uedp-alg1", "uedp-bounded")
    both = (8.0, 2.0)
    return {
        "units": told["shared"]["model"]["hidden_size"],
        **_corpora(),
        **_steps(),
        "cuad": methods(cuad),
        "cuad_45": methods(chosen("perplexity", "cuad-45")),
        "cuad_scratch": methods(scratch[0]),
        "customersim": methods(sim),
        "customersim_scratch": methods(scratch[1]),
        "little_is_gained": all(
            alone - value(cuad, method, 8.0) < (alone - value(cuad, "noiseless")) / 5 for method in noisy
        ),
        "before_alg1": all(value(cuad, "uedp-bounded", e) < value(cuad, "uedp-alg1", e) for e in both),
        "level_with_user": all(
            abs(value(cuad, "uedp-bounded", e) - row["perplexity"]) < row["greatest"] - row["least"]
            for e in both
            for row in [only(cuad, "user-level", e)]
        ),
        "unlearns": value(cuad, "uedp-alg1-all-users") > alone,
        "user_level_best": all(
            value(sim, "user-level", e) == min(value(sim, method, e) for method in noisy) for e in both
        ),
        "bounded_gains": all(value(sim, "uedp-bounded", e) < value(sim, "pretraining-alone") for e in both),
        "best_from_scratch": all(
            value(own, "uedp-bounded", e) == min(value(own, m, e) for m in noisy) for own in scratch for e in both
        ),
        "far_from_noiseless": all(
            value(own, "uedp-bounded", e) > 10 * value(own, "noiseless") for own in scratch for e in both
        ),
        "masking_as_good": all(value(own, "de-identification") < value(own, "noiseless") for own in (cuad, sim)),
        "awd": methods(awd),
        "awd_more": methods(awd_more),
        "awd_worse": value(awd, "uedp-bounded") > value(awd, "pretraining-alone"),
        "awd_better": value(awd_more, "uedp-bounded") < value(awd_more, "pretraining-alone"),
        "by_cap": _sweep(rows, "k", lambda settings: settings["bounding"]["k_user"]),
        "by_rate": _sweep(rows, "q-s", lambda settings: settings["federated"]["related_entity_rate"]),
        **_classify(chosen("classify")),
    }


def only(rows: Iterable[Row], method: str, target: float | None = None) -> Row:
    """The row of ``method``, at ``target`` where it has several."""
    [found] = [row for row in rows if row["method"] == method and target in (None, row["target"])]
    return found


def value(rows: Iterable[Row], method: str, target: float | None = None) -> float:
    """Its perplexity."""
    return float(only(rows, method, target)["perplexity"])


def methods(rows: Sequence[Row]) -> str:
    """Perplexity of each method."""
    base = value(rows, "noiseless")

    def line(row: Row) -> tuple[object, ...]:
        found = row["perplexity"]
        return (
            f"`{row['method']}`",
            digits(row["target"], 1),
            spread(row, "perplexity", 4) if row["seeds"] > 1 else digits(found, 4),
            more(found, base) if found < 3 * base else f"× {found / base:.0f}",
            digits(row["as_is"], 4),
            *((row["steps"], digits(row["noise_multiplier"])) if row["target"] else ("–", "–")),
            row["seeds"],
        )

    heads = ("method", "ε", "outside of entities", "beside `noiseless`", "as it is", "T", "noise, in clips")
    return table((*heads, "seeds"), map(line, rows))


def _sweep(rows: Iterable[Row], figure: str, setting: Callable[[Row], Any]) -> str:
    own = [row for row in rows if row["figure"] == figure]
    return ", ".join(f"{setting(row['settings']):g}: {digits(row['perplexity'], 4)}" for row in own)


def _corpora() -> Row:
    names = {"cuad": "CUAD", "cuad-45": "CUAD, 45% donated", "customersim": "CustomerSim"}

    def counted(row: Row) -> str:
        return f"{row['users']:,} ({row['examples']:,})"

    lines = [
        (
            names[row["corpus"]],
            counted(row["whole"]),
            *(counted(row["parts"][part]) for part in ("donated", "private", "test")),
            f"{row['entities']:,}",
            f"{row['most_points_of_an_entity']}, {row['most_users_of_an_entity']}",
        )
        for row in data.read("uedp_datasets")
    ]
    heads = ("corpus", "users (points)", "donated", "private", "test", "private entities")
    return {"corpora": table((*heads, "points and users of one, at most"), lines)}


def _steps() -> Row:
    lines, rows = [], []
    for corpus in ("cuad", "customersim"):
        found = data.read(f"uedp_epsilon_{corpus}")
        for row in found["rows"]:
            if row["steps"] not in (1, 51, 500):
                continue
            rows.append(row)
            lines.append(
                (
                    f"{corpus}, {found['users']:,} users, T = {row['steps']}",
                    digits(row["as_published"], 2),
                    digits(row["sound"]),
                    f"{digits(row['sound_enforced_spread'], 2)} (M = {found['M']})",
                    f"{digits(row['bounded'], 2)} (k = {found['k']})",
                )
            )
    heads = ("corpus", "as published, no guarantee", "Algorithm 1, M = U", "M enforced", "`uedp-bounded`")
    return {
        "steps": table(heads, lines),
        "published_is_flat": all(row["as_published"] < 1 for row in rows),
        "sound_is_large": all(row["sound"] > 300 for row in rows if row["steps"] == 500),
        "bounded_is_small": all(row["bounded"] < row["sound_enforced_spread"] < 2 for row in rows),
    }


def _classify(rows: Sequence[Row]) -> Row:
    alone = only(rows, "pretraining-alone")
    lines = [
        (
            f"`{row['method']}`",
            digits(row["target"], 1),
            share(row, "error_rate"),
            f"{row['as_is']['log_loss']:.3f}",
            row["seeds"],
        )
        for row in rows
    ]
    return {
        "classify": table(("method", "ε", "test error", "log loss, nats", "seeds"), lines),
        "majority": alone["as_is"]["majority_error_rate"],
        "within_seeds": all(
            row["least"] <= alone["greatest"] and alone["least"] <= row["greatest"] for row in rows if row["target"]
        ),
    }
