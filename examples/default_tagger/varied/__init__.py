"""Varied rows: short English texts of many sorts, with the place of every sensitive thing.

A token tagger trained on them should generalise to texts of any kind, so everything varies: the sort of text
(chat, e-mail, news, forms, contracts, log lines, ...), the names (of many languages, and invented), the
casing, the typing.  Everything is invented; a name that somebody bears is a coincidence.

What counts as sensitive, and is labelled wherever it stands:

* ``PERSON``: given names, surnames, both, initials, nicknames, with particles and suffixes; the possessive
  's is outside.  ``TITLE``: Mr., Dr, Prof. and the like beside a name.  ``AGE``: the number, or the phrase
  ("42", "42 years old", "mid-30s").  ``NRP``: nationality, religion, political group, languages too.
* ``ORGANIZATION``; ``LOCATION`` (towns, states, countries, regions, landmarks; "Oslo, Norway" is two);
  ``STREET_ADDRESS`` (one span from the house number to the country); ``POSTAL_CODE`` where it stands alone;
  ``MISC`` (works, events, products with proper names).  A leading "the" is outside.
* ``DATE_TIME``: a date with a day or a year, a year alone; the time of day only within a stamp.
* ``PHONE_NUMBER``, ``EMAIL_ADDRESS`` ("jo at example dot com" too), ``URL`` (bare domains, @handles),
  ``IP_ADDRESS``, ``CREDIT_CARD``, ``IBAN_CODE``, ``US_SSN``, ``ACCOUNT`` (bank, customer, policy, member
  numbers, user names, wallets; also their last digits), ``IDENTIFIER`` (orders, tracking, tickets, passports,
  licences, plates, serials, bookings, flights, codes, keys).

Not sensitive: a time of day, a weekday or a month alone, "yesterday", prices, percentages, measures, counts,
steps and versions, trades and roles, headings ("Terms and Conditions"), common goods.
"""

from varied.rows import varied_rows

__all__ = ["varied_rows"]
