"""No core dumps: a process that crashes would leave its memory, and so the corpus, in a file."""

from __future__ import annotations


def forbid_core_dumps() -> None:
    """From now on neither this process nor one that it starts writes a core file; it cannot be undone.

    Handlers that are piped the dump (systemd-coredump, apport) go by the same limit.
    """
    try:
        import resource
    except ImportError:
        return  # not a Unix: there is no such file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
