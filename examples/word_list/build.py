"""Build the public word list of the conservative rule ``word`` from Debian's English word lists.

    python examples/word_list/build.py AMERICAN BRITISH redactory/detectors/words/en.txt.gz

AMERICAN and BRITISH are ``american-english`` and ``british-english`` of the packages wamerican and wbritish,
2020.12.07-2 (SCOWL, size 50; its notice stands beside the result).  The rule makes a point private when it
holds a word that is **not** in the result: to leave a word out costs public points, and to let one in that
is somebody's name, in small letters, can cost a secret.

What gets in:

1. Entries in small letters, letters only.  Proper nouns have no such entry, so "anna", "london", "monday",
   "january" and "english" are out.  Endings such as 's are the rule's business.  Accented words
   get in without their accents too ("cafe").
2. Less short entries that ``short.txt`` has not ("ca", "fl", "mu"), Roman numerals, and ``left_out.txt``:
   abbreviations that stand in addresses, dates and quantities, and a few given names.
3. Less the words that are also a name, unless ``kept.txt`` has them.  A name is what the dictionaries also
   have with a capital (people, places, peoples, brands) and what Faker's lists of given and family names in
   ``LOCALES`` have: 1,440 words.
4. And ``added.txt``: words of chats, support and the web that the dictionaries lack.

The trade-off of ``kept.txt``.  A word was kept when, met in small letters in everyday English, it is the
name less than about one time in fifty; all 1,440 were read and judged.  Kept are half of them: "will",
"may", "hope", "bill", "price", "brown", "said", "key", "miles".  Out went those that are rare as words or
common as names or brands: "mark", "rose", "grant", "smith", "frank", "jack", "grace", "dawn", "chase",
"max", "apple", "visa", "ups"; months and days ("march", "august", "sat"); peoples, parties and faiths
("french", "republican", "catholic"), which labelled data count as secrets.  A kept name still counts where it
is capitalised (rules ``capital`` and ``name``), where an engine tags it, and where the name beside it is no
word: "will smith" is caught by "smith".  What is left is a kept name that stands alone in small letters.

The result depends on the two files, the four lists beside this script and Faker's version alone.
"""

from __future__ import annotations

import gzip
import re
import sys
import unicodedata
from importlib import import_module
from pathlib import Path

LOCALES = (
    *("en_US", "en_GB", "en_IE", "en_IN", "en_NZ", "es_ES", "es_MX", "de_DE"),
    *("fr_FR", "it_IT", "nl_NL", "pt_BR", "pl_PL", "sv_SE"),
)
ROMAN = re.compile("m{0,3}(cm|cd|d?c{0,3})(xc|xl|l?x{0,3})(ix|iv|v?i{0,3})")
NOT_ROMAN = frozenset({"mix"})


def words(entries: set[str]) -> set[str]:
    """The word list made of the entries of all dictionaries."""
    small = {entry for entry in entries if entry.islower() and entry.isalpha()}
    small |= {_without_accents(word) for word in small}
    numerals = {word for word in small if ROMAN.fullmatch(word)} - NOT_ROMAN
    long = {word for word in small if len(word) > 2} - numerals
    names = (names_of_faker() | names_in(entries)) - beside("kept")
    return (long - names - beside("left_out")) | beside("short") | beside("added")


def names_in(entries: set[str]) -> set[str]:
    """The capitalised entries, in small letters."""
    return {entry.lower() for entry in entries if entry[:1].isupper()}


def names_of_faker() -> set[str]:
    """Every given and family name of Faker's lists, in small letters."""
    found: set[str] = set()
    for locale in LOCALES:
        provider = import_module(f"faker.providers.person.{locale}").Provider
        for listed in (getattr(provider, attribute) for attribute in dir(provider) if "name" in attribute):
            if isinstance(listed, list | tuple | set | dict):
                found.update(name.lower() for name in listed if isinstance(name, str))
    return found


def beside(name: str) -> set[str]:
    """The words of ``name``.txt beside this script; lines that start with # are comments."""
    lines = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return {word for line in lines if not line.startswith("#") for word in line.split()}


def _without_accents(word: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))


def main(american: str, british: str, out: str) -> None:
    """Read the two dictionaries and write the list, sorted, one word a line, as reproducible gzip."""
    entries = {line for path in (american, british) for line in Path(path).read_text("utf-8").splitlines()}
    made = sorted(words(entries))
    Path(out).write_bytes(gzip.compress("".join(f"{word}\n" for word in made).encode("utf-8"), 9, mtime=0))
    print(len(made), "words,", Path(out).stat().st_size, "bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
