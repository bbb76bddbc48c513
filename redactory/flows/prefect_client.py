"""What is asked of a Prefect server: its address, a work pool, a limit on tasks, no more schedules."""

from __future__ import annotations

from redactory.foundation.errors import ConfigurationError


def server_address() -> str | None:
    """The API that Prefect's settings name (``PREFECT_API_URL`` or a profile), or None."""
    try:
        from prefect.settings import PREFECT_API_URL
    except ImportError:
        raise ConfigurationError("this needs Prefect: pip install 'redactory[flows]'") from None
    address: str | None = PREFECT_API_URL.value()
    return address or None


def make_pool(name: str) -> None:
    """A work pool whose workers start processes, unless there is one of that name."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def drop_schedules(deployment: str) -> None:
    """Take what an earlier registration scheduled: Prefect keeps it where the new one has no schedule."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(deployment)
        for schedule in found.schedules:
            client.delete_deployment_schedule(found.id, schedule.id)


def limit_tasks(at_once: int) -> None:
    """At most ``at_once`` tasks of ours at a time, over all runs on the server."""
    from prefect.client.orchestration import get_client

    from redactory.flows.prefect_tasks import TAG

    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag=TAG, concurrency_limit=at_once)
