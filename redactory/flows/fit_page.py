"""What fitting prints for people: of a tagger, and of the conservative policy."""

from __future__ import annotations

from typing import Any

from redactory.flows.output import out, table
from redactory.foundation.wording import some


def fitted(result: dict[str, Any]) -> None:
    """``redactory fit-policy``: the curve of public share against miss rate, and what was chosen."""
    out.print(
        f"One secret of each {result['unit']}: {result['secrets']:,} of {result['secrets_labelled']:,} "
        f"labelled ones, in {some(result['rows'], 'row')}. Bounded is {result['estimand']}.",
        soft_wrap=True,
    )
    chosen, curve, previous, rows = result["chosen"], result["curve"], None, []
    for point in curve:
        fate = (point["public_share"], point["misses"], point["holds"])
        present = _is_same(point, result["present"])
        if fate != previous or present:
            state = "chosen" if point == chosen else "holds" if point["holds"] else ""
            state = ", ".join(filter(None, (state, "present" if present else "")))
            rows.append((*_policy_of(point, curve[0]["rules"]), *_curve_of(point), state))
        previous = fate
    headers = ("plain", "sure", "rules", "public", "of clean", "missed", "rate", "at most", "")
    table("Public share against miss rate, from the safest policy on", rows, headers)
    asked = f"a miss rate of at most {result['miss_rate']:g} at confidence {result['confidence']:g}"
    if chosen is None:
        out.print(
            f"No policy shows {asked}, not even the safest one: nothing was written. Only "
            "conservative.flags_everything, which makes every point private, misses nothing.",
            soft_wrap=True,
        )
        return
    out.print(f"Wrote {result['out']}: {asked} was shown on these labels.", soft_wrap=True)
    if looser := _looser(chosen, result["present"]):
        out.print(f"It is looser than the present configuration: {'; '.join(looser)}.", soft_wrap=True)
    out.print(f"Its rows can be told again by {result['rows_file']}; keep it.", soft_wrap=True)
    if result["key_fresh"]:
        out.print(
            "No REDACTORY_KEY was set: no other process can tell these rows again, so none will measure what "
            "this policy misses. Set a lasting key and fit again.",
            soft_wrap=True,
        )


def _is_same(point: dict[str, Any], present: dict[str, Any]) -> bool:
    bounds = ("plain_confidence", "sure")
    return set(point["rules"]) == set(present["rules"]) and all(point[key] == present[key] for key in bounds)


def _looser(chosen: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """In what the chosen policy lets more text be public than the present one."""
    bounds = {"plain": "plain_confidence", "sure": "sure"}
    told = [
        f"{name} {chosen[key]:.8g} instead of {present[key]:.8g}"
        for name, key in bounds.items()
        if chosen[key] < present[key]
    ]
    gone = [rule for rule in present["rules"] if rule not in chosen["rules"]]
    return [*told, f"without {', '.join(gone)}"] if gone else told


def _policy_of(point: dict[str, Any], every: list[str]) -> tuple[str, ...]:
    gone = [rule for rule in every if rule not in point["rules"]]
    rules = "all" if not gone else f"no {', '.join(gone)}" if point["rules"] else "none"
    return f"{point['plain_confidence']:.8g}", f"{point['sure']:.8g}", rules


def _curve_of(point: dict[str, Any]) -> tuple[str, ...]:
    shares = (f"{point['public_share']:.1%}", f"{point['clean_public_share']:.1%}")
    return *shares, f"{point['misses']:,}", *(f"{100 * point[key]:.3g}%" for key in ("rate", "upper"))


def tagger_fitted(result: dict[str, Any]) -> None:
    """``redactory fit``."""
    held_out, reliability = result["held_out"], result["reliability"]
    rows = [
        (label, f"{count:,}", _share(held_out["by_label"].get(label)))
        for label, count in result["labels"].items()
    ]
    table("Labels", rows, ("label", "spans trained on", "covered whole, held out"))
    out.print(
        f"Held out, {some(held_out['rows'], 'text')}: {_share(held_out['cover_recall'])} of the spans "
        "covered, "
        f"{_share(held_out['char_precision'])} of the marked characters labelled.",
        soft_wrap=True,
    )
    out.print(
        f"Calibrated: temperature {reliability['temperature']}, calibration error "
        f"{reliability['error_before']:.4f} before, {reliability['error']:.4f} after."
    )
    section = "transformers.folder" if "base" in result["settings"] else "tagger.models"
    out.print(f"Wrote {result['tagger']}: name it in detect.{section}", soft_wrap=True)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
