"""Street addresses in the forms of other languages, whatever the language of the text."""

from __future__ import annotations

from redactory.detectors.recognizers.addresses import START, WORD
from redactory.detectors.recognizers.family import FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import Trigger, trigger

_PARTICLE = (
    r"(?:(?:de|du|des|da|do|dos|das|di|del|dello|della|delle|dei|degli|la|le|les|los|las|el|lo|y|e|"
    r"van|von|der|den|"
    r"het|ter|ten|und|zum|zur|sur|sous|en|al|aux?)\s+|[dl]['’])"
)
_NAMES = rf"{_PARTICLE}{{0,3}}{WORD}(?: {_PARTICLE}{{0,3}}{WORD}){{0,4}}"
_HOUSE = r"\d{1,5}(?:\s?[-/]\s?\d{1,4})?(?:\s?[A-Za-z]\b)?"
_DOOR = (
    r"(?:,?\s+(?i:appartamento|piano|interno|int|scala|apto|apt|puerta|piso|interior|depto|edif|bl|ap|"
    r"sc|et|кв|стр|корп)"
    r"\b\.?\s*\w{1,4}\b){0,3}"
)
_NUMBERED = (
    r"(?:[\s,]\s*(?i:n[ºo°r]?|núm|num|numero|no|д|дом|буд)\.?[º°]?\s*:?\s*|\s*,?\s*)"
    rf"{_HOUSE}(?!\w){_DOOR}"
)
# a number before the street as well: that of the entrance, or a slip of the writer
_LEAD = r"(?:(?<![\w.,-])\d{1,6}[A-Za-z]?,?\s+)?"

_FRENCH = Terms(
    """
    rue avenue av. boulevard boul. bd place chemin allée allee impasse quai cours route rte ruelle square
    passage sentier faubourg résidence lotissement hameau montée esplanade voie chaussée
    """
)
_FRENCH_ALONE = Terms("rue chemin impasse allée quai ruelle")
_LATIN = Terms(
    """
    calle avenida avda avda. paseo camino carrera cra. carretera ctra. ronda travesía callejón cuesta
    glorieta cañada vial acceso pasadizo pasaje rambla costanilla avinguda carrer plaça passeig corredor
    retorno circunvalación calzada cerrada periférico prolongación andador circuito rua travessa praça
    estrada rodovia alameda ladeira condomínio conjunto viela viale piazza piazzale piazzetta vicolo
    contrada lungomare borgo salita strada rue chemin impasse allée quai ruelle avenue boulevard
    bulevardul aleea intrarea drumul calea șoseaua splaiul ulica ulice ul. aleja al. plac pl. osiedle os.
    nám. náměstí οδός λεωφόρος πλατεία πάροδος λεωφ. улица ул. проспект просп. пр. переулок пер. шоссе ш.
    площадь бульвар б-р набережная наб. аллея алл. вулиця вул.
    """
)
# these are English words too, or too short in small letters
_LATIN_CAPITAL = Terms("Av Av. Plaza Pza Pza. Largo Via Corso Str. Bd. Diagonal Cl. C/ R.", "capitals")
_ENDINGS = (
    "straße|strasse|str[.]|gasse|allee|platz|weg|damm|chaussee|nring|mring|dring|kring|gring|straat|"
    "laan|plein|gracht|"
    "kade|dijk|singel|steeg|dreef|gatan|vägen|gränd|stigen|gata|vegen|veien|veg|vei|vej|vænget|gade|"
    "stræde|stræti|"
    "straeti|torget|torvet|vegur|braut|svingen|bakken|katu|kuja|polku|ntie|bulevardi|tänav|puiestee"
)
_JOINED = "Straße|Strasse|Str[.]|Gasse|Allee|Platz|Weg|Damm|Ring|Ufer|Markt|Promenade|Laan|Straat|Weg"
_APART = Terms(
    """
    Straße Strasse Str. Weg Platz Allee Gasse Ring Ufer Damm Markt Boulevard utca u. út útja tér tere
    körút krt. köz sétány fasor ulica ulice cesta pot prehod nabrežje trg put třída tänav tn tn. mnt mnt.
    puiestee tee iela gatvė gate gata vei veg väg vägen gatan allé Allé plads torv katu gade laan straat
    plein puistotie polku Mahallesi Mah. Caddesi Cad. Cd. Sokak Sokağı Sok. Sk. Bulvarı
    """,
    "capitals",
)
_LIVE = Terms("live lives lived living reside resides residing stay stays staying wohnt wohne")
_ADDRESS = Terms("address adresse anschrift dirección indirizzo endereço adres adress")


def _endings(*listed: str) -> tuple[str, ...]:
    return tuple(
        {ending.removesuffix("[.]").casefold() for endings in listed for ending in endings.split("|")}
    )


ABROAD = Family(
    "STREET_ADDRESS",
    "StreetAbroad",
    {
        "number, rue, name": Form(
            rf"{START}\d{{1,5}}(?:\s?(?:bis|ter|quater|[A-Da-d])\b)?,?\s+{_FRENCH}\s+{_NAMES}",
            STRONG,
            _FRENCH.needed(),
        ),
        "number, rue, name in small letters": Form(
            rf"{START}\d{{1,5}},?\s+{_FRENCH_ALONE}\s+(?:(?:de|du|des|la|le|les)\s+|[dl]['’]){{1,3}}"
            r"\p{Ll}[\p{L}-]{1,30}",
            STRONG,
            _FRENCH_ALONE.needed(),
        ),
        "calle, name, number": Form(
            rf"{_LEAD}(?<!\w)(?:{_LATIN}|{_LATIN_CAPITAL})(?:\s+|(?<=[./])){_NAMES}{_NUMBERED}",
            STRONG,
            Trigger(1, _LATIN | _LATIN_CAPITAL),
        ),
        "name and street in one word, number": Form(
            rf"{_LEAD}\b(?:\p{{Lu}}[\p{{L}}-]{{0,25}}+ ){{0,2}}\p{{Lu}}[\p{{L}}-]{{1,40}}?"
            rf"(?:{_ENDINGS}|-(?:{_JOINED})){_NUMBERED}",
            STRONG,
            Trigger(1, endings=_endings(_ENDINGS, _JOINED)),
        ),
        "rue, name": Form(rf"\b{_FRENCH_ALONE}\s+{_NAMES}", FAIR, _FRENCH_ALONE.needed(0)),
        "name, street, number": Form(
            rf"{_LEAD}\b{WORD}(?: {WORD}){{0,2}} {_APART}(?!\p{{L}}){_NUMBERED}",
            STRONG,
            _APART.needed(),
        ),
        "am, name, number": Form(
            rf"\b(?:Am|Im|Zum|Zur|Beim|An\s+de[rnm]|Auf\s+de[rm]|In\s+de[rn]|Unter\s+den|Hinter\s+de[rm])\s+"
            rf"{WORD}\s+{_HOUSE}\b",
            FAIR,
            trigger(1, words="am im zum zur beim der den dem"),
        ),
        "blocks of Japan": Form(
            rf"{START}\d{{1,2}}-\d{{1,2}}-\d{{1,3}}\s+{WORD}(?:,\s*{WORD}){{0,3}}",
            SURE,
            trigger(3, "9-9-9|9-99-9"),
        ),
    },
    "address adresse dirección indirizzo",
)

ANNOUNCED = Family(
    "STREET_ADDRESS",
    "PlaceOfResidence",
    {
        "after its announcement": Form(
            rf"(?:\b{_ADDRESS}\b(?:\s+(?i:is|was|ist|est|es|è|é|är)\b)?\s*[:=-]?|\b{_LIVE}\s+(?i:at|"
            rf"in\s+der)\b)\s+"
            rf"\K(?=[^\n.;!?]{{0,40}}\d)(?:{WORD}|{_PARTICLE}{WORD}|\d{{1,6}}[A-Za-z]?)"
            rf"(?:[ ,]{{1,2}}(?:{WORD}|{_PARTICLE}{WORD}|\d{{1,6}}[A-Za-z]?)){{1,8}}(?!\w)",
            SURE,
            Trigger(1, _ADDRESS | _LIVE),
        ),
    },
    needs=trigger(1),
)

FAMILIES = (ABROAD, ANNOUNCED)
