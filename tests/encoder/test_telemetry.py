"""The encoder's library leaves no usage events behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENCODE = """
from redactory.encoder import DEFAULT_FOLDER, load_encoder
load_encoder(DEFAULT_FOLDER).encode("Mary Smith lives in Berlin.")
"""


def test_the_encoder_keeps_no_usage_events(tmp_path: Path) -> None:
    """Its library stores a device id and queued events in the home folder unless they are switched off."""
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), str(tmp_path))
    environment = {**os.environ, **places, "ORT_DISABLE_TELEMETRY": "0"}
    subprocess.run([sys.executable, "-B", "-c", ENCODE], env=environment, check=True)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
