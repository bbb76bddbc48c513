"""Python starts here, in every process of a leak test: see ``tests/flows/leak_sabotage.py``."""

import os

if os.environ.get("LEAK_CORPUS"):
    from tests.flows import leak_sabotage

    leak_sabotage.begin()
