"""What Presidio says and asks while it runs: its warnings heard, its logs silenced, no host asked."""

from __future__ import annotations

import logging
import threading


class _Timeouts(threading.local):
    """Presidio tells of a time-out by a warning alone; this keeps it, for each thread, as a flag."""

    seen = False


timeouts = _Timeouts()


def listen() -> None:
    """Hear Presidio's warnings however logging is set up, and keep its messages out of every log.

    Its messages quote matches and context words.  A log handler or filter would miss a warning under
    ``logging.disable`` or a higher level, and a time-out that is missed is a text let through.
    """
    logger = logging.getLogger("presidio-analyzer")
    vars(logger)["warning"] = _note
    if _silent not in logger.filters:
        logger.addFilter(_silent)


def stay_offline() -> None:
    """Keep the e-mail recognizer from fetching the list of public suffixes."""
    import tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def _note(message: object, *_: object, **__: object) -> None:
    if "timed out" in str(message):
        timeouts.seen = True


def _silent(record: logging.LogRecord) -> bool:
    return False
