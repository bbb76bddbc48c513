"""The command that opens the review page."""

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Shown, err
from redactory.foundation.errors import ConfigurationError


@command("review")
def review(
    place: Annotated[Path, Argument(metavar="RUN|JOB|FILE", help="A run, a job's folder of runs, or rows to label.")],
    annotator: Annotated[str, Option(help="Who labels; the labels go to FILE.ANNOTATOR.jsonl.")] = "labelled",
    own_config: opt.OwnConfig = None,
    port: Annotated[int, Option(help="The port on this machine; default: a free one.", min=0, max=65535)] = 0,
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open the browser.")] = True,
) -> Shown:
    """Open a local page: label rows, read errors, decide about a run. Ctrl-C ends it."""
    try:
        from redactory.flows.review import access, pages
    except ImportError as error:
        raise ConfigurationError(f"the page needs {error.name}: pip install 'redactory[http]'") from None
    site = pages.Review(place, annotator, own_config)
    listener = access.open_socket(port)
    guard = access.AccessGuard(pages.build_app(site), listener.getsockname()[1])
    err.print(f"Open {guard.address}", soft_wrap=True, markup=False)
    err.print("The address works once, in one browser on this machine. Ctrl-C ends the review.", soft_wrap=True)
    with access.write_redirect(guard.address) as file_address, suppress(KeyboardInterrupt):
        if browser:
            webbrowser.open(file_address)
        access.run_server(guard, listener)
    return site.summarize()
