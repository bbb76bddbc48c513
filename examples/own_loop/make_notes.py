"""Writes ``notes.jsonl``: invented notes of a service desk, some of which name a caller."""

import json
import random
from pathlib import Path

NAMES = ("Ada Smith", "Ben Carter", "Grace Miller", "Oscar Lee", "Ruth Adams", "Hugo Brown")
THINGS = ("printer", "screen", "mouse", "phone", "laptop", "badge")
DONE = ("was replaced", "works again", "is on its way", "was sent back", "needs a new cable")


def main() -> None:
    draw = random.Random(7)
    with Path("notes.jsonl").open("w", encoding="utf-8") as out:
        for number in range(240):
            thing, done = draw.choice(THINGS), draw.choice(DONE)
            text = f"The {thing} {done}."
            if number % 2:
                text = f"{draw.choice(NAMES)} called at 555-01{number:02d}: the {thing} {done}."
            out.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    main()
