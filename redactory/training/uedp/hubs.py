"""Ready-made public allow-lists: values that stand everywhere and say nothing about anybody.

They are fixed here, before any corpus is seen; a list that is made by looking at the corpus's most
frequent entities is no public list.
"""

from __future__ import annotations

from redactory.foundation.errors import ConfigurationError

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
_COUNTRIES = (
    "Afghanistan|Albania|Algeria|Andorra|Angola|Argentina|Armenia|Australia|Austria|"
    "Azerbaijan|Bahamas|Bahrain|Bangladesh|Barbados|Belarus|Belgium|Belize|Benin|Bhutan|"
    "Bolivia|Bosnia and Herzegovina|Botswana|Brazil|Brunei|Bulgaria|Burkina Faso|Burundi|"
    "Cambodia|Cameroon|Canada|Cape Verde|Central African Republic|Chad|Chile|China|Colombia|"
    "Comoros|Congo|Costa Rica|Croatia|Cuba|Cyprus|Czech Republic|Czechia|Denmark|Djibouti|"
    "Dominica|Dominican Republic|Ecuador|Egypt|El Salvador|Equatorial Guinea|Eritrea|Estonia|"
    "Eswatini|Ethiopia|Fiji|Finland|France|Gabon|Gambia|Georgia|Germany|Ghana|Greece|"
    "Grenada|Guatemala|Guinea|Guyana|Haiti|Honduras|Hungary|Iceland|India|Indonesia|Iran|"
    "Iraq|Ireland|Israel|Italy|Ivory Coast|Jamaica|Japan|Jordan|Kazakhstan|Kenya|Kiribati|"
    "Kosovo|Kuwait|Kyrgyzstan|Laos|Latvia|Lebanon|Lesotho|Liberia|Libya|Liechtenstein|"
    "Lithuania|Luxembourg|Madagascar|Malawi|Malaysia|Maldives|Mali|Malta|Mauritania|"
    "Mauritius|Mexico|Micronesia|Moldova|Monaco|Mongolia|Montenegro|Morocco|Mozambique|"
    "Myanmar|Namibia|Nauru|Nepal|Netherlands|New Zealand|Nicaragua|Niger|Nigeria|"
    "North Korea|North Macedonia|Norway|Oman|Pakistan|Palau|Palestine|Panama|"
    "Papua New Guinea|Paraguay|Peru|Philippines|Poland|Portugal|Qatar|Romania|Russia|"
    "Rwanda|Samoa|San Marino|Saudi Arabia|Senegal|Serbia|Seychelles|Sierra Leone|Singapore|"
    "Slovakia|Slovenia|Solomon Islands|Somalia|South Africa|South Korea|South Sudan|Spain|"
    "Sri Lanka|Sudan|Suriname|Sweden|Switzerland|Syria|Taiwan|Tajikistan|Tanzania|Thailand|"
    "Timor-Leste|Togo|Tonga|Trinidad and Tobago|Tunisia|Turkey|Turkmenistan|Tuvalu|Uganda|"
    "Ukraine|United Arab Emirates|United Kingdom|UK|United States|United States of America|"
    "USA|U.S.|US|Uruguay|Uzbekistan|Vanuatu|Vatican City|Venezuela|Vietnam|Yemen|Zambia|"
    "Zimbabwe"
)
COUNTRIES = tuple(_COUNTRIES.split("|"))
LISTS = {"months": MONTHS, "weekdays": WEEKDAYS, "countries": COUNTRIES}
_TIMES = frozenset({"DATE_TIME", "DATE", "TIME"})
_PLACES = frozenset({"LOCATION", "LOC", "GPE", "COUNTRY", "NRP", "NORP"})
LABELS = {"months": _TIMES, "weekdays": _TIMES, "countries": _PLACES}
"""The labels that a list speaks of: April the month stands everywhere, April the person does not."""


def hub_list(name: str) -> tuple[str, ...]:
    """One of the lists by name; ``ConfigurationError`` for another name."""
    try:
        return LISTS[name]
    except KeyError:
        raise ConfigurationError(f"entities.hubs: the lists are {', '.join(sorted(LISTS))}") from None
