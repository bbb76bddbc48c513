"""``redactory serve-http``: a policy over HTTP."""

import sys
from typing import Annotated

import typer
from typer import Option

import redactory
from redactory.flows import options as opt
from redactory.flows.options import command
from redactory.flows.show import Result, Shown, fill, show_result


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
