"""What a private step takes, and classifiers beside an expert's own loop."""

from __future__ import annotations

from statistics import median

import results_data as data
from results_data import Row, spread_of, table


def accountants() -> Row:
    """Both accountants beside exact epsilons."""
    rows = data.read("two_accountants")
    lines = [
        (
            name.replace("delta", "δ"),
            row["settings"],
            row["computed_once"],
            *(f"{100 * row['proved'][key]:.2f}" for key in ("median", "largest")),
            row["estimate"]["without"],
            *(f"{100 * row['estimate'][key]:.3f}" for key in ("median", "largest")),
        )
        for name, row in rows.items()
    ]
    heads = ("", "settings", "computed once", "proved: median", "largest")
    heads += ("dp_accounting: without", "median", "largest")
    whole = rows["all"]
    return {"table": data.table(heads, lines), "none_is_low": not whole["proved"]["low"] + whole["estimate"]["low"]}


def clipping() -> Row:
    """A private step beside a plain one."""
    rows = {(row["model"], row["threads"], row["method"]): row for row in data.read("clipping")}
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
    card = data.read("clipping_cuda")
    on_card = {(row["model"], row["method"]): row for row in card["rows"]}
    private = compared[:3]
    heads = ("model", "threads", "SGD, s", "Redactory, s", "Redactory beside SGD", "Opacus hooks", "ghost")
    return {
        "table": table((*heads, "one at a time", "peak MB: SGD, Redactory, hooks, ghost"), lines),
        "ours": f"{min(ours):.2f} to {max(ours):.2f}",
        "theirs": f"{min(theirs):.1f} to {max(theirs):.0f}",
        "card": card["card"],
        "on_card": table(
            ("model", "points, tokens", "SGD, ms", "Redactory beside SGD", "Opacus hooks", "ghost", "peak MB"),
            (
                (
                    f"`{model}`",
                    f"{row['examples']}, {row['tokens']}",
                    f"{row['ms']:.1f}",
                    *(f"{on_card[model, m]['ratio_to_sgd']:.2f}" for m in private),
                    ", ".join(f"{on_card[model, m]['peak_mb']:,}" for m in private),
                )
                for (model, method), row in on_card.items()
                if method == "sgd"
            ),
        ),
        "trained": card["training"],
        "same_perplexity": len({f"{one:.2f}" for one in card["training"]["perplexity"].values()}) == 1,
        "less_than_ghost": all(
            row["ms"] < on_card[model, "opacus_ghost"]["ms"]
            for (model, method), row in on_card.items()
            if method == "redactory"
        ),
    }


def service() -> Row:
    """Latency of the service beside Presidio's."""
    measured = data.read("http_service")
    rows = {(row["service"], row["request"], row["clients"]): row for row in measured["rows"]}
    lines = [
        (
            {"analyze": "find entities", "mask": "mask a text"}[kind],
            clients,
            *(
                f"{1000 * rows[name, kind, clients][key]:,.0f}"
                for name in ("redactory", "presidio")
                for key in ("p50", "p99")
            ),
        )
        for service, kind, clients in rows
        if service == "redactory"
    ]
    ratios = [rows["redactory", kind, n]["p50"] / rows["presidio", kind, n]["p50"] for _, kind, n in rows]
    heads = ("request", "clients", "Redactory, ms: median", "99%", "Presidio, ms: median", "99%")
    return {
        **measured,
        "table": table(heads, lines),
        "requests": measured["rows"][0]["requests"],
        "ratios": f"{min(ratios):.2f} to {max(ratios):.2f}",
    }


def expert() -> Row:
    """Classifiers of the command beside an expert's own loop, and beside Opacus."""
    rows = data.read("expert")
    by_hand = {(row["corpus"], row["kind"]): row for row in rows if row["method"] == "loop"}
    lines = [
        (
            row["corpus"],
            row["kind"],
            f"`{row['method']}`",
            f"{row['accuracy']:.1f}" + (f" ± {row['deviation']:.1f}" if row["deviation"] else ""),
            "–" if row["cpu"] is None else f"{row['cpu']:.3f}",
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
        "worse": min(a["accuracy"] - b["accuracy"] for a, b in zip(noised, beside, strict=True) if a["kind"] == "lstm"),
        "cost": spread_of(a["cpu"] / b["cpu"] for a, b in zip(noised, beside, strict=True) if a["cpu"]),
    }


def workers() -> Row:
    """Two workers against one, in curation."""
    found = data.read("cluster")

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
        **{key: found[key] for key in ("cores", "rows", "examples", "rounds", "same_bytes")},
        "table": table(
            ("", "seconds, one worker", "two workers", "times as fast, by round", "median"),
            (line("`--dask local`", "dask"), line("`--workers`", "processes")),
        ),
        "share_1": f"{100 * median(shares['dask-1']):.0f}%",
        "share_2": f"{100 * median(shares['dask-2']):.0f}%",
        "dearer": f"{min(dearer):.1f} to {max(dearer):.1f}",
    }
