"""Ages and titles."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import trigger

_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TENS = "twenty|thirty|forty|fourty|fifty|sixty|seventy|eighty|ninety"
_WORDS = rf"(?i:(?:{_TENS})(?:[ -](?:{_ONES}))?|{_TEENS}|{_ONES})"
_YEARS = r"(?:1[0-2]\d|[1-9]?\d)"
_AGE = rf"(?:{_YEARS}|{_WORDS})"
_SPAN = r"(?i:years?|yrs?|months?|mos?|weeks?|wks?|days?)"
_WHO = (
    r"(?i:i|he|she|they|we|you|who|mother|father|mom|dad|son|daughter|brother|sister|wife|husband|"
    r"child|patient|"
    r"grandmother|grandfather|baby|boy|girl|man|woman)"
)
_FREE = r"(?<![\w.,$€£/-])"
# an age ends a clause; an amount goes on to what it is an amount of
_STOP = r"(?=\s*(?:[.,;!?)]|$|\n|(?i:and|but|now|today|next|this|last|in|on|years?|yrs?|y/?o|when|or)\b))"
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
            rf"{_FREE}{_YEARS}(?=[\s-]*(?i:y\.?/?o\.?|yr?s?/o|y\.o\.|yrs?\.?\s*old|years?old)(?!\w))",
            STRONG,
            trigger(1, words="y yo yr yrs ys yrsold yrold yearold yearsold"),
        ),
        "attached": Form(rf"{_FREE}{_YEARS}(?i:yo|y/o|yrs?)\b", STRONG, trigger(1, words="yo y yr yrs")),
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
            rf"\b(?i:turn|turns|turned|turning)\s+\K{_YEARS}\b{_NO_AMOUNT}{_STOP}",
            SURE,
            trigger(1, words="turn turns turned turning"),
        ),
        "I am": Form(
            rf"\b(?:(?i:i['’]m|he['’]s|she['’]s|im)|{_WHO}\s+(?i:is|was|am|were|will\s+be))\s+"
            rf"(?:(?i:only|just|now|already|almost|about|around|over|"
            rf"nearly)\s+)?\K{_YEARS}\b{_NO_AMOUNT}{_STOP}",
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

FAMILIES = (AGES, TITLES)
