"""What ``redactory evaluate detect`` prints for people."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out, table
from redactory.foundation.wording import some

_HEADS = {"strict": "strict (π)", "conservative": "both (π ∪ π_c)"}
_CHARACTERS = ("cover_recall", "char_precision", "char_recall", "f1", "f2")


def detection(result: dict[str, Any]) -> None:
    """Each figure with its 95 % interval, a miss rate beside what it costs."""
    out.print(
        f"{result['labelled']}: {some(result['rows'], 'row')}, {some(result['points'], 'point')} by "
        f"{result['segment']}, "
        f"{some(result['secrets'], 'secret')}; {some(result['quarantined'], 'point')} quarantined.",
        soft_wrap=True,
    )
    scored = {name: result[name] for name in _HEADS if name in result}
    heads = tuple(_HEADS[name] for name in scored)
    rows = [
        (name.replace("_", " "), *(_figure(own[name]) for own in scored.values())) for name in _CHARACTERS
    ]
    for match in ("exact", "overlap"):
        for name in ("precision", "recall", "f1"):
            rows.append((f"{match} {name}", *(_figure(own[match][name]) for own in scored.values())))
    table("Found, at 95 %", rows, ("figure", *heads))
    _missed(result)
    labels = {label: own["n"] for by in scored.values() for label, own in by["by_label"].items()}
    by_label = [
        (label, f"{n:,}", *(_figure(own["by_label"][label]["cover_recall"]) for own in scored.values()))
        for label, n in labels.items()
    ]
    table("Secrets covered whole", by_label, ("label", "secrets", *heads))
    if result["texts_per_second"]:
        out.print(f"{result['texts_per_second']:,.0f} distinct points per second")


def _missed(result: dict[str, Any]) -> None:
    public, clean = result["public_share"], result["public_share"]["of_clean"]
    rows = [
        (name, _figure(result[key]), f"{result[key]['misses']:,} of {result[key]['n']:,}")
        for name, key in (("missed by π (γ)", "gamma"), ("missed by both (δ₂)", "miss_rate"))
        if key in result
    ]
    rows += [
        ("public, of all points", _figure(public), f"{public['public']:,} of {public['points']:,}"),
        ("public, of clean points", _figure(clean), f"{clean['public']:,} of {clean['points']:,}"),
    ]
    table("Missed, and what stays public", rows, ("figure", "at 95 %", "counted"))
    worst = result.get("highest_gamma")
    if worst:
        out.print(
            f"Highest γ: at most {worst['upper']:.4f} for {worst['stratification']} {worst['stratum']} "
            f"({worst['misses']:,} of {worst['n']:,} missed)\n",
            soft_wrap=True,
            markup=False,
        )


def _figure(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "none"
    return f"{figure['value']:.4f} ({figure['low']:.4f} to {figure['high']:.4f})"
