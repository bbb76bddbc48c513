"""What people labelled in a sample: read, checked against the draw, and one secret taken of each point.

Nothing is guessed: a row that is missing, strange, changed or out of bounds is refused, with its number and
point id and without its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.evaluation.label_studio import UnreadableTask, read_task
from redactory.evaluation.labelled_sample import Marked
from redactory.foundation.errors import InputError
from redactory.foundation.keys import DigestKey
from redactory.foundation.stream import RandomStream

_NAMED = 5


@dataclass(frozen=True)
class DrawnText:
    """What the record of a draw keeps of a text: no word of it.

    ``times`` is how often it was drawn, or occurs where its stratum is labelled whole; ``digest`` is keyed
    (:func:`text_digest`); ``prefilled`` are the spans that the labeller was shown, ``masked`` the places
    that π masks.
    """

    point_id: int
    stratum: str
    times: int
    digest: str
    prefilled: tuple[Marked, ...]
    masked: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LabelledText:
    """A drawn text with its labelled secrets, in order and each once."""

    drawn: DrawnText
    text: str
    secrets: tuple[Marked, ...]

    @property
    def changed(self) -> bool:
        """Whether the labeller left anything else than was filled in."""
        return set(self.secrets) != set(self.drawn.prefilled)


def text_digest(text: str, key: DigestKey) -> str:
    """The keyed digest by which a text is told again."""
    return key.text_digest(key.purpose("audit sample"), text.encode()).hex()


def read_labels(path: Path, drawn: Sequence[DrawnText], key: DigestKey) -> list[LabelledText]:
    """The labelled sample of ``path`` in the order of ``drawn``: JSON lines, or Label Studio's JSON export.

    ``InputError``, with row and point id, unless the rows are those of the draw, each once, with the text
    unchanged and every span {start, end, label} inside it.
    """
    expected = {entry.point_id: entry for entry in drawn}
    found: dict[int, LabelledText] = {}
    for number, row in _rows(path):
        where = f"{path.name}, row {number}"
        point_id = _point_id(row, where)
        where += f" (point {point_id})"
        if point_id not in expected:
            raise InputError(f"{where}: this point is not in the sample")
        if point_id in found:
            raise InputError(f"{where}: this point stands in an earlier row too")
        text, entry = row.get("text"), expected[point_id]
        if not isinstance(text, str) or text_digest(text, key) != entry.digest:
            raise InputError(f"{where}: its text is not the text of the sample; only 'spans' may change")
        found[point_id] = LabelledText(entry, text, _secrets(row.get("spans"), len(text), where))
    missing = [entry.point_id for entry in drawn if entry.point_id not in found]
    if missing:
        some = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
        raise InputError(
            f"{path.name}: {len(missing)} of the sample's {len(drawn)} texts are missing (point {some}); a "
            "text without a secret is a row with no spans"
        )
    return [found[entry.point_id] for entry in drawn]


def secrets_drawn(row: LabelledText, stream: RandomStream) -> Iterator[Marked]:
    """One secret, each alike, for every draw of a text that holds one: what makes draws independent units.

    The coins go with the point's id: neither the order of rows nor that of spans changes what is drawn.
    """
    if row.secrets:
        coins = stream.uniform("one secret of a point", 0, row.drawn.times, index=row.drawn.point_id)
        yield from (row.secrets[int(coin * len(row.secrets))] for coin in coins)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(row number from 1, row) of either format."""
    number = 0
    try:
        text = path.read_text(encoding="utf-8")
        exported = text.lstrip().startswith("[")
        entries = json.loads(text) if exported else (line for line in text.split("\n") if line.strip())
        for number, entry in enumerate(entries, 1):
            row = read_task(entry) if exported else json.loads(entry)
            if not isinstance(row, dict):
                raise InputError(f"{path.name}, row {number}: a JSON object is needed")
            yield number, row
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read: {error.strerror}; give the sample's labelled JSON lines, or Label "
            "Studio's JSON export"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name}, after row {number}: no JSON ({type(error).__name__})") from None
    except InputError:
        raise
    except UnreadableTask as error:
        raise InputError(f"{path.name}, row {number}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputError(
            f"{path.name}, row {number}: neither a row of the sample nor a task of Label Studio's JSON "
            f"export ({type(error).__name__})"
        ) from None


def _point_id(row: Mapping[str, Any], where: str) -> int:
    given = row.get("point_id", row.get("id"))
    if isinstance(given, int) or (isinstance(given, str) and given.isascii() and given.isdigit()):
        return int(given)
    raise InputError(
        f"{where}: it has no 'point_id'; label the rows of the sample, and change their spans alone"
    )


def _secrets(spans: Any, length: int, where: str) -> tuple[Marked, ...]:
    if not isinstance(spans, list):
        raise InputError(f"{where}: 'spans' must be a list, empty where the text holds no secret")
    secrets = set()
    for number, span in enumerate(spans, 1):
        if not isinstance(span, dict) or not all(type(span.get(key)) is int for key in ("start", "end")):
            raise InputError(f"{where}: span {number} needs whole numbers 'start' and 'end'")
        if not 0 <= span["start"] < span["end"] <= length:
            raise InputError(f"{where}: span {number} does not lie in the text of {length} code points")
        if not isinstance(span.get("label"), str):
            raise InputError(f"{where}: span {number} needs a 'label'")
        secrets.add(Marked(span["start"], span["end"], span["label"]))
    return tuple(sorted(secrets))
