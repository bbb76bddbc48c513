"""A process that has everything imported and forks for each command.

Pages and tests of the command line run a dozen commands, and each would spend seconds on imports.  Here
``redactory`` and ``python`` on a PATH are small clients that hand their arguments, folder, environment and
standard streams to this process; the child it forks does what the real command does, from its console
script on.

    warm.py serve SOCKET            warm.py ask SOCKET redactory|python ARGUMENTS…
"""

import os
import socket
import sys

_LATE_IMPORTS = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.serialization",
    "datasketch",
    "fsspec.implementations.local",
    "nupunkt",
    "pandas",
    "pyarrow.acero",
    "pyarrow.dataset",
    "torch._dynamo",  # the first optimizer imports it
)
"""What commands import when they need it."""
_TEXT = "I am Rose Chase from 4 Mill Lane, Oakham: call +44 1572 722000 about order 4711-22."


def send_command(path: str, command: list[str]) -> int:
    """Have ``command`` carried out with this process's streams; its exit status."""
    import json

    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        request = json.dumps({"command": command, "folder": os.getcwd(), "environment": dict(os.environ)})
        socket.send_fds(server, [len(request.encode()).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(request.encode())
        return server.recv(1)[0]


def serve(path: str) -> None:
    """Answer one client after the other, each in a process of its own."""
    import json

    _import_everything()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            client, _ = listening.accept()
            with client:
                size, streams, _, _ = socket.recv_fds(client, 4, 3)
                request = json.loads(client.makefile("rb").read(int.from_bytes(size, "big")))
                child = os.fork()
                if not child:
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                    os._exit(_run_command(request))
                for stream in streams:
                    os.close(stream)
                client.sendall(bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255]))


def _run_command(request: dict) -> int:
    import traceback

    name, *arguments = request["command"]
    # as a process that starts makes them: whether a stream can be sought was found out for the server's own
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False, encoding="utf-8")  # noqa: SIM115
        for number, mode in enumerate("rww")
    )
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [name, *arguments]
    try:
        if name == "python":
            _run_python(arguments)
        else:
            from redactory.flows.cli import main

            main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run_python(arguments: list[str]) -> None:
    """A script with its arguments and the modules beside it, or what stands on standard input."""
    if arguments and arguments[0] != "-":
        import runpy

        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        # as `python -` does: the modules of the folder it is started in
        sys.path.insert(0, "")
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})


def _import_everything() -> None:
    """Import, and read one text: whatever starts a thread would be broken in the children."""
    import gc
    from functools import cache
    from importlib import import_module

    gc.disable()
    for name in (*_LATE_IMPORTS, "redactory.training.train"):
        import_module(name)

    import typer.main

    import redactory
    from redactory.detectors import DetectSettings, compute_policy_hashes
    from redactory.evaluation import report as model_report
    from redactory.flows.cli import app
    from redactory.pipelines.curation.stages import examples

    for name in redactory.__all__:
        getattr(redactory, name)
    settings = DetectSettings()
    list(examples.load_detector(settings.model_dump_json(), *compute_policy_hashes(settings).values()).detect([_TEXT]))
    templates = model_report._create_environment("redactory.evaluation")
    for name in templates.list_templates(["j2"]):
        templates.get_template(name)
    # the tree of commands, which a process makes once
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    # no child is to look through, and so to copy, what it only shares
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        raise SystemExit(send_command(sys.argv[2], sys.argv[3:]))
