"""What curation does: detection, public by count, and what large corpora take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import results_data as data
from results_data import Row, digits, files, spread, spread_of, table


def detection() -> Row:
    """What policies and engines find of each labelled file, by language: what the command printed as JSON."""
    found = detected()
    english = [one for one in found.values() if one["language"] == "en"]

    def rate(figure: Row) -> str:
        return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"

    def line(one: Row, row: Row, first: bool) -> tuple[str, ...]:
        names = {"strict": "π", "conservative": "**π ∪ π_c**"}
        text = f"{one['language']}, `{Path(one['labelled']).stem}`, {one['examples']:,} by {one['segment']}"
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
    names = sorted(path.stem for path in data.DATA.glob("detection_*.json"))
    return {name: data.read(name) for name in sorted(names, key=lambda name: not name.startswith("detection_en_"))}


def _speed(row: Row) -> float:
    return float(row["texts_per_second"]["value"])


def counted() -> Row:
    """Public by count beside public by policies; planted numbers; how often text repeats."""
    own = data.read("by_count")
    constants, *rows = own["planted"]
    ways = [
        (
            f"`{row['way']}`",
            row["public_texts"],
            f"{100 * row['public_examples']:.1f}%",
            digits(row["per_word"]["value"]) if own["seeds"] == 1 else spread(row["per_word"]),
            digits(row.get("epsilon_confidentiality")),
        )
        for row in own["ways"]
        if row["target"] is not None
    ]
    crossed = [(f"{row['users']:g}", f"{row['crossed']} of {row['planted']}", f"{row['expected']:.2g}") for row in rows]
    often = [
        (
            row["file"],
            row["mode"],
            row["threshold"],
            *(f"{row[key]['texts']} ({100 * row[key]['examples']:.1f}%)" for key in ("all", "k=4")),
        )
        for row in own["repeats"]
    ]
    heads = ("public by", "public texts", "of all points", "perplexity a word", "every secret")
    enough = ("users needed", "texts of enough users (of all points)", "the same, of four texts a user")
    noisy = {row["way"]: row["per_word"]["value"] for row in own["ways"] if row["target"] is not None}
    return {
        **own,
        "seeds": "one seed" if own["seeds"] == 1 else f"{own['seeds']} seeds; in brackets the least and greatest",
        "ways": table(heads, ways),
        "both_level": abs(noisy["both"] / noisy["policies"] - 1) < 0.05,
        "count_best": noisy["count"] < min(noisy["policies"], noisy["both"]),
        "epsilon": next(row["target"] for row in own["ways"] if row["target"] is not None),
        "planted": table(("in the texts of so many users", "public", "by the law"), crossed),
        "constants": constants,
        "as_the_law": min(row["chance"] for row in rows) > 0.01 / len(rows) and not rows[0]["crossed"],
        "often": table(("corpus", "examples", *enough), often),
        "nights": _nights(),
        "grams": table(
            ("text", "users", "ε of a length", "one word", "two", "three", "four"),
            (
                (
                    row["file"],
                    f"{row['users']:,}",
                    f"{row['epsilon']:g}",
                    *(f"{one['found']}, {100 * one['covers']:.0f}%" for one in row["lengths"]),
                )
                for row in data.read("grams")
            ),
        ),
    }


def _nights() -> Row:
    """Thirty nights that count anew under one budget."""
    own = data.read("nights_count")
    rows = own["every_row_once"]
    return {
        **own,
        "first": own["nights"][0]["public"],
        "whole": rows["given"] == rows["read"] and own["verified"] == own["runs"] == len(own["nights"]),
        "year": ", ".join(f"{digits(one['epsilon'])} of {one['selections']}" for one in own["year"][1:]),
    }


def scale() -> Row:
    """Time, memory and disk against points."""
    found = data.read("scale")
    plain = [r for r in found["rows"] if (r["dedup"], r["workers"], r.get("ranges")) == ("exact", 1, None)]
    each = [row["cpu_seconds"] / row["examples"] * 1e6 for row in plain]
    lines = [
        (
            row["dedup"],
            row["workers"],
            row.get("ranges") or "default",
            f"{row['examples']:,}",
            f"{row['cpu_seconds']:,.0f}",
            f"{row['points_per_cpu_second']:,}",
            f"{row['seconds']:,.0f} ({row['load'][1]:.0f})",
            f"{row['peak_process_mb']:.0f}",
            f"{row['corpus_bytes'] / 1e6:,.0f}",
            f"{sum(row['run_bytes'].values()) / 1e6:,.0f}, {row['peak_run_bytes'] / 1e6:,.0f}",
        )
        for row in found["rows"]
    ]
    heads = ("deduplication", "workers", "ranges", "examples", "processor s", "points a second of it")
    rest = ("wall s (load)", "MiB, largest process", "input MB", "run MB, at its peak")
    return {
        "table": table((*heads, *rest), lines),
        "linear": max(each) < 1.1 * min(each),
        "each": ", ".join(f"{one:.0f}" for one in each),
        "sizes": ", ".join(f"{row['examples'] / 1e6:g}" for row in plain),
        "detection": found["detection"],
    }


def names() -> Row:
    """Names that engines cover in labelled files, and clean rows that stay public."""
    found = data.read("tagger")["files"]
    rivals = [name for name in next(iter(found.values())) if name not in ("rows", "redactory")]

    def cells(row: Row) -> tuple[str, str]:
        public = row["public"]["value"]
        return f"{row['covered']['value']:.3f}", "no clean row" if public is None else f"{public:.2f}"

    rows = [
        (
            f"`{name}`",
            f"{one['redactory']['names']:,}",
            *cells(one["redactory"]),
            f"{one['redactory']['missed']['n']}",
            *(cell for rival in rivals for cell in cells(one[rival])),
        )
        for name, one in found.items()
        if one["redactory"]["names"]
    ]
    heads = (
        "text",
        "names",
        "covered",
        "public",
        "missed",
        *(f"{r}: {c}" for r in rivals for c in ("covered", "public")),
    )
    return {"files": files("tagger"), "table": table(heads, rows)}


_VAGUE = {"ACCOUNT", "IDENTIFIER"}


def masks() -> Row:
    """Harmless pieces, wrong labels and open values in support tickets; harmless sentences that are changed."""
    rows = []
    for name, one in data.read("masking")["engines"].items():
        tickets = one["tickets"]
        rows.append(
            (
                name,
                f"{tickets['harmless_masked_runs']} in {tickets['rows_with_harmless_masked']} tickets",
                f"{tickets['wrong_labels']}",
                f"{tickets['open']['whole'] + tickets['open']['partial']} of {tickets['values']:,}",
                f"{tickets['labelled_share_of_masked_characters']:.1%}",
                f"{one['harmless']['changed']} of {one['harmless']['n']}",
            )
        )
    heads = (
        "engine",
        "harmless pieces masked",
        "wrong labels",
        "open",
        "masked text that is labelled",
        "harmless sentences changed",
    )
    recognizers = data.read("recognizers")["recognizers"]
    worst = sorted((r for r in recognizers.items() if r[1]["masked"] >= 5), key=lambda r: r[1]["precision_masked"])[:8]
    return {
        "files": files("masking", "recognizers"),
        "table": table(heads, rows),
        "recognizers": table(
            ("recognizer", "hits", "right", "masked", "right"),
            [(n, c["hits"], f"{c['precision']:.2f}", c["masked"], f"{c['precision_masked']:.2f}") for n, c in worst],
        ),
        "confused": all(
            2 * sum(n for pair, n in one["tickets"]["confusions"].items() if set(pair.split(" as ")) <= _VAGUE)
            > one["tickets"]["wrong_labels"]
            for name, one in data.read("masking")["engines"].items()
            if name == "redactory"
        ),
        "all_half": all(c["precision_masked"] is None or c["precision_masked"] >= 0.5 for c in recognizers.values()),
    }


def frontier() -> Row:
    """Layers against accuracy and speed."""
    rows = [
        (
            one["layers"],
            f"{one['megabytes']:.1f}",
            f"{one['texts_per_second']:,.0f}",
            *(f"{one['sets'][name]['covered']:.3f} / {one['sets'][name]['public']:.2f}" for name in one["sets"]),
        )
        for one in data.read("frontier")["rows"]
    ]
    sets = data.read("frontier")["rows"][0]["sets"]
    return {
        "files": files("frontier"),
        "table": table(("layers", "MB", "texts/s of the tagger", *(f"`{n}`" for n in sets)), rows),
    }
