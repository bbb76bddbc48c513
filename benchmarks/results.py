"""The page of results, whole, from the JSON files that the benchmarks left in ``docs/results``.

``docs/generate.py`` puts it on the site, and what the home page says of it.  ``results.md.j2`` is the page
without its figures, ``results_*.py`` make the tables of its sections.  A sentence that says more than its
numbers (better, within, none) stands there with the names of its conditions, without which there is no page.

    python benchmarks/results.py        prints it
"""

from __future__ import annotations

from pathlib import Path

import jinja2
from results_classify import classify, language, recipe
from results_cost import accountants, clipping, expert, service, workers
from results_crt import attacks, crt, ladder, pretrained, sdp, synthetic
from results_curation import counted, detected, detection, frontier, masks, names, scale
from results_data import digits, files, table, where
from results_ldp import ldp
from results_uedp import uedp

TEMPLATE = Path(__file__).with_suffix(".md.j2")


def page() -> str:
    """The page as the data have it."""
    shown = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    shown.filters |= {"where": where, "digits": digits, "count": "{:,}".format}
    sections = (
        files,
        detection,
        names,
        masks,
        frontier,
        crt,
        sdp,
        ladder,
        counted,
        attacks,
        synthetic,
        uedp,
        ldp,
        scale,
        workers,
        service,
        accountants,
        clipping,
        expert,
        classify,
        recipe,
        language,
        pretrained,
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
        ("How much text without secrets stays public?", f"{min(clean):.0f}% to {max(clean):.0f}%", "the same"),
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


if __name__ == "__main__":
    print(page(), end="")
