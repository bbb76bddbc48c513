"""Write harmless texts, alone and beside rows with names: names of programs and products, codes, greetings, times.

    python examples/encoder_tagger/harmless.py ROWS OUT

OUT has rows like those of ``rows.py``. In none of the added lines is anything sensitive.
"""

from __future__ import annotations

import argparse
import json
import random
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

SEED, ALONE, BESIDE, MOST_CHARS = 77, 16_000, 5_000, 400
_DATA: dict[str, list[str]] = yaml.safe_load((Path(__file__).parent / "templates" / "harmless.yaml").read_text("utf-8"))
_STATUS = (200, 201, 204, 301, 304, 400, 401, 403, 404, 408, 409, 418, 422, 429, 500, 502, 503, 504)
_SIZES = (480, 600, 640, 720, 768, 800, 900, 1024, 1080, 1200, 1280, 1366, 1440, 1600, 1920, 2160, 2560, 3440, 3840)
_PORTS = (80, 443, 3000, 5000, 5432, 8000, 8080, 8443, 9090)
_KINDS = ("about_tools", "about_products", "other_languages", "greetings", "technical", "about_times")
_WEIGHTS = (27, 27, 15, 7, 16, 8)


class Harmless:
    """Draws harmless lines from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._packages = sorted(name for d in metadata.distributions() if (name := d.metadata["Name"]))

    def draw_line(self) -> str:
        """One line."""
        [kind] = self._draw.choices(_KINDS, _WEIGHTS)
        line = self._draw.choice(_DATA[kind])
        return line if kind == "greetings" else line.format(**self._draw_values())

    def draw_text(self) -> str:
        """One to four lines."""
        count = self._draw.choice((1, 1, 1, 2, 3, 4))
        return self._draw.choice((" ", "\n")).join(self.draw_line() for _ in range(count))

    def put_beside(self, row: dict[str, Any]) -> dict[str, Any]:
        """Put lines before or behind the text of ``row``, or both."""
        before = self.draw_line() if self._draw.random() < 0.5 else ""
        behind = self.draw_line() if self._draw.random() < 0.7 or not before else ""
        gap = self._draw.choice((" ", "\n"))
        shift = len(before + gap) if before else 0
        spans = [{**s, "start": s["start"] + shift, "end": s["end"] + shift} for s in row["spans"]]
        text = gap.join(filter(None, (before, row["text"], behind)))
        ignored = [[start + shift, end + shift] for start, end in row["ignored"]]
        return {"text": text, "spans": spans, "ignored": ignored, "source": "harmless.beside"}

    def _draw_values(self) -> dict[str, Any]:
        draw, number = self._draw, self._draw.randrange
        tool, other = self._draw_tool(), self._draw_tool()
        digits = "".join(draw.choices("0123456789abcdef", k=draw.choice((4, 8))))
        version = draw.choice((f"{number(1, 20)}.{number(30)}", f"{number(9)}.{number(30)}.{number(12)}"))
        return {
            "t": tool, "u": other, "w": tool.lower().replace(" ", "-"), "v": version, "p": self._draw_product(),
            "q": self._draw_product(), "port": draw.choice(_PORTS), "port2": draw.choice(_PORTS),
            "r": draw.choice(_DATA["times"]), "r2": draw.choice((number(1, 60), 120, 300, 3_600)),
            "c": draw.choice(_STATUS), "m": draw.choice(("Not Found", "Service Unavailable", "Unauthorized", "OK")),
            "h": draw.choice(("1.1", "2", "1.0")), "e": number(100, 9_999), "x": digits,
            "fault": draw.choice(("TIMEOUT", "ACCESS", "CONFIG", "NETWORK", "DISK")), "x2": digits[:4],
            "s": f"{number(1, 60)}{draw.choice('ABCDEF')}", "s2": f"{draw.choice('ABC')}{number(1, 60)}",
            "y": number(2015, 2027), "d": number(10), "d2": number(10), "a": draw.choice(_SIZES),
            "b": draw.choice(_SIZES), "z": draw.choice(("west", "east", "central", "north")), "n": number(2, 250),
            "m2": number(5, 300), "w2": draw.choice(("acme", "sample", "demo", "test")),
        }  # fmt: skip

    def _draw_tool(self) -> str:
        return self._draw.choice(_DATA["tools"] if self._draw.random() < 0.75 else self._packages)

    def _draw_product(self) -> str:
        start, end = self._draw.choice(_DATA["product_starts"]), self._draw.choice(_DATA["product_ends"])
        forms = (start + end, f"{start} {end}", start + end.lower(), start, f"{start}-{end}", f"{end}ify")
        number = self._draw.choice((self._draw.randrange(2, 99), self._draw.randrange(100, 990), 2_000, 3_000))
        letter, minor = self._draw.choice("ABCDGHKLMNPRSTVWXZ"), self._draw.randrange(1, 10)
        return self._draw.choice(forms) + self._draw.choice(_DATA["models"]).format(n=number, l=letter, m=minor)


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description="harmless rows for the encoder")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="the share of the texts that is made")
    arguments = parser.parse_args()
    harmless = Harmless(SEED)
    texts = dict.fromkeys(harmless.draw_text() for _ in range(round(arguments.share * ALONE)))
    rows: list[dict[str, Any]] = [{"text": t, "spans": [], "ignored": [], "source": "neg.harmless"} for t in texts]
    named = [json.loads(line) for line in arguments.rows.open(encoding="utf-8")]
    short = [row for row in named if len(row["text"]) <= MOST_CHARS]
    rows += map(harmless.put_beside, random.Random(SEED).sample(short, round(arguments.share * BESIDE)))
    arguments.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
