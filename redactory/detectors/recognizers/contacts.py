"""Telephone numbers, e-mail addresses, links and handles in the forms that people write."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import Trigger, trigger

_EXTENSION = r"(?:\s*[,;]?\s*(?i:x|ext\.?|extension|extn|poste|durchwahl)\.?\s*:?\s*\d{1,6})?"
_FREE = r"(?<![\w.,:/$€£¥₹-])(?<!\d )"
_END = r"(?![\w]|-\d|[.,:/]\d)"
_SEP = r"[ .\-‐–/\u00a0]{1,2}"

_TLD = (
    "com|org|net|edu|gov|mil|int|info|biz|io|co|app|dev|tv|uk|ca|au|nz|ie|de|ch|fr|nl|lu|es|pt|gr|dk|"
    "se|fi|ee|lv|lt|pl|"
    "cz|sk|hu|ro|bg|hr|rs|ru|ua|tr|il|ae|za|ng|ke|eg|pk|bd|lk|cn|hk|tw|jp|kr|sg|vn|ph|br|ar|mx|cl|uy|"
    "cy|mt|eu|museum|"
    "xyz|mobi|lan|intranet"
)
_WORD_TLD = (
    "name|ai|me|us|at|be|it|no|is|si|sa|in|my|th|id|pe|online|shop|site|store|tech|cloud|blog|travel|"
    "jobs|local|corp|"
    "internal"
)
_HOST = r"(?<![\w@.-])(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.){1,5}"
_PATH = r"(?!\w|\.\w|-[\w-]{0,40}\.)(?::\d{2,5})?(?:/[^\s<>\"']*[\w/=&#-])?"
_DOT = r"\s*(?:\.|\s(?i:dot|punkt|punto)\s|[\[({<]\s*(?:(?i:dot)|\.)\s*[\])}>])\s*"
_SPELLED_DOT = r"\s+(?i:dot|punkt|punto)\s+"
_AT = r"\s*[\[({<]\s*(?i:at|@)\s*[\])}>]\s*"
# words before "at" that make a sentence of it and no address
_SAYS = Terms(
    """
    look looking looked looks is was are were be been me us it you him her them meet met see seen live
    lives living work works worked working shop available arrive arrived stay stayed order ordered and or
    stop good bad great not buy bought sold visit start started now up out here there
    """
)

PHONES = Family(
    "PHONE_NUMBER",
    "Phone",
    {
        "international": Form(
            rf"(?:(?<![\w+])\+|(?<![\w.,:/+-])00)(?=(?:[^\d\n]{{0,3}}\d){{7}})\s?[1-9]\d{{0,2}}(?:{_SEP})?(?:\(0?\d{{1,4}}\)(?:{_SEP})?)?"
            rf"\d{{1,5}}(?:(?:{_SEP})?\d{{2,5}}){{1,5}}{_EXTENSION}(?!\w)",
            STRONG,
            trigger(7, "+|99", r"\+\s?\d|(?<!\d)00\s?[1-9]"),
        ),
        "North America": Form(
            rf"{_FREE}(?:\+?1{_SEP})?(?:\(\d{{3}}\)\s?|\d{{3}}{_SEP})\d{{3}}{_SEP}\d{{4}}{_EXTENSION}{_END}",
            STRONG,
            trigger(10, "9999"),
        ),
        "ten digits, extension": Form(
            r"(?<![\w.])\d{7,11}\s*(?i:x|ext\.?|extension)\.?\s*\d{1,6}\b", STRONG, trigger(8, "9999999")
        ),
        "with a trunk prefix": Form(
            rf"{_FREE}\(?0\d{{1,5}}\)?(?:[ .‐–-]{{1,2}}\d{{2,4}}){{2,4}}{_EXTENSION}{_END}|"
            rf"{_FREE}\(?0\d{{2,5}}\)?{_SEP}\d{{4,8}}{_EXTENSION}{_END}",
            SURE,
            trigger(6, form=r"(?<!\d)0\d{1,5}\W"),
        ),
        "in pairs or threes": Form(
            r"(?<![\w.,:/$€£¥₹-])(?<!\d )(?:\d{2}([ .\-])\d{2}\1\d{2}\1\d{2}(?:\1\d{2})?"
            rf"|\d{{2,3}}([ .\-])\d{{3}}\2\d{{2,4}}(?:\2\d{{2,4}})?){_EXTENSION}{_END}",
            FAIR,
            trigger(7, "99 99|99.99|99-99"),
        ),
        "local": Form(
            rf"{_FREE}\d{{3}}[-.‐–]\d{{4}}{_EXTENSION}{_END}",
            FAIR,
            trigger(7, "999-9999|999.9999|999‐9999|999–9999"),
        ),
        "local with a space": Form(
            rf"{_FREE}\d{{3}} \d{{4}}{_EXTENSION}{_END}", DOUBTFUL, trigger(7, "999 9999")
        ),
    },
    "phone call mobile cell fax dial contact text whatsapp reach ring landline",
    trigger(6),
    lambda value: value.endswith("000"),
)

_PHONE = Terms(
    """
    phone telephone tel mobile mob cell cellphone fax whatsapp landline telefon handy téléphone teléfono
    telefono hotline extension ext call dial text ring reach
    """
)

ANNOUNCED_PHONES = Family(
    "PHONE_NUMBER",
    "AnnouncedPhone",
    {
        "after its name": Form(
            rf"\b{_PHONE}\b\.?(?:\s*(?i:number|no\.?|nr\.?|num|me|us|him|her|them|is|was|at|on|to|"
            rf"under|directly|back|now|"
            r"please|ist|est|es|è|é|my|your|his|the|new)\b){0,6}\s*[:=#-]?\s*"
            rf"\K(?=(?:[^\d\n]{{0,3}}\d){{4}})[+(]?\d[\d ().\-‐–/]{{2,20}}\d{_EXTENSION}"
            r"(?!\w|[.,:]\d|\s*(?i:times|minutes|am|pm|people|days|hours|%))",
            SURE,
            _PHONE.needed(4),
        )
    },
)

EMAILS = Family(
    "EMAIL_ADDRESS",
    "Email",
    {
        "of any domain": Form(
            r"(?<![\w@])[\p{L}\d!#$%&'*+/=?^_`{|}~.-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,6}\b",
            STRONG,
            trigger(0, "@"),
        ),
        # names of products are written so too
        "of a domain without a dot": Form(
            r"(?<![\w@])[\w.+-]{1,64}@[\w-]{1,63}\b(?!\.\w)", DOUBTFUL, trigger(0, "@")
        ),
        "with the signs in brackets": Form(
            rf"(?<!\w)[\w.+-]{{1,64}}{_AT}[\w-]{{1,63}}(?:{_DOT}[\w-]{{1,63}}){{1,4}}\b",
            STRONG,
            trigger(0, "[|(|{|<", r"[\[({<]\s*(?:@|(?i:at)\s*[\])}>])"),
        ),
        "spelled out": Form(
            rf"(?<![\w@.])(?!{_SAYS}\b)[\w+-]{{1,64}}(?:(?:{_SPELLED_DOT}|\.|\s+(?i:underscore|dash)\s+)"
            rf"[\w+-]{{1,64}}){{0,3}}\s+(?i:at)\s+[\w-]{{1,63}}(?:(?:{_SPELLED_DOT}|\.)[\w-]{{1,63}}){{0,3}}"
            rf"{_SPELLED_DOT}(?i:{_TLD}|{_WORD_TLD})\b",
            STRONG,
            trigger(words="dot punkt punto"),
        ),
        "spelled at, written domain": Form(
            rf"(?<![\w@.])[\w+-]{{1,64}}(?:\.[\w+-]{{1,64}}){{1,3}}\s+(?i:at)\s+[\w-]{{1,63}}(?:\.[\w-]{{1,63}}){{0,3}}\."
            rf"(?i:{_TLD})\b",
            SURE,
            trigger(0, ".", words="at"),
        ),
    },
    "mail contact write",
)

LINKS = Family(
    "URL",
    "Link",
    {
        "with a scheme": Form(
            r"(?i)\b(?:https?|ftps?|sftp|ssh|git|file|ldaps?|smb|wss?|s3|mailto|tel|"
            r"sip)://?[^\s<>\"']*[\w/=&#-]",
            STRONG,
            trigger(0, ":/"),
        ),
        "www": Form(r"(?i)\bwww\d{0,2}\.[^\s<>\"']*[\w/=&#-]", STRONG, trigger(0, ".", words="www")),
        "domain": Form(
            rf"{_HOST}(?:{_TLD}|COM|ORG|NET|EDU|GOV){_PATH}",
            STRONG,
            trigger(0, "a.aa|A.aa|9.aa|A.AA|9.AA|a.AA"),
        ),
        # a full stop without a space after it looks the same
        "domain that ends in a word": Form(
            rf"{_HOST}(?:{_WORD_TLD}){_PATH}", DOUBTFUL, trigger(0, "a.aa|A.aa|9.aa")
        ),
        "spelled out": Form(
            rf"\b(?i:www\s+dot\s+)?[\w-]{{2,63}}{_SPELLED_DOT}(?i:com|org|net|edu|gov|co{_SPELLED_DOT}uk)\b",
            SURE,
            trigger(words="dot punkt punto"),
        ),
    },
    "website link site page visit",
)

_ACCOUNT_NAME = Terms(
    """
    user_name username user_id userid login nick nickname screen_name screenname handle skype telegram
    instagram insta snapchat twitter discord
    """
)

HANDLES = Family(
    "IDENTIFIER",
    "Handle",
    {
        "at sign": Form(r"(?<![\w.@/])@[A-Za-z_][\w.-]{0,29}\w\b", SURE, trigger(0, "@")),
        "on Reddit": Form(r"(?<![\w/])/?u/[\w-]{3,20}\b", SURE, trigger(0, "/", words="u")),
        "with a number": Form(r"(?<![\w#])[A-Za-z][\w.]{1,31}#\d{4}\b", FAIR, trigger(4, "#9999")),
        "after its name": Form(
            rf"\b{_ACCOUNT_NAME}\b(?:\s*(?i:name|id|is|was|account|handle|my|on)\b){{0,3}}\s*[:=]\s*"
            r"\K[\w.@-]{2,40}\b",
            SURE,
            Trigger(words=_ACCOUNT_NAME.words | {"user", "screen"}, shapes=(":", "=")),
        ),
        "folder of a user": Form(
            r"(?:[A-Za-z]:\\Users\\|/home/|/Users/)\K[\w.-]{2,40}\b",
            SURE,
            trigger(words="users home"),
        ),
    },
)

FAMILIES = (PHONES, ANNOUNCED_PHONES, EMAILS, LINKS, HANDLES)
