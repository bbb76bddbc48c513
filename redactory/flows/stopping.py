"""SIGTERM, by which schedulers and service managers stop a process: ended in order, as by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM
_asked = threading.Event()


class Stopped(KeyboardInterrupt):
    """SIGTERM came: whatever ends a work in order where it is interrupted ends it now."""


def end_in_order() -> None:
    """From now on SIGTERM raises :class:`Stopped` where this process is at work; a second one ends it.

    Where the signal is ignored or somebody else answers it, and in any thread but the main one, all stays as
    it is.
    """
    _asked.clear()
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)


def was_asked() -> bool:
    """Whether SIGTERM has come: an error that follows, of a worker that was ended with us, is its doing."""
    return _asked.is_set()


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _asked.set()
    raise Stopped
