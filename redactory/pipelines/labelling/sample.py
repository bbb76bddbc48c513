"""Audit: people label a sample of a finished run, and what the policies missed there is measured.

``docs/how-to/audit.md`` says how it is used, ``redactory/evaluation/sample_bounds.py`` what is bounded.
"""

from __future__ import annotations

import datetime
import secrets as entropy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors import DetectSettings
from redactory.detectors.fitted import FittedPolicy, fitted_among
from redactory.evaluation.label_studio import as_tasks, labelling_interface
from redactory.evaluation.labelled_sample import (
    Ids,
    SampledText,
    as_csv,
    as_json_lines,
    draw_sample,
    frame_of,
    texts_of,
)
from redactory.evaluation.sample_bounds import STRATA, plan_sample
from redactory.evaluation.sample_labels import text_digest
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder, write_json, write_text
from redactory.foundation.keys import DigestKey, load_digest_key
from redactory.foundation.stream import RandomStream
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, is_finished, merge_intervals, read_batches, read_manifest, seal
from redactory.redaction.folder import SampleFolder

FORMAT = "redactory-sample/1"
PUBLIC_SHARE = 0.6
_SEED_BITS = 53
_KEY_BYTES = 32


def audit_sample(
    run: str | Path,
    n: int = 400,
    *,
    seed: int | None = None,
    name: str = "sample",
    public_share: float = PUBLIC_SHARE,
    date: datetime.date | None = None,
) -> dict[str, Any]:
    """Draw at most ``n`` texts of a finished run for people to label, into ``state/samples/NAME`` (0600).

    Points are drawn independently, uniformly within a stratum (public; masked by π; private for π_c
    alone), with ``public_share`` of the draws public; a stratum with fewer distinct texts than draws is
    taken whole (``plan_sample``).  Quarantined points are counted and not drawn, and so are points on which
    a policy was fitted.  Without ``seed`` one is drawn.  Returns where the files lie and the sizes of
    everything; no text.  Raises ``RunStateError`` for a name that is taken, ``ConfigurationError`` for
    too few draws.
    """
    folder = RunFolder(Path(run))
    manifest, sample = read_manifest(folder), folder.sample(name)
    if is_finished(sample):
        raise RunStateError(f"{sample.root} holds a sample: draw another one under another --name")
    seed = entropy.randbits(_SEED_BITS) if seed is None else seed
    date = date or datetime.datetime.now(datetime.UTC).date()
    return sealed(folder.state, _sample, folder, manifest, sample, n, seed, public_share, date)


def _sample(
    run: RunFolder,
    manifest: dict[str, Any],
    folder: SampleFolder,
    n: int,
    seed: int,
    public_share: float,
    date: datetime.date,
) -> dict[str, Any]:
    frame = frame_of(run, _fitted_points(run, manifest))
    sizes, texts = frame.sizes(), texts_of(run, frame, n)
    if not sum(sizes.values()):
        raise RunStateError(f"{run.root} has no point that could be labelled")
    try:
        plan = plan_sample(sizes, {name: len(own) for name, own in texts.items()}, n, public_share)
    except ValueError:
        raise ConfigurationError(
            f"{n} draws at a public share of {public_share:g}: the share must lie inside (0, 1), and each "
            "stratum needs a draw"
        ) from None
    sample = draw_sample(run, frame, plan, texts, RandomStream.from_seed(seed))
    held_back = frame.unmeasured._replace(private=frame.unmeasured.private - frame.quarantined)
    summary = {
        "name": folder.root.name,
        "date": date.isoformat(),
        "seed": seed,
        "n": n,
        "texts": len(sample),
        "public_share": public_share,
        "strata": {
            name: {
                "points": sizes[name],
                "whole": name in plan.whole,
                "draws": plan.draws.get(name, 0),
                "texts": sum(text.stratum == name for text in sample),
            }
            for name in STRATA
        },
        "quarantined": frame.quarantined,
        "fitted_on": held_back._asdict(),
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
    }
    _write(run, folder, sample, summary, manifest)
    files = {"rows": folder.rows, "table": folder.table, "tasks": folder.tasks, "interface": folder.interface}
    return {
        "run": str(run.root),
        **summary,
        "folder": str(folder.root),
        "files": {name: str(path) for name, path in files.items()},
    }


def _write(
    run: RunFolder,
    folder: SampleFolder,
    texts: Sequence[SampledText],
    summary: dict[str, Any],
    manifest: dict[str, Any],
) -> None:
    """Write every form of the sample and the record of the draw, and seal them."""
    make_private_folder(folder.root.parent)
    make_private_folder(folder.root)
    key = DigestKey(entropy.token_bytes(_KEY_BYTES))
    write_text(folder.rows, as_json_lines(texts))
    write_text(folder.table, as_csv(texts))
    write_json(folder.tasks, as_tasks(texts, f"strict policy {summary['policies']['strict'][:12]}"))
    write_text(folder.interface, labelling_interface(_labels(manifest, texts)))
    # the key lies beside the texts that it digests: it keeps digests alone from being guessed at elsewhere
    write_json(
        folder.draw, {**summary, "key": key.secret.hex(), "rows": [_record(text, key) for text in texts]}
    )
    files = [folder.rows, folder.table, folder.tasks, folder.interface, folder.draw]
    seal(folder, {"format": FORMAT, "parent": file_sha256(run.manifest), **summary}, files)


def _record(text: SampledText, key: DigestKey) -> dict[str, Any]:
    return {
        "point_id": text.point_id,
        "stratum": text.stratum,
        "times": text.times,
        "digest": text_digest(text.text, key),
        "prefilled": text.prefilled(),
        "masked": merge_intervals(text.text, ((span.start, span.end) for span in text.strict)),
    }


def _labels(manifest: dict[str, Any], texts: Sequence[SampledText]) -> list[str]:
    """What a labeller may choose from: the labels that π masks, those that occur, and one for all else."""
    settings = manifest["configuration"]["detect"]["strict"]
    occurring = {span.label for text in texts for span in text.strict}
    return [*sorted({*settings["labels"], *settings["more_labels"], *occurring} - {"SECRET"}), "SECRET"]


def _fitted_points(run: RunFolder, manifest: dict[str, Any]) -> Ids | None:
    """The ids of points whose texts the run's policy was fitted on; None where it was not fitted."""
    fitted = fitted_policy(manifest)
    if fitted is None:
        return None
    key, found = load_digest_key(), [np.empty(0, np.int64)]
    for batch in read_batches(run.vault, ["point_id", "text"]):
        chosen = np.array(fitted_among(batch["text"].to_pylist(), fitted, key), dtype=bool)
        found.append(batch["point_id"].to_numpy()[chosen])
    return np.concatenate(found)


def fitted_policy(manifest: dict[str, Any]) -> FittedPolicy | None:
    """How the run's conservative policy was fitted; None where it was not."""
    return DetectSettings.model_validate(manifest["configuration"]["detect"]).conservative.fitted
