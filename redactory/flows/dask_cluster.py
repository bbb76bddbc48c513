"""A Dask cluster for one command: processes of its own, or a client of one that runs already."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.wire import SECURE, check_wire

LOCAL = "local"
PATIENCE = 20.0
"""Seconds until a scheduler answers, and until its first worker is there."""
_SETTINGS = {
    # what is in memory stays there: results are counts
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    # no pages: a scheduler listens for requests for them even without a dashboard
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def check_dask(dask: str) -> None:
    """``ConfigurationError`` unless ``dask`` is ``local`` or an address that is safe to send a run to."""
    if dask != LOCAL:
        check_wire(dask, "--dask")


@contextmanager
def cluster(dask: str, workers: int, folder: Path) -> Iterator[Any]:
    """A client of ``workers`` processes that live until the context ends, or of the scheduler at ``dask``.

    Dask's own files lie in ``folder``.  Processes of ours speak TLS with a certificate that is drawn for
    them: on an open port of this machine every user of it could give them work, or ask for what they have.
    """
    check_dask(dask)
    dask_itself, distributed = _dask()
    with dask_itself.config.set({**_SETTINGS, "temporary-directory": str(folder)}), _quiet():
        if dask == LOCAL:
            with _processes(distributed, workers, folder) as own, _client(distributed, own, None) as client:
                yield client
        else:
            with _client(distributed, dask, _security(distributed, dask)) as client:
                try:
                    client.wait_for_workers(1, timeout=PATIENCE)
                except TimeoutError:
                    raise RunStateError(f"--dask: no worker is connected to {dask}; start some") from None
                yield client


def _dask() -> tuple[Any, Any]:
    try:
        import dask
        import distributed
    except ImportError:
        raise ConfigurationError("--dask needs Dask: pip install 'redactory[dask]'") from None
    return dask, distributed


@contextmanager
def _processes(distributed: Any, workers: int, folder: Path) -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=workers,
        # the engines compute in one thread, and a process does one part at a time
        threads_per_worker=1,
        security=distributed.Security.temporary(),
        local_directory=str(folder),
        memory_limit=0,
        dashboard_address=None,
        # the port that it listens on all the same, without a page: any that is free
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=logging.CRITICAL,
    ) as own:
        yield own


def _security(distributed: Any, address: str) -> Any:
    """Dask's own settings of certificates, which ``tls://`` needs."""
    if not address.startswith(f"{SECURE}://"):
        return None
    security = distributed.Security(require_encryption=True)
    if not (security.tls_ca_file and security.tls_client_cert and security.tls_client_key):
        raise ConfigurationError(
            f"--dask: {address} needs certificates: set Dask's distributed.comm.tls.ca-file, client.cert and "
            "client.key (in its configuration, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on)"
        )
    return security


@contextmanager
def _client(distributed: Any, at: Any, security: Any) -> Iterator[Any]:
    try:
        connected = distributed.Client(at, timeout=PATIENCE, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(
            f"--dask: no scheduler answers at {at} as it should ({type(error).__name__})"
        ) from None
    with connected as client:
        yield client


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask's own words stay unsaid here: what went wrong is told by us."""
    loggers = [logging.getLogger(name) for name in ("distributed", "dask")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
