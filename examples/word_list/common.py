"""Build the shipped public vocabulary's list of common words from the Debian package scowl.

    python examples/word_list/common.py SCOWL redactory/detectors/words/common.txt.gz

SCOWL is the folder ``/usr/share/dict/scowl`` of the package, 2020.12.07-2.  Its lists of size 10 and 20 are
the most common words of English, American and British, in two steps of frequency; the smaller list comes
first, a blank line after it, then what the larger one adds.  Words in small letters alone.
"""

import gzip
import sys
from pathlib import Path


def listed(folder: Path, size: int) -> set[str]:
    """The words of one size, letters only."""
    files = [folder / f"{kind}-words.{size}" for kind in ("english", "american", "british")]
    found = {word for file in files if file.exists() for word in file.read_text("latin-1").split()}
    return {word for word in found if word.isalpha() and word.islower()}


def main(scowl: str, out: str) -> None:
    """Write the list as reproducible gzip."""
    most, more = (listed(Path(scowl), size) for size in (10, 20))
    lines = [*sorted(most), "", *sorted(more - most)]
    Path(out).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))
    print(len(lines) - 1, "words,", Path(out).stat().st_size, "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
