"""Names, keys and words that still work and will go: a table of them, and what is told of their use."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from redactory.foundation.errors import ConfigurationError


class Deprecated(NamedTuple):
    """What is public still, and will go.

    ``now`` is what it leads to: a public name, a key, a command or an option.  ``since`` is the version that
    deprecated it, ``gone`` the one without it; ``mend`` says in words what to write instead.
    """

    now: str
    since: str
    gone: str
    mend: str

    def told(self, what: str) -> str:
        """One sentence about ``what``, the old name."""
        return f"{what} is deprecated since {self.since} and goes with {self.gone}: {self.mend}"


class DeprecatedUse(DeprecationWarning):
    """An old key of a configuration, or an old word on the command line, which shows it on standard error."""


def with_new_keys(
    given: Mapping[str, Any], table: Mapping[str, Deprecated], where: str = ""
) -> Mapping[str, Any]:
    """``given`` with each old key of ``table`` under its new one, and a :class:`DeprecatedUse` for each.

    Keys are paths like ``dedup.mode``, through sections and not through lists.  ``where`` begins a message,
    like "job.yaml: ".  ``ConfigurationError`` where an old and a new key of one thing are both given.  A key
    of no table is left as it is: it is refused where the configuration is checked.
    """
    for old, entry in table.items():
        if not _has(given, old):
            continue
        if _has(given, entry.now):
            raise ConfigurationError(
                f"{where}{old}: this is the old name of {entry.now}, which is given as well; remove {old}"
            )
        given = _moved(given, old, entry.now)
        warnings.warn(entry.told(f"{where}{old}"), DeprecatedUse, stacklevel=2)
    return given


def with_new_words(arguments: Sequence[str], table: Mapping[str, Deprecated]) -> list[str]:
    """The words behind ``redactory`` with those of ``table`` in their new form, each told as above.

    The table has commands, like ``labels export``, and options behind their command in its new form, like
    ``curate --folder``.  What follows ``--`` is no option.
    """
    words = list(arguments)
    for old, entry in table.items():
        *command, last = old.split()
        if not last.startswith("-"):
            old_command = [*command, last]
            if words[: len(old_command)] == old_command:
                words[: len(old_command)] = entry.now.split()
                warnings.warn(entry.told(f"redactory {old}"), DeprecatedUse, stacklevel=2)
        elif words[: len(command)] == command:
            words = _with_new_option(words, last, old, entry)
    return words


def _with_new_option(words: list[str], option: str, old: str, entry: Deprecated) -> list[str]:
    end = words.index("--") if "--" in words else len(words)
    new = entry.now.split()[-1]
    # --name=value as well
    changed = [new + word[len(option) :] if word.split("=")[0] == option else word for word in words[:end]]
    if changed != words[:end]:
        warnings.warn(entry.told(f"redactory {old}"), DeprecatedUse, stacklevel=3)
    return changed + words[end:]


def _has(given: Mapping[str, Any], path: str) -> bool:
    section: Any = given
    for key in path.split("."):
        if not isinstance(section, Mapping) or key not in section:
            return False
        section = section[key]
    return True


def _moved(given: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    """A copy with the value at ``old`` at ``new``; as it is where ``new`` would lie in what is no section."""
    whole = copy.deepcopy(dict(given))
    source, last = _section(whole, old)
    target, name = _section(whole, new)
    if source is None or target is None:
        return given
    target[name] = source.pop(last)
    return whole


def _section(whole: dict[str, Any], path: str) -> tuple[MutableMapping[str, Any] | None, str]:
    """The section that the key at ``path`` belongs in, made where there is none yet, and the key's name."""
    *sections, last = path.split(".")
    here: Any = whole
    for key in sections:
        here = here.setdefault(key, {}) if isinstance(here, MutableMapping) else None
    return (here if isinstance(here, MutableMapping) else None), last
