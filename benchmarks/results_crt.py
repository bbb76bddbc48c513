"""Confidentially redacted training: perplexity, its recipe, attacks on it, and what it writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import results_data as data
from results_data import Row, digits, more, seeds_of, spread, table

TRAINERS = ("sgd", "redact-only", "sdp", "dpsgd", "crt", "crt-drop")


def claims(figure: Row) -> str:
    """What the benchmark itself looked for of the paper's trend."""
    lines = [
        (f"`{one['trainer']}`", one["claim"], "yes" if one["holds"] else "**no**")
        for one in figure["ours"]
        if one["trainer"] in TRAINERS and one["holds"] is not None
    ]
    return table(("trainer", "what was looked for", "found"), lines)


def pretrained() -> Row:
    """A pretrained language model with adapters, beside a fresh LSTM, on two corpora."""
    corpora = {corpus: data.read(f"pretrained_lm_{corpus}") for corpus in ("customersim", "multiwoz")}
    found, step = corpora["customersim"], {row["method"]: row for row in data.read("clipping_lora")}
    return {
        "step": step["redactory"]["ratio_to_sgd"],
        "memory": f"{step['redactory']['peak_mb'] / 1024:.1f} GB",
        "plain_memory": f"{step['sgd']['peak_mb'] / 1024:.1f} GB",
        **{key: found[key] for key in ("rank", "dialogues", "test_turns", "canaries")},
        **{corpus: tabulate_models(one["models"]) for corpus, one in corpora.items()},
        "public_turns_help": all(do_public_turns_help(one["models"]) for one in corpora.values()),
        "adapters_win": all(are_adapters_better(one["models"]) for one in corpora.values()),
    }


def tabulate_models(models: list[Row]) -> str:
    """One row for each model, the base first."""

    def write(row: Row) -> tuple[object, ...]:
        network, exposure = row["name"].partition("-")[0], row["exposure"]
        return (
            {"base": "Gemma, not trained", "lora": "adapters", "lstm": "LSTM"}[network],
            "–" if row["epsilon"] is None else f"`{row['trainer']}`",
            "–" if row["epsilon"] is None else f"{row['epsilon']:.2f}",
            f"{row['perplexity_per_character']['as_is']:.2f}",
            f"{row['perplexity_per_character']['masked']:.2f}",
            f"{exposure['highest_exposure']:.1f} ({exposure['control_highest_exposure']:.1f})",
            f"{100 * row['generated']['known_words']:.0f}%",
            f"{row['seconds']['training']:.0f} s",
            f"{row['peak_mb'] / 1000:.1f} GB",
        )

    def rank(row: Row) -> tuple[object, ...]:
        return ["base", "lora", "lstm"].index(row["name"].partition("-")[0]), row["trainer"], row["epsilon"] or 0.0

    header = ("model", "trainer", "ε", "perplexity", "masked", "exposure", "known words", "training", "memory")
    return table(header, map(write, sorted(models, key=rank)))


def do_public_turns_help(models: list[Row]) -> bool:
    """Whether `crt` gains at least four times as much on the untrained model as noisy steps alone."""
    values = {row["name"]: math.log(row["perplexity_per_character"]["as_is"]) for row in models}
    gains = {name: values["base-none"] - value for name, value in values.items() if name.startswith("lora")}
    least = min(gain for name, gain in gains.items() if "crt" in name)
    return all(least > 4.0 * gain for name, gain in gains.items() if "crt" not in name)


def are_adapters_better(models: list[Row]) -> bool:
    """Whether every model with adapters has less than a fifth of the perplexity of the LSTM beside it."""
    values = {row["name"]: row["perplexity_per_character"]["as_is"] for row in models}
    return all(values[name] < values[name.replace("lora", "lstm")] / 5 for name in values if name.startswith("lora"))


def crt(file: str) -> Row:
    """Figure 2 of the CRT paper."""
    found = data.read(file)
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


def sdp() -> str:
    """S-DP at two levels of noise."""
    rows = data.read("sdp")
    found = (
        f"{corpus}, {own[0]['dialogues']} dialogues: "
        + " and ".join(f"{row['perplexity']:.1f} (σ = {row['noise_multiplier']:.2f})" for row in own)
        for corpus in dict.fromkeys(row["corpus"] for row in rows)
        for own in [[row for row in rows if row["corpus"] == corpus]]
    )
    return "perplexity per word, one seed: " + "; ".join(found)


def ladder() -> Row:
    """A recipe for ``crt``, rung by rung."""
    own, beside = data.read("ladder"), data.read("ladder_beside")
    chats = data.read("ladder_customersim")
    found = {row["rung"]: row["perplexity"] for row in own["table"]}
    return {
        **{name: own[name] for name in ("private", "epsilon", "gamma")},
        "seeds": seeds_of(own["table"]),
        "table": rungs_of(own),
        "beside": _beside(beside),
        "alone": rungs_of(data.read("ladder_alone"), alone=True),
        "chats": {
            **{name: chats[name] for name in ("private", "dialogues")},
            "seeds": seeds_of(chats["table"]),
            "table": rungs_of(chats),
            "beside": _beside(chats["beside"]),
            "reached": chats["table"][-1]["excess"] < 0.10
            and all(
                row["perplexity"] < 1.08 * row["redact_only"] for row in chats["beside"] if row["trainer"] == "crt"
            ),
        },
        "bands_hurt": found["bands"] > found["rate"],
        "missed": own["table"][-1]["excess"] > 0.25,
        "clip_costs_nothing": abs(beside[-1]["perplexity"] / beside[-2]["perplexity"] - 1) < 0.02,
        "below_dpsgd": all(
            a["perplexity"] < b["perplexity"]
            for a in beside
            for b in beside
            if (a["trainer"], b["trainer"]) == ("crt", "dpsgd") and a["epsilon"] == b["epsilon"]
        ),
        "small_steps_help": found["small steps"] < min(found["pretrained"], found["public first"]),
    }


def _beside(rows: Iterable[Row]) -> str:
    """The last recipe of a ladder at other figures."""
    return table(
        ("trainer", "ε", "perplexity per word", "above `redact-only`"),
        (
            (
                f"`{row['trainer']}`",
                row["kept"] or f"{row['epsilon']:g}",
                digits(row["perplexity"]),
                f"{100 * (row['perplexity'] / row['redact_only'] - 1):.0f}%",
            )
            for row in rows
        ),
    )


def rungs_of(page: Row, alone: bool = False) -> str:
    """The table of a ladder: each rung with the keys that were added since the one above it, or its own."""
    names, lines, above = list(page["rungs"]), [], -1
    for row in page["table"]:
        here = names.index(row["rung"])
        below = here - 1 if alone else above
        added = {k: v for name in names[below + 1 : here + 1] for k, v in page["rungs"][name].items()}
        excess, low, high = (f"{100 * row[name]:.0f}%" for name in ("excess", "least", "greatest"))
        spread = "" if row["seeds"] == 1 else f" ({low} to {high})"
        keys = ", ".join(
            f"`{key}: {value if isinstance(value, str) else f'{value:g}'}`" for key, value in added.items()
        )
        lines.append((keys, digits(row["perplexity"]), digits(row["redact_only"]), excess + spread))
        above = here
    return table(("keys", "perplexity per word", "`redact-only`", "excess"), lines)


def attacks() -> Row:
    """Figures 3 to 5 of the CRT paper, an audit, and what an exact rank costs."""
    three, four, five = (data.read(f"attacks_figure{number}") for number in (3, 4, 5))
    chance = three["table"][0]["chance"]
    of_crt = [row for row in three["table"] if row["trainer"] == "crt"]
    audited = data.read("attacks_audit")

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
        "exact": data.read("exposure"),
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
    runs = data.read("attacks_long")
    # sgd does not ask π: one training stands for every γ
    gammas = {run["gamma"] for run in runs}
    every = [{**run, "gamma": g} for run in runs for g in gammas if run["trainer"] == "sgd" or run["gamma"] == g]

    def rise(run: Row) -> float:
        return float(run["mean_exposure"] - run["control_mean_exposure"])

    missed = [run["highest_exposure"] for run in runs if run["trainer"] == "redact-only" and run["gamma"]]
    return {
        "long": by_gamma(every, lambda run: f"{run['highest_exposure']:.1f} ({rise(run):+.1f})"),
        "first_place": max(missed) >= math.log2(runs[0]["candidates"]),
        "crt_means_flat": all(rise(run) < 0.1 for run in runs if run["trainer"] == "crt"),
    }


def _by_heart(own: Row, human: Row) -> Row:
    """Texts of models with a guarantee beside those of one that learnt its corpus by heart."""
    told = {
        **{f"`{name}`, {own[name]['dialogues']:,} dialogues": own[name] for name in ("dpsgd", "sgd")},
        f"`crt`, public by count, {own['crt']['dialogues']:,} dialogues": own["crt"],
        "`dpsgd`, MultiWOZ after public text": human,
    }
    lines = []
    for name, row in told.items():
        near, inside, words, found = (row[key] for key in ("nearest", "membership", "next_word_accuracy", "canaries"))
        lines.append(
            (
                name,
                f"{words['written']:.3f} ({words['real']:.3f})",
                f"{row['mauve']['written']:.2f} ({row['mauve']['real']:.2f})",
                f"{near['value']:.3f} ({near['low']:.3f} to {near['high']:.3f})",
                f"{inside['value']:.3f} ({inside['low']:.3f} to {inside['high']:.3f})",
                f"{found['inserted_found']} of {found['inserted']}" if found else "none planted",
            )
        )
    promised = {"dpsgd": own["dpsgd"], "crt": own["crt"], "multiwoz": human}
    less = {
        name: 1 - row["next_word_accuracy"]["written"] / row["next_word_accuracy"]["real"]
        for name, row in promised.items()
    }
    heads = ("a model by", "next words right (real text)", "MAUVE (real text)")
    attacked = ("nearest text: AUC (by chance)", "membership: AUC", "planted numbers")
    return {
        "customersim": table((*heads, *attacked), lines),
        "epsilon": own["dpsgd"]["epsilon"],
        "nothing_found": not any(row["above_chance"] for row in promised.values()),
        "speaks": own["speaks"] == ["nearest"],
        "words_less": {name: f"{100 * share:.0f}%" for name, share in less.items()},
        "words_missed": min(less.values()) > 0.05,
    }


def synthetic() -> Row:
    """What classifiers learn from rows that a model wrote."""
    own = data.read("synthesize")
    seeds = [row["error_rate"] for row in own["cuad"]]
    errors = {name: [row[name] for row in seeds] for name in seeds[0]}
    lines = [(name.replace("_", " "), f"{np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})") for name, v in errors.items()]
    gap = np.mean(errors["written_histogram_after_donated"]) - np.mean(errors["real_dpsgd"])
    return {
        "seeds": len(seeds),
        "rows": own["cuad"][0]["rows"],
        "errors": table(("a classifier learns from", "error rate"), lines),
        "missed": gap > 0.10,
        "below_donated": min(errors["written_histogram_after_donated"]) > max(errors["donated_alone"]),
        "gap": f"{100 * gap:.0f}",
        **_by_heart(own["customersim"][0], own["multiwoz"][0]),
    }
