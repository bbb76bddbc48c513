"""The commands that listen: the review page, and ``redactory serve-http``, a policy over HTTP."""

import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Result, Shown, err, fill, show_result
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
        from redactory.pipelines.documents import serve_http as server
    except ImportError as error:
        raise ConfigurationError(f"the page needs {error.name}: pip install 'redactory[http]'") from None
    site = pages.Review(place, annotator, own_config)
    listener = server.listen(access.ADDRESS, port, "--port")
    guard = access.AccessGuard(pages.build_app(site), listener.getsockname()[1])
    err.print(f"Open {guard.address}", soft_wrap=True, markup=False)
    err.print("The address works once, in one browser on this machine. Ctrl-C ends the review.", soft_wrap=True)
    with access.write_redirect(guard.address) as file_address, suppress(KeyboardInterrupt):
        if browser:
            webbrowser.open(file_address)
        server.run_server(guard, listener, 1)
    return site.summarize()


@command("serve-http")
def serve_http(
    context: typer.Context,
    own_config: opt.OwnConfig = None,
    host: Annotated[str, Option(help="The address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port; 0 takes a free one.", min=0, max=65_535)] = 8790,
    workers: opt.Workers = 1,
) -> Shown:
    """Answer HTTP requests with masked texts or spans, also those of Presidio's clients, until it is stopped."""

    def show_address(r: Result) -> None:
        page = ["Ready on {address} ({workers:n worker}, policy {policy}). Ctrl-C stops it."]
        page.append("It has no access control and no encryption: before others can reach it, put a proxy in front.")
        if r["masks_nothing"]:
            page.append("Warning: this policy masks nothing, not even in a sample text: see detect.strict.labels.")
        show_result(context.obj, r, [fill(line, r) for line in page])
        sys.stdout.flush()

    redactory.serve_http(own_config, host=host, port=port, workers=workers or 1, on_ready=show_address)
    return None
