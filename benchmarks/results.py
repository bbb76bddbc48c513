"""The page of results, whole, from the JSON files that the benchmarks left in ``docs/results``.

``docs/generate.py`` puts it on the site, and what the home page says of it.  ``results.md.j2`` is the page
without its figures.  A sentence that says more than its numbers (better, within, none) stands there with the
names of its conditions, without which there is no page.

    python benchmarks/results.py        prints it
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import jinja2
import numpy as np
from scipy.stats import norm

DATA = Path(__file__).parents[1] / "docs" / "results"
TEMPLATE = Path(__file__).with_suffix(".md.j2")
Row = Mapping[str, Any]
TRAINERS = ("sgd", "redact-only", "sdp", "dpsgd", "crt", "crt-drop")
CLASSES = 12
"""Of the clause types that local privacy is measured on."""


def page() -> str:
    """The page as the data have it."""
    shown = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    shown.filters |= {"where": where, "digits": digits, "count": "{:,}".format}
    sections = (
        files,
        detection,
        crt,
        ladder,
        counted,
        attacks,
        synthetic,
        uedp,
        ldp,
        scale,
        workers,
        clipping,
        expert,
    )
    template = shown.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render({section.__name__: section for section in sections})


def summary() -> str:
    """The questions that people ask first."""
    found, own, ours = detected().values(), scale(), clipping()["ours"]
    both = [one["table"][1] for one in found]
    counts, most = ([row["miss_rate"][key] for row in both] for key in ("misses", "high"))
    clean = [100 * row["public_share"]["value"] for row in both]
    chats, people = crt("crt_customersim"), crt("crt_multiwoz")
    lines = [
        (
            "What do both policies miss?",
            f"{min(counts)} to {max(counts)} of hundreds to thousands of labelled secrets on "
            f"each of {len(found)} test sets: at most {100 * min(most):.1f}% to {100 * max(most):.1f}%",
            "[detection](results.md#detection)",
        ),
        (
            "How much text without secrets stays public?",
            f"{min(clean):.0f}% to {max(clean):.0f}%",
            "the same",
        ),
        (
            "What does the promise cost in perplexity?",
            f"beside the same text without noise {chats['low']} to {chats['high']} on simulated support "
            f"chats, {people['low']} to {people['high']} on human dialogues",
            "[CRT](results.md#crt-perplexity-against-epsilon)",
        ),
        (
            "What does an attack get out?",
            where("no canary above chance from `crt`", attacks()["crt_below_chance"])
            + where("; planted numbers from models without noise", attacks()["first_place"]),
            "[attacks](results.md#attacks-beside-promises)",
        ),
        (
            "How fast is a private step?",
            f"{ours} times the time of a plain one",
            "[clipping](results.md#what-clipping-costs)",
        ),
        (
            "How fast is curation?",
            f"{own['detection']['texts_per_cpu_second']} distinct texts a second and core with the default "
            f"engines, and {max(map(int, own['each'].split(', ')))} microseconds a point besides; linear",
            "[scale](results.md#scale)",
        ),
    ]
    return table(("question", "answer", "where"), lines)


@cache
def read(name: str) -> Any:
    """The JSON file ``name``."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def where(sentence: str, *conditions: bool) -> str:
    """``sentence``, which is true where all ``conditions`` are."""
    if not all(conditions):
        raise SystemExit(f"the data do not say so any more: {sentence}")
    return sentence


def files(*names: str) -> str:
    """Where the figures come from."""
    return "Data: " + ", ".join(f"[{name}.json](results/{name}.json)" for name in names) + "."


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *lines])


def digits(value: float | None, places: int = 3) -> str:
    """A number with so many significant digits at least; "none" where there is none."""
    if value is None:
        return "none"
    first = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, places - 1 - first)}f}"


def spread(row: Row, key: str = "value", places: int = 3) -> str:
    """A mean with the least and the greatest over seeds or draws."""
    return f"{digits(row[key], places)} ({digits(row['least'], places)} to {digits(row['greatest'], places)})"


def share(row: Row, key: str) -> str:
    """The same of a share, with three decimals."""
    return f"{row[key]:.3f} ({row['least']:.3f} to {row['greatest']:.3f})"


def more(value: float, than: float) -> str:
    """By how many per cent ``value`` is larger."""
    return "0" if value == than else f"{100 * (value / than - 1):+.0f}%"


def claims(figure: Row) -> str:
    """What the benchmark itself looked for of the paper's trend."""
    lines = [
        (f"`{one['trainer']}`", one["claim"], "yes" if one["holds"] else "**no**")
        for one in figure["ours"]
        if one["trainer"] in TRAINERS and one["holds"] is not None
    ]
    return table(("trainer", "what was looked for", "found"), lines)


def detection() -> Row:
    """What policies and engines find of each labelled file, by language: what the command printed as JSON."""
    found = detected()
    english = [one for one in found.values() if one["language"] == "en"]

    def rate(figure: Row) -> str:
        return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"

    def line(one: Row, row: Row, first: bool) -> tuple[str, ...]:
        names = {"strict": "π", "conservative": "**π ∪ π_c**"}
        text = f"{one['language']}, `{Path(one['labelled']).stem}`, {one['points']:,} by {one['segment']}"
        figures = ("cover_recall", "char_precision", "char_recall", "public_share")
        missed = row["miss_rate"]
        return (
            text if first else "",
            names.get(row["policy"], row["engine"].partition(":")[0]),
            *(rate(row[name]) for name in figures),
            f"{missed['misses']:,} of {missed['n']:,} (to {100 * missed['high']:.2f}%)",
            f"{row['texts_per_second']['value']:,.0f}",
        )

    heads = ("text", "by", "covered", "precision", "recall", "clean points public", "missed", "texts/s")
    rows = [line(one, row, not number) for one in found.values() for number, row in enumerate(one["table"])]
    return {
        "files": files(*found),
        "table": table(heads, rows),
        "fewest_missed": all(
            one["table"][1]["miss_rate"]["misses"] <= row["miss_rate"]["misses"]
            for one in english
            for row in one["table"][2:]
        ),
        "speed": spread_of(
            _speed(one["table"][0]) / _speed(row)
            for one in english
            for row in one["table"]
            if row["engine"] == "presidio"
        ),
    }


def detected() -> dict[str, Any]:
    """The files ``detection_LANGUAGE_TEXT.json``, English first, each as the command wrote it."""
    names = sorted(path.stem for path in DATA.glob("detection_*.json"))
    return {name: read(name) for name in sorted(names, key=lambda name: not name.startswith("detection_en_"))}


def _speed(row: Row) -> float:
    return float(row["texts_per_second"]["value"])


def spread_of(values: Iterable[float]) -> str:
    """The least and the greatest."""
    known = sorted(values)
    return f"{digits(known[0], 2)} to {digits(known[-1], 2)}"


def crt(file: str) -> Row:
    """Figure 2 of the CRT paper."""
    found = read(file)
    rows = found["table"]
    # a table has one tokenizer; words alone compare with another's
    per = "per_word" if "per_word" in rows[0] else "perplexity"
    values = {t: [row[per]["value"] for row in rows if row["trainer"] == t] for t in TRAINERS}
    [plain], [masked] = values["sgd"], values["redact-only"]

    def line(row: Row) -> tuple[object, ...]:
        published, value = row["as_published"], row[per]["value"]
        sound = "none" if row["epsilon"] is None else f"{row['epsilon']:.2f}"
        return (
            f"`{row['trainer']}`",
            sound if published is None or row["epsilon"] else f"none ({published:.2g} as published)",
            digits(row["noise_multiplier"], 2) if row["noise_multiplier"] else "–",
            spread(row[per]),
            more(value, masked),
            more(value, plain),
            row["seeds"],
        )

    heads = (
        "trainer",
        "ε",
        "σ",
        f"perplexity per {'word' if per == 'per_word' else 'token'}",
        "beside `redact-only`",
        "beside `sgd`",
        "seeds",
    )
    return {
        "facts": found["facts"],
        "table": table(heads, map(line, rows)),
        "claims": claims(found),
        "low": more(min(values["crt"]), masked).removeprefix("+"),
        "high": more(max(values["crt"]), masked).removeprefix("+"),
        "below_dpsgd": all(a < b for a, b in zip(values["crt"], values["dpsgd"], strict=True)),
        "masked_is_easier": masked < plain,
    }


def counted() -> Row:
    """Public by count beside public by policies; planted numbers; how often text repeats."""
    own = read("by_count")
    constants, *rows = own["planted"]
    ways = [
        (
            f"`{row['way']}`",
            row["public_texts"],
            f"{100 * row['public_points']:.1f}%",
            digits(row["per_word"]["value"]) if own["seeds"] == 1 else spread(row["per_word"]),
            digits(row.get("epsilon_confidentiality")),
        )
        for row in own["ways"]
        if row["target"] is not None
    ]
    crossed = [
        (f"{row['users']:g}", f"{row['crossed']} of {row['planted']}", f"{row['expected']:.2g}")
        for row in rows
    ]
    often = [
        (
            row["file"],
            row["mode"],
            row["threshold"],
            *(f"{row[key]['texts']} ({100 * row[key]['points']:.1f}%)" for key in ("all", "k=4")),
        )
        for row in own["repeats"]
    ]
    heads = ("public by", "public texts", "of all points", "perplexity a word", "every secret")
    enough = ("users needed", "texts of enough users (of all points)", "the same, of four texts a user")
    noisy = {row["way"]: row["per_word"]["value"] for row in own["ways"] if row["target"] is not None}
    return {
        **own,
        "seeds": "one seed"
        if own["seeds"] == 1
        else f"{own['seeds']} seeds; in brackets the least and greatest",
        "ways": table(heads, ways),
        "both_level": abs(noisy["both"] / noisy["policies"] - 1) < 0.05,
        "count_best": noisy["count"] < min(noisy["policies"], noisy["both"]),
        "epsilon": next(row["target"] for row in own["ways"] if row["target"] is not None),
        "planted": table(("in the texts of so many users", "public", "by the law"), crossed),
        "constants": constants,
        "as_the_law": min(row["chance"] for row in rows) > 0.01 / len(rows) and not rows[0]["crossed"],
        "often": table(("corpus", "examples", *enough), often),
        "nights": _nights(),
    }


def _nights() -> Row:
    """Thirty nights that count anew under one budget."""
    own = read("nights_count")
    rows = own["every_row_once"]
    return {
        **own,
        "first": own["nights"][0]["public"],
        "whole": rows["given"] == rows["read"] and own["verified"] == own["runs"] == len(own["nights"]),
        "year": ", ".join(f"{digits(one['epsilon'])} of {one['selections']}" for one in own["year"][1:]),
    }


def synthetic() -> Row:
    """What classifiers learn from rows that a model wrote."""
    own = read("synthesize")
    seeds = [row["error_rate"] for row in own["cuad"]]
    errors = {name: [row[name] for row in seeds] for name in seeds[0]}
    lines = [
        (name.replace("_", " "), f"{np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})")
        for name, v in errors.items()
    ]
    gap = np.mean(errors["written_histogram_after_donated"]) - np.mean(errors["real_dpsgd"])
    return {
        "seeds": len(seeds),
        "rows": own["cuad"][0]["rows"],
        "errors": table(("a classifier learns from", "error rate"), lines),
        "missed": gap > 0.10,
        "below_donated": min(errors["written_histogram_after_donated"]) > max(errors["donated_alone"]),
        "gap": f"{100 * gap:.0f}",
        **_by_heart(own["customersim"][0]),
    }


def _by_heart(own: Row) -> Row:
    """Texts of a model with a guarantee beside those of one that learnt its corpus by heart."""
    lines = []
    for name in ("dpsgd", "sgd"):
        row, near, inside = own[name], own[name]["nearest"], own[name]["membership"]
        words, found = row["next_word_accuracy"], row["canaries"]
        lines.append(
            (
                f"`{name}`, {row['dialogues']:,} dialogues",
                f"{words['written']:.3f} ({words['real']:.3f})",
                f"{row['mauve']['written']:.2f} ({row['mauve']['real']:.2f})",
                f"{near['value']:.3f} ({near['low']:.3f} to {near['high']:.3f})",
                f"{inside['value']:.3f} ({inside['low']:.3f} to {inside['high']:.3f})",
                f"{found['inserted_found']} of {found['inserted']}",
            )
        )
    words, real = (own["dpsgd"]["next_word_accuracy"][key] for key in ("written", "real"))
    heads = ("a model by", "next words right (real text)", "MAUVE (real text)")
    attacked = ("nearest text: AUC (by chance)", "membership: AUC", "planted numbers")
    return {
        "customersim": table((*heads, *attacked), lines),
        "epsilon": own["dpsgd"]["epsilon"],
        "nothing_found": own["dpsgd"]["above_chance"] == [],
        "speaks": own["speaks"] == ["nearest"],
        "words_less": f"{100 * (1 - words / real):.0f}%",
        "words_missed": words < 0.95 * real,
    }


def attacks() -> Row:
    """Figures 3 to 5 of the CRT paper, an audit, and what an exact rank costs."""
    three, four, five = (read(f"attacks_figure{number}") for number in (3, 4, 5))
    chance = three["table"][0]["chance"]
    of_crt = [row for row in three["table"] if row["trainer"] == "crt"]
    audited = read("attacks_audit")

    def difference(row: Row) -> str:
        told = row["difference"]
        return f"{told['value']:+.1f} ({told['low']:+.1f} to {told['high']:+.1f})"

    def accuracy(row: Row) -> str:
        low, high = row["intervals"][0]
        return f"{row['accuracy']['value']:.3f} ({low:.2f} to {high:.2f})"

    return {
        "facts": three["facts"],
        "target": digits(of_crt[0]["target"], 1),
        "chance": f"{chance:.2f}",
        "highest": by_gamma(three["table"], lambda row: f"{row['highest']['value']:.2f}"),
        "difference": by_gamma(three["table"], difference),
        "claims": claims(three),
        "crt_below_chance": all(row["highest"]["value"] < chance for row in of_crt),
        "crt_zero_inside": all(row["difference"]["low"] <= 0 <= row["difference"]["high"] for row in of_crt),
        "no_rise": not any(one["holds"] for one in three["ours"] if "above the 95 %" in one["claim"]),
        **_long(),
        "membership": {
            "facts": four["facts"],
            "members": four["runs"][0]["members"],
            "single": by_gamma(four["table"], accuracy),
            "groups": by_gamma(five["table"], accuracy),
            "sgd_leaks": above_chance("sgd", (four, five)),
            "missed_leak": above_chance("redact-only", (four,), some=True),
            "crt_does_not": not above_chance("crt", (four, five), some=True),
        },
        "audit": audited["crt"],
        "audited": table(
            ("trainer", "guesses right", "ε shown, at least (Steinke et al., f-DP)", "ε stated"),
            (
                (
                    f"`{name}`",
                    f"{row['correct']:,} of {row['guesses']:,}",
                    f"{row['epsilon_lower']:.2f}, {row['epsilon_lower_gaussian']:.2f}",
                    digits(row["epsilon_upper"]),
                )
                for name, row in audited.items()
            ),
        ),
        "audit_holds": all(row["holds"] for row in audited.values()),
        "exact": read("exposure"),
    }


def above_chance(trainer: str, figures: Iterable[Row], some: bool = False) -> bool:
    """Whether all (or ``some``) intervals of ``trainer`` lie above a fair coin."""
    rows = (row for figure in figures for row in figure["table"] if row["trainer"] == trainer)
    return (any if some else all)(low > 0.5 for row in rows for low, _ in row["intervals"])


def by_gamma(rows: Sequence[Row], cell: Callable[[Row], str]) -> str:
    """A line a trainer, a column a miss rate."""
    gammas = sorted({row["gamma"] for row in rows})
    found = {(row["trainer"], row["gamma"]): row for row in rows}
    lines = [(f"`{t}`", *(cell(found[t, g]) for g in gammas)) for t in TRAINERS if (t, gammas[0]) in found]
    return table(("trainer", *(f"γ = {g:g}" for g in gammas)), lines)


def _long() -> Row:
    runs = read("attacks_long")
    # sgd does not ask π: one training stands for every γ
    gammas = {run["gamma"] for run in runs}
    every = [
        {**run, "gamma": g} for run in runs for g in gammas if run["trainer"] == "sgd" or run["gamma"] == g
    ]

    def rise(run: Row) -> float:
        return float(run["mean_exposure"] - run["control_mean_exposure"])

    missed = [run["highest_exposure"] for run in runs if run["trainer"] == "redact-only" and run["gamma"]]
    return {
        "long": by_gamma(every, lambda run: f"{run['highest_exposure']:.1f} ({rise(run):+.1f})"),
        "first_place": max(missed) >= math.log2(runs[0]["candidates"]),
        "crt_means_flat": all(rise(run) < 0.1 for run in runs if run["trainer"] == "crt"),
    }


def uedp() -> Row:
    """Users and entities: corpora, epsilon against steps, and what is learnt."""
    told = read("uedp_trainings")
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
            value(own, "uedp-bounded", e) == min(value(own, m, e) for m in noisy)
            for own in scratch
            for e in both
        ),
        "far_from_noiseless": all(
            value(own, "uedp-bounded", e) > 10 * value(own, "noiseless") for own in scratch for e in both
        ),
        "masking_as_good": all(
            value(own, "de-identification") < value(own, "noiseless") for own in (cuad, sim)
        ),
        "awd": methods(awd),
        "awd_more": methods(awd_more),
        "awd_worse": value(awd, "uedp-bounded") > value(awd, "pretraining-alone"),
        "awd_better": value(awd_more, "uedp-bounded") < value(awd_more, "pretraining-alone"),
        "by_cap": _sweep(rows, "k", lambda settings: settings["bounding"]["k_user"]),
        "by_rate": _sweep(rows, "q-s", lambda settings: settings["federated"]["extended_rate"]),
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
        return f"{row['users']:,} ({row['points']:,})"

    lines = [
        (
            names[row["corpus"]],
            counted(row["whole"]),
            *(counted(row["parts"][part]) for part in ("donated", "private", "test")),
            f"{row['entities']:,}",
            f"{row['most_points_of_an_entity']}, {row['most_users_of_an_entity']}",
        )
        for row in read("uedp_datasets")
    ]
    heads = ("corpus", "users (points)", "donated", "private", "test", "private entities")
    return {"corpora": table((*heads, "points and users of one, at most"), lines)}


def _steps() -> Row:
    lines, rows = [], []
    for corpus in ("cuad", "customersim"):
        found = read(f"uedp_epsilon_{corpus}")
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
            row["least"] <= alone["greatest"] and alone["least"] <= row["greatest"]
            for row in rows
            if row["target"]
        ),
    }


def ldp() -> Row:
    """Accuracy of a service that sees noise alone, and the published figure beside the sound one."""
    rows, calculated = read("ldp_accuracy"), read("ldp_epsilon")
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
        "epsilon": table(
            (*heads, *columns), ((*noise(r), *published(r), *measured(r)) for r in of("epsilon"))
        ),
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
    rows, heads = read("ldp_sampling"), ("sent", "p", "T", "z", "as published", "accuracy")

    def ways(part: str, epsilon: float | None) -> list[list[Row]]:
        """The rows of a part by how messages are sent, a row for each repetition."""
        found: dict[str, list[Row]] = {}
        for row in rows:
            if row["part"] == part and row.get("epsilon") == epsilon:
                found.setdefault(json.dumps(row["participation"]), []).append(row)
        return list(found.values())

    def mean(own: Sequence[Row], key: str = "accuracy") -> float:
        return fmean(row[key] for row in own)

    def reach(own: Sequence[Row], key: str = "accuracy") -> str:
        ends = [row[key] for row in own]
        return f"{mean(own, key):.3f} ({min(ends):.3f} to {max(ends):.3f})"

    def line(own: Sequence[Row]) -> tuple[str, ...]:
        one, way = own[0], own[0]["participation"]
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
        "trainings": table(
            (*heads, "without noise on queries"), ((*line(own), reach(own, clean)) for own in trained)
        ),
    }


def _words() -> Row:
    """Words replaced by noisy embeddings, at their own epsilon and at the plain local one."""
    found = read("ldp_words")
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
    found = read("dpnr")
    keys = ("published", "revised", "revised_with_dropout", "sound")

    def accuracy(told: Row) -> str:
        return f"{told['value']:.3f} ({told['least']:.3f} to {told['greatest']:.3f})"

    lines = [
        (*(digits(row[key], 3) for key in keys), accuracy(row["dpnr"]), accuracy(row["gaussian"]))
        for row in found["table"]
    ]
    heads = (
        "published, not a guarantee",
        "revised",
        "with dropout",
        "sound",
        "DPNR",
        "Gaussian, same sound ε",
    )
    return {"dpnr": found, "dpnr_table": table(heads, lines)}


def best(classes: int, noise: float) -> float:
    """Share of right answers at noise ``noise`` that nobody can surpass, for equally frequent ``classes``."""
    y = np.linspace(-12.0, 12.0, 24_001)
    shift = np.sqrt(classes / (classes - 1)) / noise
    return float(np.trapezoid(norm.pdf(y) * norm.cdf(y + shift) ** (classes - 1), y))


def scale() -> Row:
    """Time, memory and disk against points."""
    found = read("scale")
    plain = [r for r in found["rows"] if (r["dedup"], r["workers"], r.get("ranges")) == ("exact", 1, None)]
    each = [row["cpu_seconds"] / row["points"] * 1e6 for row in plain]
    lines = [
        (
            row["dedup"],
            row["workers"],
            row.get("ranges") or "default",
            f"{row['points']:,}",
            f"{row['cpu_seconds']:,.0f}",
            f"{row['points_per_cpu_second']:,}",
            f"{row['seconds']:,.0f} ({row['load'][1]:.0f})",
            f"{row['peak_process_mb']:.0f}",
            f"{row['corpus_bytes'] / 1e6:,.0f}",
            f"{sum(row['run_bytes'].values()) / 1e6:,.0f}, {row['peak_run_bytes'] / 1e6:,.0f}",
        )
        for row in found["rows"]
    ]
    heads = ("deduplication", "workers", "ranges", "points", "processor s", "points a second of it")
    rest = ("wall s (load)", "MiB, largest process", "input MB", "run MB, at its peak")
    return {
        "table": table((*heads, *rest), lines),
        "linear": max(each) < 1.1 * min(each),
        "each": ", ".join(f"{one:.0f}" for one in each),
        "sizes": ", ".join(f"{row['points'] / 1e6:g}" for row in plain),
        "detection": found["detection"],
    }


def workers() -> Row:
    """Two workers against one, in curation and in training."""
    found, trained = read("cluster"), read("parallel")

    def line(name: str, key: str) -> tuple[str, ...]:
        one, two, rounds = found["seconds"][f"{key}-1"], found["seconds"][f"{key}-2"], found["speed_up"][key]
        return (
            name,
            f"{min(one):.1f} to {max(one):.1f}",
            f"{min(two):.1f} to {max(two):.1f}",
            ", ".join(f"{one:.2f}" for one in rounds["rounds"]),
            f"{rounds['median']:.2f}",
        )

    shares = found["cpu_share_of_the_command"]
    dearer = found["speed_up"]["dask against one process"]["rounds"]
    return {
        **{key: found[key] for key in ("cores", "rows", "points", "rounds", "same_bytes")},
        "table": table(
            ("", "seconds, one worker", "two workers", "times as fast, by round", "median"),
            (line("`--dask local`", "dask"), line("`--workers`", "processes")),
        ),
        "share_1": f"{100 * median(shares['dask-1']):.0f}%",
        "share_2": f"{100 * median(shares['dask-2']):.0f}%",
        "dearer": f"{min(dearer):.1f} to {max(dearer):.1f}",
        "trained": table(
            ("processes", "threads of each", "seconds, median", "times as fast, by the best"),
            (
                (row["processes"], row["threads"], f"{row['median']:.2f}", f"{row['times_as_fast']:.2f}")
                for row in trained["rows"]
            ),
        ),
    }


def clipping() -> Row:
    """A private step beside a plain one."""
    rows = {(row["model"], row["threads"], row["method"]): row for row in read("clipping")}
    compared = ("redactory", "opacus_hooks", "opacus_ghost", "micro_batch")
    lines = [
        (
            f"`{model}`",
            threads,
            *(f"{rows[model, threads, m]['seconds_per_step']:.3f}" for m in ("sgd", "redactory")),
            *(f"{rows[model, threads, method]['ratio_to_sgd']:.2f}" for method in compared),
            ", ".join(f"{rows[model, threads, m]['peak_mb']:,.0f}" for m in ("sgd", *compared[:3])),
        )
        for model, threads, method in rows
        if method == "sgd"
    ]
    ours = [row["ratio_to_sgd"] for (*_, method), row in rows.items() if method == "redactory"]
    theirs = [
        row["seconds_per_step"] / rows[model, threads, "redactory"]["seconds_per_step"]
        for (model, threads, method), row in rows.items()
        if method.startswith("opacus")
    ]
    heads = ("model", "threads", "SGD, s", "Redactory, s", "Redactory beside SGD", "Opacus hooks", "ghost")
    return {
        "table": table((*heads, "one at a time", "peak MB: SGD, Redactory, hooks, ghost"), lines),
        "ours": f"{min(ours):.2f} to {max(ours):.2f}",
        "theirs": f"{min(theirs):.1f} to {max(theirs):.0f}",
    }


def ladder() -> Row:
    """A recipe for ``crt``, rung by rung, and correlated noise beside none."""
    own, bands, beside = read("ladder"), read("ladder_bands"), read("ladder_beside")
    found = {row["rung"]: row["perplexity"] for row in own["table"]}
    return {
        **{name: own[name] for name in ("private", "epsilon", "gamma")},
        "seeds": seeds_of(own["table"]),
        "table": rungs_of(own),
        "beside": table(
            ("trainer", "ε", "perplexity per word", "above `redact-only`"),
            (
                (
                    f"`{row['trainer']}`",
                    row["kept"] or f"{row['epsilon']:g}",
                    f"{row['perplexity']:.1f}",
                    f"{100 * (row['perplexity'] / row['redact_only'] - 1):.0f}%",
                )
                for row in beside
            ),
        ),
        "below_dpsgd": all(
            a["perplexity"] < b["perplexity"]
            for a in beside
            for b in beside
            if (a["trainer"], b["trainer"]) == ("crt", "dpsgd") and a["epsilon"] == b["epsilon"]
        ),
        "small_steps_help": found["small steps"] < min(found["pretrained"], found["public first"]),
        "bands": {
            # of one secret: a miss rate γ makes log(1 + γ(exp(ε) − 1)) of it
            "epsilon": f"{math.log1p(math.expm1(bands['epsilon']) / bands['gamma']):.1f}",
            "seeds": seeds_of(bands["table"]),
            "table": rungs_of(bands),
            "less": f"{100 * (1 - bands['table'][1]['excess'] / bands['table'][0]['excess']):.0f}%",
            "formula": table(
                ("ε", "steps that share noise", "error"),
                (
                    (epsilon, least["bands"], f"{least['error_ratio']:.2f}")
                    for epsilon, found in bands["widths"].items()
                    for least in [min(found, key=lambda one: one["error_ratio"])]
                ),
            ),
        },
    }


def rungs_of(page: Row) -> str:
    """The table of a ladder: each rung with the keys that were added since the one above it."""
    names, lines, above = list(page["rungs"]), [], -1
    for row in page["table"]:
        here = names.index(row["rung"])
        added = {k: v for name in names[above + 1 : here + 1] for k, v in page["rungs"][name].items()}
        excess, low, high = (f"{100 * row[name]:.0f}%" for name in ("excess", "least", "greatest"))
        spread = "" if row["seeds"] == 1 else f" ({low} to {high})"
        keys = ", ".join(
            f"`{key}: {value if isinstance(value, str) else f'{value:g}'}`" for key, value in added.items()
        )
        lines.append((keys, f"{row['perplexity']:.1f}", f"{row['redact_only']:.1f}", excess + spread))
        above = here
    return table(("keys", "perplexity per word", "`redact-only`", "excess"), lines)


def seeds_of(rows: Sequence[Row]) -> str:
    """Over how many seeds a table is."""
    most = max(row["seeds"] for row in rows)
    return "one seed" if most == 1 else f"{most} seeds"


def expert() -> Row:
    """Classifiers of the command beside an expert's own loop, and beside Opacus."""
    rows = read("expert")
    by_hand = {(row["corpus"], row["kind"]): row for row in rows if row["method"] == "loop"}
    lines = [
        (
            row["corpus"],
            row["kind"],
            f"`{row['method']}`",
            f"{row['accuracy']:.1f}" + (f" ± {row['deviation']:.1f}" if row["deviation"] else ""),
            f"{row['cpu']:.3f}",
        )
        for row in rows
    ]
    noised = [row for row in rows if row["method"] == "dpsgd"]
    beside = [by_hand[row["corpus"], row["kind"]] for row in noised]
    return {
        "table": table(("text", "network", "by", "right, %", "processor seconds a step"), lines),
        "no_worse": all(
            a["accuracy"] >= b["accuracy"] for a, b in zip(noised, beside, strict=True) if a["kind"] == "bag"
        ),
        "worse": min(
            a["accuracy"] - b["accuracy"] for a, b in zip(noised, beside, strict=True) if a["kind"] == "lstm"
        ),
        "cost": spread_of(a["cpu"] / b["cpu"] for a, b in zip(noised, beside, strict=True)),
    }


if __name__ == "__main__":
    print(page(), end="")
