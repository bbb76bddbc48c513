"""Thirty nights of one job, as an operator has them: growth, a poisoned night, a crash, an erasure, a key.

Every command is typed as an operator types it, in a process of its own whose clock is set (time-machine) to
the night's date, so that what is kept for days is purged when it is due. Each night finds a new file and a
file that has grown. One night's exporter writes another format (held, rejected, mended), one night is
killed in the middle (the next command finishes it), one person is taken out of every run, one night the
encryption key is changed; a night that is held by chance is approved. At the end every run is verified, and
the log lies beside the figures as it was read. Prints JSON; takes minutes.

    python benchmarks/nights.py --out nights
    python benchmarks/nights.py --nights 14 --rows 20 --out nights      # limits need six nights before
    python benchmarks/nights.py --rows 1200 --count --out nights         # public by count, under a budget

With ``--count`` every night selects what is public anew, under a budget of one user with room for so many
selections: one night more counts nothing.  The plan says what a year costs, by nights and by months.  Nobody
is taken out of a selection, so that the erasure is refused.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST = datetime.date(2026, 10, 1)
CONFIG = """\
input: {path: [in]}
output: job
segment: {mode: turn}
partition: {documents: 20}
dedup: {index: {path: index}}
nightly:
  partial_row_grace_minutes: 0
  keep: {vault: 14, quarantine: 21}
  hook: [/bin/sh, -c, "echo $REDACTORY_EVENT $REDACTORY_RUN >> hooks.txt"]
"""
COUNTED = """\
route: {strategy: count, epsilon: 1.0, delta: 1.0e-6, texts_per_user: 4}
detect: {tagger: null, spacy: {model: "blank:en"}}
release: {allow_uncovered_kinds: [PERSON, LOCATION, ORGANIZATION]}
train:
  trainer: user-level
  federated: {users: 100000}
  budget: {path: spent.jsonl, epsilon: BUDGET, delta: 1.0e-4}
"""
"""Models of such a job hide users, and its budget counts them."""
PERSON = "user-7"
AT = """\
import datetime, sys
import time_machine
from redactory.flows.cli import main
with time_machine.travel(datetime.datetime.fromisoformat(sys.argv.pop(1))):
    main()
"""
"""``redactory`` at another time: the clock goes on from there."""


@dataclass
class Job:
    """The folder of the simulation, its environment, and what was typed."""

    root: Path
    environment: dict[str, str]
    typed: list[dict[str, Any]] = field(default_factory=list)

    def type(self, day: datetime.date, hour: str, *words: str, expect: int | None = 0) -> dict[str, Any]:
        """One ``redactory`` command at that time; its JSON.  An exit code but ``expect`` ends it all.

        None is for what may be held: 0 or 1.
        """
        start = time.perf_counter()
        done = subprocess.run(
            self._words(day, hour, *words, "--json"),
            cwd=self.root,
            env=self.environment,
            text=True,
            capture_output=True,
            check=False,
        )
        seconds = time.perf_counter() - start
        self.typed.append({"day": str(day), "command": words, "exit": done.returncode, "seconds": round(seconds, 2)})
        if done.returncode not in ((0, 1) if expect is None else (expect,)):
            raise SystemExit(f"{' '.join(words)}: exit {done.returncode}, not {expect}\n{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr.strip()}

    def killed(self, day: datetime.date, hour: str, run: Path) -> bool:
        """Begin the night and kill it as soon as its journal has done with segmenting."""
        process = subprocess.Popen(
            self._words(day, hour, "nightly", "job.yaml"),
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        before = {path.name for path in run.iterdir()} if run.is_dir() else set()
        while process.poll() is None:
            begun = [p for p in run.iterdir() if p.name not in before] if run.is_dir() else []
            journals = [p / "state" / "journal.jsonl" for p in begun if (p / "state").is_dir()]
            if any(j.is_file() and b'"segment' in j.read_bytes() for j in journals):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.02)
        return False

    def _words(self, day: datetime.date, hour: str, *words: str) -> list[str]:
        return [sys.executable, "-c", AT, f"{day}T{hour}+00:00", *words]


def main() -> None:
    """Simulate, and print what came of it."""
    arguments = _arguments()
    root: Path = arguments.out
    shutil.rmtree(root, ignore_errors=True)
    (root / "in").mkdir(parents=True)
    counted = COUNTED.replace("BUDGET", f"{_room(arguments.nights):.3f}") if arguments.count else ""
    (root / "job.yaml").write_text(CONFIG + counted)
    job = Job(root, _environment(root))
    users = max(97, 3 * arguments.rows) if arguments.count else 97
    corpus = _corpus(root, (arguments.nights + 1) * (arguments.rows + 5), users)
    nights = [_night(job, number, arguments, corpus) for number in range(arguments.nights)]
    told = _spent(job, arguments, corpus) if arguments.count else {}
    print(json.dumps({**_summary(job, arguments, nights), **told}, indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="where the job lies; removed before")
    parser.add_argument("--nights", type=int, default=30)
    parser.add_argument("--rows", type=int, default=40, help="new dialogues a night")
    parser.add_argument("--count", action="store_true", help="what is public is decided by count")
    return parser.parse_args()


def _environment(root: Path) -> dict[str, str]:
    for name in ("first", "second"):
        (root / f"{name}.key").write_bytes(secrets.token_bytes(32))
        (root / f"{name}.key").chmod(0o600)
    dropped = {name for name in os.environ if name.startswith("REDACTORY_")}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    key = {"REDACTORY_KEY": secrets.token_hex(16), "REDACTORY_ENCRYPTION_KEY_FILE": str(root / "first.key")}
    return {**kept, **key, "TZ": "UTC"}


def _corpus(root: Path, rows: int, users: int) -> list[dict[str, Any]]:
    """Simulated dialogues; everybody comes back every few nights."""
    import redactory

    redactory.simulate(root / "all.jsonl", rows, 11, 3, 1)
    with (root / "all.jsonl").open() as file:
        found = [json.loads(line) for line in file]
    return [{"id": one["id"], "user_id": f"user-{n % users}", "text": one["text"]} for n, one in enumerate(found)]


def _night(job: Job, number: int, arguments: argparse.Namespace, corpus: list[dict[str, Any]]) -> dict[str, Any]:
    """One night: what came in by day, and what the operator typed."""
    day = FIRST + datetime.timedelta(days=number)
    part = corpus[number * (arguments.rows + 5) : (number + 1) * (arguments.rows + 5)]
    file = job.root / "in" / f"chat-{day}.jsonl"
    poisoned, crash, erasure, rotation = (round(arguments.nights * share) for share in (0.5, 0.3, 0.65, 0.8))
    _write(file, [_changed(row) for row in part[5:]] if number == poisoned else part[5:], day)
    with (job.root / "in" / "feed.jsonl").open("a") as feed:
        feed.writelines(json.dumps(row) + "\n" for row in part[:5])
    told: dict[str, Any] = {"day": str(day)}
    if number == crash:
        told["killed"] = job.killed(day, "02:00:00", job.root / "job")
    found = job.type(day, "03:00:00", "nightly", "job.yaml", expect=1 if number == poisoned else None)
    told["nights"] = [
        {k: night.get(k) for k in ("run", "state", "resumed", "counts", "findings")} for night in found["nights"]
    ]
    if number == poisoned:
        held = Path(found["nights"][-1]["run"])
        told["findings"] = len(job.type(day, "08:00:00", "release", "list", "job")["runs"][-1].get("findings") or [])
        told["export"] = job.type(day, "08:10:00", "export", str(held), "--to", "out-held", expect=2)["error"]
        job.type(day, "08:20:00", "release", "reject", str(held), "--by", "operator", "--reason", "new export format")
        _write(file, part[5:], day)
    elif found["nights"][-1]["state"] == "held":
        # thirty nights have one or two that lie outside of what the nights before let expect, by chance
        held, why = found["nights"][-1]["run"], ("--by", "operator", "--reason", "looked at it: chance")
        told["approved"] = job.type(day, "08:00:00", "release", "approve", str(held), *why)
    if number == erasure:
        person = ("erase", "--user-id", PERSON, "job")
        told["erasure"] = job.type(day, "10:00:00", *person, expect=2 if arguments.count else 0)
    if number == rotation:
        told["rotation"] = job.type(
            day, "11:00:00", "keys", "rotate", "job", "--to-key-file", str(job.root / "second.key")
        )
        job.environment["REDACTORY_ENCRYPTION_KEY_FILE"] = str(job.root / "second.key")
    return told


def _room(selections: int) -> float:
    """What so many selections cost one user who is in each of them, and a little more."""
    from redactory.training.count_selection import CountSelection
    from redactory.training.guarantee.metrics import confirm_removal_epsilon

    spent = (CountSelection.calibrate(1.0, 1e-6, 4).compute_user_spending(),) * selections
    return 1.005 * (confirm_removal_epsilon(spent, 1e-4, "the budget").value or 0.0)


def _spent(job: Job, arguments: argparse.Namespace, corpus: list[dict[str, Any]]) -> dict[str, Any]:
    """The night that the budget has no room for, what was spent, and what the plan says of a year."""
    day = FIRST + datetime.timedelta(days=arguments.nights)
    _write(job.root / "in" / f"chat-{day}.jsonl", corpus[-arguments.rows :], day)
    refused = job.type(day, "03:00:00", "nightly", "job.yaml", expect=1)
    (job.root / "in" / f"chat-{day}.jsonl").unlink()
    budget = job.type(day, "04:00:00", "budget", "job.yaml")
    plan = job.type(day, "05:00:00", "plan", "job.yaml")
    after = [one["epsilon_after"] for one in budget.pop("trainings")]
    return {"refused": refused, "budget": {**budget, "after": after}, "year": plan["selection"]["year"]}


def _write(file: Path, rows: list[dict[str, Any]], day: datetime.date) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    then = datetime.datetime.combine(day, datetime.time(1), datetime.UTC).timestamp()
    os.utime(file, (then, then))


def _changed(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a new version of the exporter writes it: a time and an agent's number before each line."""
    lines = [
        re.sub(r"^\w+:\s*", f"[2026-10-16 08:{n % 60:02d}:11] agent 4711{n:04d} > ", line)
        for n, line in enumerate(row["text"].split("\n"))
    ]
    return {**row, "text": "\n".join(lines)}


def _summary(job: Job, arguments: argparse.Namespace, nights: list[dict[str, Any]]) -> dict[str, Any]:
    last = FIRST + datetime.timedelta(days=arguments.nights)
    log = job.type(last, "09:00:00", "release", "list", "job", "--log")
    runs = sorted(p for p in (job.root / "job").iterdir() if (p / "_SUCCESS").is_file() and not p.is_symlink())
    verified = {run.name: job.type(last, "09:30:00", "verify", str(run))["ok"] for run in runs}
    (job.root / "log.json").write_text(json.dumps(log, indent=1))
    seconds = [one["seconds"] for one in job.typed if one["command"][0] == "nightly"]
    return {
        "nights": nights,
        "commands": len(job.typed),
        "seconds_a_night": {"first": seconds[0], "last": seconds[-1], "greatest": max(seconds)},
        "verified": verified,
        "every_row_once": _read_once(job, arguments),
        "hooks": (job.root / "hooks.txt").read_text().splitlines() if (job.root / "hooks.txt").is_file() else [],
        "records": len(log.get("records", [])),
    }


def _read_once(job: Job, arguments: argparse.Namespace) -> dict[str, int]:
    """Rows that came in, and rows that runs which were released have read."""
    given = sum(len(path.read_text().splitlines()) for path in (job.root / "in").iterdir())
    states = {r["run"]: r["state"] for r in job.type(FIRST, "09:00:00", "release", "list", "job")["runs"]}
    read = 0
    for run, state in states.items():
        manifest = job.root / "job" / run / "manifest.json"
        if state == "released" and manifest.is_file():
            first = manifest.parent / "releases" / "1" / "manifest.json"
            read += json.loads((first if first.is_file() else manifest).read_text())["counts"]["rows"]
    return {"given": given, "read": read}


if __name__ == "__main__":
    main()
