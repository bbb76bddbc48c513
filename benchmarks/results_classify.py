"""Private classifiers by default: accuracy, competitors, cost, and an attack on the models."""

from __future__ import annotations

from collections.abc import Iterator

import results_data as data
from results_data import Row, table

EPSILONS = (0.5, 1.0, 3.0, 8.0)
METHODS = {
    "lstm": "`model: {kind: lstm}`, the former default",
    "bag": "`model: {kind: bag}`, larger samples and steps",
    "loop": "own loop, LSTM of 64",
    "opacus": "Opacus' tutorial",
    "opacus-mean": "the same, mean in place of the pooler",
    "opacus-head": "a linear layer on the same encoder, by hand with Opacus",
}


def classify() -> Row:
    """Every table of the section."""
    found = data.read("classify")
    sets, rows = found["sets"], {(row["set"], row["rows"], row["epsilon"]): row for row in found["accuracy"]}

    titles_of = {name: facts["task"].partition(":")[0] for name, facts in sets.items()}

    def write_accuracy(row: Row | None) -> str:
        if row is None:
            return "–"
        deviation = f" ± {100 * row['deviation']:.1f}" if row["deviation"] is not None else ""
        return f"{100 * row['mean']:.1f}{deviation}"

    def make_lines() -> Iterator[tuple[object, ...]]:
        for name, facts in sets.items():
            sizes = sorted({rows_of for of_set, rows_of, _ in rows if of_set == name}, reverse=True)
            for size in sizes:
                cells = [write_accuracy(rows.get((name, size, epsilon))) for epsilon in (*EPSILONS, None)]
                yield titles_of[name], f"{size:,}", f"{100 * facts['majority']:.1f}", *cells

    rivals = found["rivals"]["rows"]
    compared = {(row["set"], row["method"], row["epsilon"]): row for row in rivals}
    pairs = sorted(
        {(row["set"], row["epsilon"]) for row in rivals if row["epsilon"]}, key=lambda pair: (pair[0], -pair[1])
    )
    defaults = {pair: rows.get((pair[0], sets[pair[0]]["train"], pair[1])) for pair in pairs}
    titles = [f"{titles_of[name]}, ε = {epsilon:g}" for name, epsilon in pairs]
    lines = [("**`task: classify`, default**", *(write_accuracy(defaults[pair]) for pair in pairs))]
    for method, title in METHODS.items():
        lines.append((title, *(write_accuracy(compared.get((name, method, epsilon))) for name, epsilon in pairs)))
    at_8 = sorted({row["set"] for row in found["other_models"]["adapters"]})
    titles_at_8 = [titles_of[name] for name in at_8]

    def list_other_models() -> Iterator[tuple[str, ...]]:
        defaults_at_8 = (write_accuracy(rows.get((name, sets[name]["train"], 8.0))) for name in at_8)
        yield "default: a linear layer on the package's encoder", *defaults_at_8
        adapters = {row["set"]: f"{100 * row['accuracy']:.1f}" for row in found["other_models"]["adapters"]}
        yield "`lora_rank: 16`: adapters in its last two layers, too", *(adapters.get(name, "–") for name in at_8)
        for folder in sorted({row["encoder"] for row in found["other_models"]["folder"]}):
            trained = {row["set"]: row for row in found["other_models"]["folder"] if row["encoder"] == folder}
            yield f"`folder`: a linear layer on {folder}", *(write_accuracy(trained.get(name)) for name in at_8)

    targets = found["targets"]
    cost = [row for row in found["cost"] if row["step"] == "text to model"]
    seconds = [row["cpu_seconds_per_1000_texts"] for row in found["cost"] if row["step"] == "encode"]
    counts = {row["repetitions"] for row in found["accuracy"] if row["epsilon"] is not None}
    return {
        "repetitions": f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}",
        "accuracy": table(
            ("set", "rows", "largest class", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "without noise"),
            make_lines(),
        ),
        "right_labels": f"{100 * sets['departments']['expected_share_of_right_labels']:.1f}",
        "tasks": "; ".join(f"{facts['task']} ({facts['language']})" for facts in sets.values()),
        "rivals": table(("method", *titles), lines),
        "better": all(row["mean"] < row["redactory"] for row in rivals if row["epsilon"]),
        "targets": table(
            ("set", "rows", "ε", "target", "measured", ""),
            (
                (
                    titles_of[row["set"]],
                    f"{row['rows']:,}",
                    f"{row['epsilon']:g}",
                    f"{100 * row['target']:.1f}",
                    f"{100 * row['mean']:.1f}",
                    "reached" if row["reached"] else "**missed**",
                )
                for row in targets
            ),
        ),
        "other_models": table(("`train.model`", *titles_at_8), list_other_models()),
        "cost": table(
            ("set", "`model.kind`", "processor seconds: curate, train", "peak MB of the larger process"),
            (
                (
                    titles_of[row["set"]],
                    f"`{row['kind']}`",
                    f"{row['curate']['cpu_seconds']:.0f}, {row['train']['cpu_seconds']:.0f}",
                    f"{row['peak_mb']:,}",
                )
                for row in cost
            ),
        ),
        "encoding": f"{min(seconds):.0f} to {max(seconds):.0f}",
        "attack": table(
            ("set", "rows", "ε", "AUC"),
            (
                (
                    titles_of[row["set"]],
                    f"{row['rows']:,}",
                    "without noise" if row["epsilon"] is None else f"{row['epsilon']:g}",
                    "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["auc"]),
                )
                for row in found["attack"]["rows"]
            ),
        ),
        "no_leak": all(row["auc"]["low"] <= 0.5 for row in found["attack"]["rows"] if row["epsilon"] is not None),
    }


_AIMS, _RECIPE_RATES = {"ag": 0.66, "sst": 0.70}, {"bag": 0.1, "lstm": 0.015}


def recipe() -> Row:
    """The grid behind the recipe of fresh classifiers, and the two corpora that it was tried on."""
    found = data.read("recipe")
    means = found["means"]
    pairs = sorted({(row["kind"], row["learning_rate"]) for row in means})
    cells = {(row["kind"], row["learning_rate"], row["epsilon"]): row for row in means}
    epsilons = sorted({row["epsilon"] for row in means})

    def write(row: Row | None) -> str:
        return "–" if row is None else f"{100 * row['accuracy']:.1f} / {row['log_loss']:.2f}"

    def is_kind(row: Row, kind: str) -> bool:
        return bool(row["epsilon"] == 8.0 and row["kind"] == kind)

    checks = [row for row in found["rows"] if row["part"] == "check"]
    return {
        "corpora": "; ".join(found["corpora"].values()),
        "means": table(
            ("network", "learning rate", *(f"ε = {epsilon:g}" for epsilon in epsilons), "corpora"),
            (
                (
                    f"`{kind}`",
                    f"{rate:g}",
                    *(write(cells.get((kind, rate, epsilon))) for epsilon in epsilons),
                    max(row["corpora"] for row in means if (row["kind"], row["learning_rate"]) == (kind, rate)),
                )
                for kind, rate in pairs
            ),
        ),
        "checks": table(
            ("corpus", "network", "ε", "largest class", "accuracy", "log loss", "trainings"),
            (
                (
                    {"ag": "AG News", "sst": "SST-2"}[row["corpus"]],
                    f"`{row['kind']}`",
                    f"{row['epsilon']:g}",
                    f"{100 * row['majority']:.1f}",
                    f"{100 * row['accuracy']:.1f}",
                    f"{row['log_loss']:.2f}",
                    row["seeds"],
                )
                for row in sorted(checks, key=lambda row: (row["corpus"], row["kind"], row["epsilon"]))
            ),
        ),
        "rates_are_best": all(
            cells[kind, _RECIPE_RATES[kind], epsilon]["accuracy"] >= row["accuracy"]
            for (kind, _, epsilon), row in cells.items()
        ),
        **{
            kind: [row["accuracy"] >= _AIMS[row["corpus"]] for row in checks if is_kind(row, kind)]
            for kind in _RECIPE_RATES
        },
    }


def language() -> Row:
    """The grid behind the recipe of fresh language models."""
    found = data.read("recipe_language")
    rows = {(row["change"], row["epsilon"]): row for row in found["ratios"] if row["change"] != "recipe"}
    changes, epsilons = dict.fromkeys(change for change, _ in rows), sorted({epsilon for _, epsilon in rows})

    def write(row: Row | None) -> str:
        return "–" if row is None else "{ratio:.2f} ({lowest:.2f} to {highest:.2f}; {trainings})".format(**row)

    names = {row["corpus"]: found["corpora"][row["corpus"]] for row in found["rows"]}
    return {
        "corpora": "; ".join(names.values()),
        "ratios": table(
            ("change", *(f"ε = {epsilon:g}" for epsilon in epsilons)),
            ((f"`{change}`", *(write(rows.get((change, epsilon))) for epsilon in epsilons)) for change in changes),
        ),
        "constant_is_better": all(row["ratio"] > 1.0 for (change, _), row in rows.items() if change == "linear"),
        "rate_is_best": all(row["ratio"] > 1.0 for (change, _), row in rows.items() if "rate" in change),
        "seeds": len({row["seed"] for row in found["rows"]}),
        "noisy": ", ".join(f"{value:.2f} at ε = {epsilon}" for epsilon, value in found["private_steps"].items()),
    }
