"""Pattern recognizers that Presidio lacks and everyday corpora need.

Addresses, postal codes, ages, titles, dates in words, keys of programs, and numbers, codes and contacts in
the forms that people write.  The forms are general; those that plain text shares stand at a doubtful score,
which π_c sees and π does not, until a context word raises it.
"""

from __future__ import annotations

from redactory.detectors.recognizers import accounts, addresses, contacts, dates
from redactory.detectors.recognizers.family import Family

FAMILIES: tuple[Family, ...] = (
    *addresses.FAMILIES,
    *contacts.FAMILIES,
    *dates.FAMILIES,
    *accounts.FAMILIES,
)
