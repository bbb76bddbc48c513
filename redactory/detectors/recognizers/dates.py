"""Dates in words, dates with a time, dates of birth and of expiry."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import Trigger, trigger

_LONG = """
january february april june july august september october november december januar januari februar
februari märz maerz maart mai juni juli augustus oktober dezember desember janvier février fevrier avril
juin juillet août aout septembre octobre novembre décembre enero febrero marzo abril mayo junio julio
agosto septiembre octubre noviembre diciembre gennaio febbraio aprile maggio giugno luglio settembre
ottobre dicembre janeiro fevereiro março maio junho julho setembro outubro novembro dezembro stycznia
lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia jan feb febr mar
apr jun jul aug sept sep oct okt nov dec dez
"""
_MONTHS = Terms(_LONG + "may march mars mei maj")
# in small letters these are other words too
_SURE_MONTHS = Terms(_LONG)
_STOP = r"(?:\.(?=[\s,]*\d))?"
_CAPITAL = rf"(?:{_SURE_MONTHS}|May|MAY|March|MARCH|Mars|Mei|Maj)\b{_STOP}"
_MONTH = rf"{_MONTHS}\b{_STOP}"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_TH = r"(?:\s?(?i:st|nd|rd|th|er|º|ª))"
_YEAR = r"(?:(?:1[5-9]|20)\d{2}|['’]\d{2})"
_YEARS = rf"(?:{_YEAR}|\d{{2}}(?![\d:%]))"
_OF = r"(?:\s+(?i:of|de)|\s+[dD]['’])?"
_COMMA_YEAR = rf"(?:\s*,?\s*(?:(?i:of|de|del|in)\s+)?{_YEAR}\b)?"
_TIME = (
    r"(?:,?\s+(?:(?i:at|um|à|"
    r"a\s+las)\s+)?\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:\s?(?i:[ap]\.?m\.?)(?!\w))?"
    r"(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?)"
)
_START = r"(?<![\w$€£.,:/-])"
_ORDINALS = (
    "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|"
    "fourteenth|fifteenth|"
    "sixteenth|seventeenth|eighteenth|nineteenth|twentieth|thirtieth"
)

IN_WORDS = Family(
    "DATE_TIME",
    "DateInWords",
    {
        "day, month": Form(
            rf"{_START}{_DAY}(?:{_TH}|\.)?{_OF}[\s-]+{_CAPITAL}(?:[\s,-]+(?:(?i:de|del|"
            rf"of)\s+)?{_YEARS})?(?!\w){_TIME}?",
            STRONG,
            _MONTHS.needed(),
        ),
        "day with its ending, month in small letters": Form(
            rf"{_START}{_DAY}(?:{_TH}(?:\s+of)?|\s+of)\s+{_MONTH}{_COMMA_YEAR}{_TIME}?",
            STRONG,
            _MONTHS.needed(),
        ),
        "month, day": Form(
            rf"\b{_CAPITAL}[\s-]+(?:(?i:the)\s+)?{_DAY}{_TH}?\b"
            r"(?![:%]|[.,]\d{1,2}\b|\s*(?i:percent|people|times|pm|am)\b)"
            rf"(?:\s*,?\s*{_YEAR}\b|,\s*\d{{2}}\b(?![:.]))?{_TIME}?",
            STRONG,
            _MONTHS.needed(),
        ),
        "month in small letters, day with its ending": Form(
            rf"\b{_MONTH}\s+(?:the\s+)?{_DAY}(?:{_TH}\b|(?=,?\s+{_YEAR}\b)){_COMMA_YEAR}{_TIME}?",
            STRONG,
            _MONTHS.needed(),
        ),
        "month, year": Form(
            rf"\b{_CAPITAL}(?:\s*,?\s+(?:(?i:of|de)\s+)?|-){_YEAR}\b", SURE, _MONTHS.needed(2)
        ),
        "month in small letters, year": Form(
            rf"\b{_MONTH}\s*,?\s+(?:(?:of|de)\s+)?(?:19|20)\d{{2}}\b", SURE, _MONTHS.needed(4)
        ),
        "year, month, day": Form(
            rf"{_START}(?:19|20)\d{{2}}[\s,-]+{_CAPITAL}[\s-]+{_DAY}\b", STRONG, _MONTHS.needed(5)
        ),
        "ordinal in words": Form(
            rf"\b(?i:(?:the\s+)?(?:twenty[- ]|thirty[- ])?(?:{_ORDINALS})\s+of)\s+{_MONTH}{_COMMA_YEAR}",
            STRONG,
            Trigger(words=frozenset(_ORDINALS.split("|"))),
        ),
    },
    "date birth born until expir",
    _MONTHS.needed(0),
)

IN_NUMBERS = Family(
    "DATE_TIME",
    "DateAndTime",
    {
        "year first, time": Form(
            rf"(?<![\w./-])(?:19|20)\d{{2}}([-/.])\d{{1,2}}\1\d{{1,2}}"
            rf"(?:{_TIME}|[T ]\d{{2}}:?\d{{2}}(?::?\d{{2}}(?:\.\d{{1,9}})?)?(?:Z|[+-]\d{{2}}:?\d{{2}})?)",
            STRONG,
            trigger(8, "9999-9|9999/9|9999.9"),
        ),
        "year last, time": Form(
            rf"(?<![\w./-])\d{{1,2}}([-/.])\d{{1,2}}\1(?:\d{{4}}|\d{{2}}){_TIME}",
            STRONG,
            trigger(7, "9-9|9/9|9.9", r":\d{2}"),
        ),
        "two digits each": Form(
            r"(?<![\w./-])(?:0[1-9]|[12]\d|3[01])([-.])(?:0[1-9]|1[0-2])\1\d{2}(?![\w]|[-.]\d)",
            SURE,
            trigger(6, "99-99-99|99.99.99"),
        ),
        "year first, short": Form(
            r"(?<![\w./-])(?:19|20)\d{2}([./])\d{1,2}\1\d{1,2}(?![\w./-])",
            STRONG,
            trigger(6, "9999.9|9999/9"),
        ),
        "of birth": Form(
            r"(?i:\b(?:dob|d\.o\.b\.?|date\s+of\s+birth|birth\s?date|birthday|born(?:\s+(?:on|in))?|"
            r"geboren(?:\s+am)?|"
            r"née?\s+le|nacid[oa]\s+el|nat[oa]\s+il)(?!\p{L})(?:\s*(?:is|was|on|in|the)\b|\s*[:=-]){0,3}\s*)"
            r"\K\d{1,4}(?:[./ -]\d{1,4}){0,2}\b",
            SURE,
            trigger(1, words="dob d birth birthdate birthday born geboren né née nacido nacida nato nata"),
        ),
        "of expiry": Form(
            r"(?i:\b(?:exp|expiry|expires?|expiring|expiration|expired|valid\s+(?:until|thru|through|"
            r"till)|good\s+thru)\b"
            r"\.?(?:\s*(?:date|is|was|on|in)\b|\s*[:=-]){0,3}\s*)\K\d{1,2}\s?[/.-]\s?\d{2,4}(?![\w/.-]\d)",
            SURE,
            trigger(3, words="exp expiry expire expires expiring expiration expired valid good"),
        ),
        "day and month": Form(
            r"(?<![\w./-])(?:0?[1-9]|[12]\d|3[01])/(?:0?[1-9]|[12]\d|3[01])(?![\w/]|\.\d)",
            DOUBTFUL,
            trigger(2, "9/9"),
        ),
        "class of": Form(r"\b(?i:class\s+of)\s+\K['’]?\d{2,4}\b", FAIR, trigger(2, words="class")),
    },
    "date birth born dob",
    trigger(1),
)


# Ages and titles.


_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TENS = "twenty|thirty|forty|fourty|fifty|sixty|seventy|eighty|ninety"
_WORDS = rf"(?i:(?:{_TENS})(?:[ -](?:{_ONES}))?|{_TEENS}|{_ONES})"
_AGES = r"(?:1[0-2]\d|[1-9]?\d)"
_AGE = rf"(?:{_AGES}|{_WORDS})"
_SPAN = r"(?i:years?|yrs?|months?|mos?|weeks?|wks?|days?)"
_WHO = (
    r"(?i:i|he|she|they|we|you|who|mother|father|mom|dad|son|daughter|brother|sister|wife|husband|"
    r"child|patient|"
    r"grandmother|grandfather|baby|boy|girl|man|woman)"
)
_FREE = r"(?<![\w.,$€£/-])"
# an age ends a clause; an amount goes on to what it is an amount of
_CLAUSE_END = (
    r"(?=\s*(?:[.,;!?)]|$|\n|(?i:and|but|now|today|next|this|last|in|on|years?|yrs?|y/?o|when|or)\b))"
)
_NO_AMOUNT = (
    r"(?!\s*(?:%|°|[$€£]|[.,:/-]\d|(?i:percent|minutes?|mins?|hours?|hrs?|seconds?|miles?|km|meters?|"
    r"metres?|feet|foot|"
    r"inch(?:es)?|cm|kg|kilos?|lbs?|pounds?|dollars?|euros?|points?|times|degrees?|people|"
    r"of\s+(?:them|us|you|the)|"
    r"days?\s+(?!old)|weeks?\s+(?!old)|months?\s+(?!old)|am|pm|o'clock)\b))"
)
_OLD = "old olds young age"
_BE = "m im am is was were s be"

AGES = Family(
    "AGE",
    "Age",
    {
        "years old": Form(
            rf"{_FREE}{_AGE}(?=[\s-]*{_SPAN}[\s-]+(?i:olds?|of\s+age|young)\b)",
            STRONG,
            trigger(words=_OLD),
        ),
        "y/o": Form(
            rf"{_FREE}{_AGES}(?=[\s-]*(?i:y\.?/?o\.?|yr?s?/o|y\.o\.|yrs?\.?\s*old|years?old)(?!\w))",
            STRONG,
            trigger(1, words="y yo yr yrs ys yrsold yrold yearold yearsold"),
        ),
        "attached": Form(rf"{_FREE}{_AGES}(?i:yo|y/o|yrs?)\b", STRONG, trigger(1, words="yo y yr yrs")),
        "aged": Form(
            rf"\b(?i:aged?|ages)(?!\p{{L}})\s*(?:(?i:is|was|of|at|about|around|between)\b\s*|[:=]\s*){{0,2}}"
            rf"\K{_AGE}(?!\w){_NO_AMOUNT}",
            STRONG,
            trigger(words="age aged ages"),
        ),
        "ages": Form(
            rf"\b(?i:aged|ages)\s+{_AGE}\s*(?:,|-|–|to|and|&)\s*\K{_AGE}(?!\w){_NO_AMOUNT}",
            STRONG,
            trigger(words="aged ages"),
        ),
        "turned": Form(
            rf"\b(?i:turn|turns|turned|turning)\s+\K{_AGES}\b{_NO_AMOUNT}{_CLAUSE_END}",
            SURE,
            trigger(1, words="turn turns turned turning"),
        ),
        "I am": Form(
            rf"\b(?:(?i:i['’]m|he['’]s|she['’]s|im)|{_WHO}\s+(?i:is|was|am|were|will\s+be))\s+"
            rf"(?:(?i:only|just|now|already|almost|about|around|over|"
            rf"nearly)\s+)?\K{_AGES}\b{_NO_AMOUNT}{_CLAUSE_END}",
            FAIR,
            trigger(1, words=_BE),
        ),
        "when she was": Form(
            rf"\b(?i:when|since|while|until|before)\s+{_WHO}\s+(?i:was|were|is|turned|"
            rf"am)\s+\K{_AGE}\b{_NO_AMOUNT}",
            FAIR,
            trigger(words="when since while until before"),
        ),
        "decade of life": Form(
            r"\b(?i:in\s+(?:my|his|her|their|our|your)(?:\s+(?:early|mid|late))?[\s-]+)\K[1-9]0['’]?s\b",
            FAIR,
            trigger(2, words="my his her their our your"),
        ),
        "sex and age": Form(
            r"(?<=\()\d{1,3}(?=\s?[MF]\b)|(?<=[(,]\s?[MF]\s?[/,]?\s?)\d{2}(?=[),])",
            FAIR,
            trigger(1, words="m f"),
        ),
    },
    "age birthday old",
)

_POLITE = Terms(
    """
    Mr Mrs Ms Mx Miss Messrs Mister Madam Dr Drs Prof Professor Doctor Sir Dame Lady Lord Rev Reverend
    Herr Frau Fräulein Monsieur Mme Mlle Madame Mademoiselle Señor Señora Señorita Srta Sra Don Doña Dña
    Signor Signora Signorina Sig. Dott. Dottore Avv. Ing. Mag. Dhr Mevr Mevrouw Meneer Herra Rouva Pani
    Senhor Senhora Dra Sheikh
    """,
    "written",
)
_RANKS = Terms(
    """
    Capt Captain Col Colonel Cmdr Commander Lt Lieutenant Sgt Sergeant Cpl Corporal Pvt Adm Admiral Gen
    Maj Brig Rabbi Imam Pastor Fr Hon Supt Insp Det Atty Gov Sen Rep
    """,
    "written",
)
_OFFICES = Terms(
    """
    Judge Justice Officer Detective Inspector President Senator Governor Mayor Minister Ambassador
    Chancellor Father Sister Brother Nurse Coach General Major Chief Uncle Aunt King Queen Prince Princess
    Pope Bishop Cardinal
    """,
    "written",
)
_SMALL = Terms("mr mrs dr prof ms")
_DEGREES = "phd ph md m esq dds"
_NAME = r"\s+(?:\p{Lu}\p{L}|\p{Lu}['’]\p{Lu}|\p{Lu}\.|(?:de|van|von)\s|\p{Lo})"

TITLES = Family(
    "TITLE",
    "Title",
    {
        "before a name": Form(rf"\b{_POLITE}(?!\p{{L}})\.?(?={_NAME})", STRONG, _POLITE.needed(0)),
        "in capitals": Form(
            r"\b(?:MR|MRS|DR|PROF)\b\.?(?=\s+\p{Lu})", STRONG, trigger(words="mr mrs dr prof")
        ),
        "joined": Form(
            r"\b(?:Mr|Mrs|Ms|Dr|Prof)\.(?=\p{Lu}\p{Ll})", STRONG, trigger(words="mr mrs ms dr prof")
        ),
        "rank": Form(rf"\b{_RANKS}\b\.?(?={_NAME})", FAIR, _RANKS.needed(0)),
        "in small letters": Form(
            r"(?<!\d\s?)\b(?:mr|mrs|dr|prof|ms)\b\.?(?=\s\p{L}{2})", FAIR, _SMALL.needed(0)
        ),
        "office": Form(rf"\b{_OFFICES}\b(?={_NAME})", DOUBTFUL, _OFFICES.needed(0)),
        "after a name": Form(
            r"(?<=\p{Ll},?\s)(?:PhD|Ph\.D\.|MD|M\.D\.|Esq\.?|DDS)(?!\w)", FAIR, trigger(words=_DEGREES)
        ),
    },
)

FAMILIES = (
    IN_WORDS,
    IN_NUMBERS,
    AGES,
    TITLES,
)
