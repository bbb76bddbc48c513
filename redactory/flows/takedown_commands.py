"""``redactory takedown`` and ``redactory purge``: what a finished run shall not hold any longer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.output import JsonOption, RunArgument, show
from redactory.foundation.errors import ConfigurationError, some

if TYPE_CHECKING:
    from redactory.pipelines.purge import What

PlacesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="PLACE...", help="Run folders, or folders of jobs with all their runs."),
]
_WORDS_OF_OTHERS = (
    "What others wrote about a user stays: put the names on a deny list, find such texts with redactory scan "
    "--config, and take them out with --doc-id, or curate anew with the list"
)
_IDS_FROM = "with one id a line: what is typed stays in the shell's history."


def takedown(
    places: PlacesArgument,
    doc_id: Annotated[list[str] | None, typer.Option(help="A document's id; may be repeated.")] = None,
    user_id: Annotated[list[str] | None, typer.Option(help="A user's id; may be repeated.")] = None,
    doc_ids_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Documents, from a file {_IDS_FROM}")
    ] = None,
    user_ids_from: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Users, from a file {_IDS_FROM}")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; write nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take a person's rows out of every run that holds them, and list the models trained on them."""
    users = [*(user_id or ()), *_ids(user_ids_from)]
    result = redactory.takedown(
        places, doc_ids=[*(doc_id or ()), *_ids(doc_ids_from)], user_ids=users, dry_run=dry_run
    )
    show(result, as_json, partial(_taken_out, by_user=bool(users)))
    if not result["ok"]:
        raise SystemExit(max(problem["exit_code"] for problem in result["problems"]))


def purge(
    run: RunArgument,
    vault: Annotated[bool, typer.Option("--vault", help="The original texts of all points.")] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="What was rejected or could not be processed.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Samples to label, sealed tracebacks, Prefect's home.")
    ] = False,
    by: Annotated[str | None, typer.Option(help="Who purges; goes into the release log.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Take original text out of a finished run, for good. The shards stay as they are."""
    asked: dict[What, bool] = {"vault": vault, "quarantine": quarantine, "state": state}
    show(redactory.purge(run, [name for name, wanted in asked.items() if wanted], by=by), as_json, _purged)


def _ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}; a text file with one id a line is needed"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8: a text file with one id a line is needed") from None
    return [line.strip() for line in lines if line.strip()]


def _taken_out(result: dict[str, Any], by_user: bool) -> None:
    for run in result["runs"]:
        _say(f"{run['run']}: {_what(run, result['dry_run'])}")
        for line in _besides(run):
            _say(f"  {line}")
        if run["models"]:
            rows = [(m["model"], m["trainer"], m["guarantee"]) for m in run["models"]]
            output.table(
                "Models that learnt from it (none is trained anew)",
                rows,
                ("model", "trainer", "what is promised"),
                text=True,
            )
    for problem in result["problems"]:
        _say(f"{problem['run']}: not done: {problem['problem']}")
    if result["unmatched"] and any(
        run["points"] or run["rejected"] or run["already"] for run in result["runs"]
    ):
        _say(
            f"Mind: nothing is known of {some(len(result['unmatched']), 'id')} of those given; see that each "
            "is written as in the input"
        )
    files = dict.fromkeys(key for run in result["runs"] for key in run["files"])
    if files:
        _say(f"Files of your own are not touched: take her out of them too ({', '.join(files)})")
    if by_user and result["runs"]:
        _say(_WORDS_OF_OTHERS)


def _what(run: dict[str, Any], dry_run: bool) -> str:
    if not run["points"] and not run["rejected"]:
        before = run["already"]
        if before is None:
            return "it has nothing of them; see that each id is written as in the input"
        return f"nothing is left; taken out with release {before}"
    told = f"{some(run['points'], 'point')} of {some(run['documents'], 'document')}"
    told += f" and {some(run['rejected'], 'rejected row')}" if run["rejected"] else ""
    return f"{told} would go" if dry_run else f"{told} are gone; this is release {run['release']}"


def _besides(run: dict[str, Any]) -> list[str]:
    """What somebody who answers for the takedown has to know, a line each."""
    said = [
        (run.get("moved_up"), "point", "of others, of the same text, put in their places"),
        (run.get("lost"), "point", "of others gone too: told by these texts alone, the vault was purged"),
        (run["unsearched"], "rejected row", "that cannot be searched: redactory purge RUN --quarantine"),
        (run["lone_documents"], "document", "without a user but with such an id: if it is hers, --doc-id"),
        (run.get("tracebacks"), "sealed traceback", "that can quote any text: redactory purge RUN --state"),
        (len(run.get("exports", ())), "export", "made before, to be asked back"),
        (len(run.get("samples", ())), "sample", "to label with a text of it, to go too"),
        (len(run.get("unfinished_trainings", ())), "training", "begun that cannot go on: remove its folder"),
    ]
    lines = [f"{some(number, what)} {words}" for number, what, words in said if number]
    if run.get("unknown_repeats"):
        lines.append(
            "a Bloom filter does not say who repeats a text, and the vault was purged: some may be missing"
        )
    if run.get("index") is False:
        lines.append("the index across runs cannot forget all of it (mode bloom, or the vault was purged)")
    return lines


def _purged(done: dict[str, Any]) -> None:
    if done["release"] is None:
        _say(f"{', '.join(done['already'])}: gone already")
        return
    _say(
        f"{', '.join(done['purged'])}: gone, {some(done['bytes'], 'byte')}; this is release {done['release']}"
    )


def _say(line: str) -> None:
    output.out.print(line, soft_wrap=True, markup=False)
