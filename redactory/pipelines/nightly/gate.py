"""The gate: a finished run beside the runs that its job released before."""

from __future__ import annotations

from typing import Any

from redactory.evaluation.drift import DriftSettings, Figures, Finding, compare
from redactory.evaluation.drift_figures import figures_of
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import make_private_folder, write_json
from redactory.pipelines.releases.log import Event, read_log, standings
from redactory.pipelines.releases.words import holds_nothing
from redactory.redaction import RunFolder, is_finished, read_manifest, seal
from redactory.redaction.job_folder import JobFolder

FORMAT = "redactory-gate/1"


def judge(job: JobFolder, run: RunFolder, settings: DriftSettings) -> list[Finding]:
    """What of the finished ``run`` lies outside of the limits that the job's earlier runs give.

    An empty list: the run may be released.  All that was compared is sealed in the run (``run.gate``), and
    its report shows it.  Earlier runs are those before it in the log that are released now; what was tried
    again from a quarantine is not like a night, and is left out.
    """
    earlier = earlier_runs(job, run)[-settings.runs :]
    manifest = read_manifest(run)
    before = [read_manifest(one) for one in earlier]
    history: list[Figures] = [figures_of(one) for one in before]
    compared = compare(history, figures_of(manifest), settings)
    changed = [
        one.root.name
        for one, body in zip(earlier, before, strict=True)
        if _policies(body) != _policies(manifest)
    ]
    _keep(run, settings, [one.root.name for one in earlier], changed, compared, manifest["counts"])
    return [finding for finding in compared if finding.outside]


def earlier_runs(job: JobFolder, run: RunFolder) -> list[RunFolder]:
    """The released runs before ``run``, oldest first; those whose folder is gone are left out."""
    records, own = read_log(job), run.root.resolve().name
    # a run that is judged again was begun, and perhaps held, before nights that came after it
    seen = next((n for n, r in enumerate(records) if r.body["run"] == own), len(records))
    released = [name for name, one in standings(records[:seen]).items() if one.state == "released"]
    retried = {record.body["into"] for record in records if record.type == Event.RETRIED}
    now = standings(records)
    wanted = (n for n in released if n not in retried and now[n].state == "released")
    return [one for name in wanted if is_finished(one := job.run(name))]


def _keep(
    run: RunFolder,
    settings: DriftSettings,
    runs: list[str],
    changed: list[str],
    compared: list[Finding],
    counts: dict[str, int],
) -> None:
    kept = run.gate
    make_private_folder(kept.root)
    kept.success.unlink(missing_ok=True)
    outside = any(finding.outside for finding in compared)
    result: dict[str, Any] = {
        "verdict": "outside" if outside else "within" if len(runs) >= settings.least else "too few",
        "empty": holds_nothing(counts),
        "runs": runs,
        "other_policies": changed,
        "settings": settings.model_dump(mode="json"),
        "compared": [
            {**finding.to_json(), "outside": finding.outside, "history": list(finding.history)}
            for finding in compared
        ],
    }
    out = kept.root / "result.json"
    write_json(out, result)
    seal(kept, {"format": FORMAT, "parent": file_sha256(run.manifest)}, [out])
    write_report(run)


def _policies(manifest: dict[str, Any]) -> list[str]:
    return [policy["hash"] for policy in manifest["policies"].values()]
