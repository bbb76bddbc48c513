"""One process that carries out commands one after the other, with the output of each in files of its own.

    python -m tests.flows.leak_process PLAN LOGS

PLAN is a JSON list of [name, arguments, what fails or null]; the exit codes go into LOGS/codes.json.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path


def main(plan: Path, logs: Path) -> None:
    codes = {}
    for name, arguments, fails in json.loads(plan.read_text()):
        codes[name] = _carried_out(logs / name, arguments, fails)
    (logs / "codes.json").write_text(json.dumps(codes))


def _carried_out(log: Path, arguments: list[str], fails: str | None) -> int:
    # each reads standard input from its begin
    os.lseek(0, 0, os.SEEK_SET)
    # the file descriptors: what is written past Python's streams is caught as well
    before = [os.dup(1), os.dup(2)]
    for descriptor, end in ((1, "out"), (2, "err")):
        file = os.open(f"{log}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        return _as_console_script(arguments, fails)
    finally:
        for descriptor, kept in enumerate(before, 1):
            os.dup2(kept, descriptor)
            os.close(kept)


def _as_console_script(arguments: list[str], fails: str | None) -> int:
    from redactory.flows.cli import main as redactory
    from tests.flows.leak_sabotage import break_function

    sys.argv = ["redactory", *arguments]
    mend = break_function(fails) if fails else lambda: None
    # from now on in the processes that this one starts, too
    os.environ["LEAK_FAIL"] = fails or ""
    try:
        redactory()
        return 0
    except SystemExit as end:
        # as the interpreter does: what is no number is printed
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.environ["LEAK_FAIL"] = ""
        mend()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
