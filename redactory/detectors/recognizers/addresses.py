"""Street addresses of English-speaking countries, units, post boxes."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import Trigger, trigger

WORD = r"\p{Lu}[\p{L}\p{M}'’.-]{0,30}+"
"""A capitalised word, or an initial."""

START = r"(?<![\w$€£¥₹]|\d[.,:]|\b(?:[Tt]he|last|first|next|top|all|only|over)\s)"
"""Not inside a word, a decimal or a price, nor a count of things."""

_TYPES = Terms(
    """
    Alley Aly Approach Avenue Ave Boulevard Blvd Bridge Bypass Causeway Circle Circles Cir Close Colony
    Concourse Court Courts Ct Cove Crescent Cres Cross Crossing Curve Dale Drive Dr Enclave Esplanade
    Estate Estates Expressway Extension Fork Freeway Fwy Ganj Gardens Gdns Gateway Glen Green Grove
    Heights Highway Hwy Hill Hills Junction Knoll Lake Landing Lane Ln Loop Mall Manor Marg Meadow Meadows
    Mews Mill Mills Motorway Mount Nagar Orchard Overpass Parade Pde Park Parkway Parkways Pkwy Pass
    Passage Path Pike Pine Place Pl Plain Plaza Plz Point Points Port Prairie Promenade Quay Ramp Ranch
    Rapids Rest Ridge Rise River Road Roads Rd Route Row Run Shoal Shore Shores Skyway Springs Spur Square
    Sq Station Stravenue Stream Street Streets St Summit Terrace Ter Tce Throughway Trace Track Trafficway
    Trail Trl Tunnel Turnpike Tpke Underpass Union Unions Valley Via Viaduct Vihar View Views Village
    Ville Vista Walk Walks Wall Way Ways Wells Wharf Wynd Yard
    """,
    "capitals",
)
# streets are called so, and other things are too
_PLACES = Terms(
    """
    Beach Bend Bluff Bluffs Branch Brook Brooks Burg Camp Canyon Cape Center Centers Centre Chowk Cliff
    Cliffs Club Common Commons Corner Corners Course Creek Crest Crossroad Dam Divide Falls Ferry Field
    Fields Flats Ford Fords Forest Forge Fort Garden Harbor Harbour Haven Hollow Inlet Island Islands Isle
    Key Keys Light Loaf Lock Locks Lodge Mission Mountain Neck Oval Parklands Piazza Radial Trailer
    """,
    "capitals",
)
_SURE = Terms("street avenue ave road rd boulevard blvd parkway pkwy terrace crescent lane ln highway hwy")
_UNSURE = Terms(
    "st drive dr court ct place square circle close grove gardens mews way row hill trail parade loop"
)
_UNITS = Terms(
    "Apt Apartment Suite Ste Studio Unit Flat Floor Fl Room Rm Level Shop Bldg Building Lot Block Blk",
    "capitals",
)
# words that make of "5 ... road" a count and no address
_COUNTED = Terms(
    """
    a an the this that of on in at to from for and or by with off down up along across near over under
    past is was are were hour hours minute minutes min mins second seconds day days week weeks month
    months year years mile miles km kms kilometers kilometres metre metres meter meters feet foot ft yards
    block blocks people persons cars lane lanes way ways wheel wheels bedroom bedrooms bed beds star stars
    hole holes tennis more other different new old great big small busy quiet long wide narrow gb tb mb
    hard flash usb disk times st nd rd th am pm percent
    """
)
_BOXES = Terms(
    """
    po_box p.o._box p.o.box p._o._box pobox post_office_box gpo_box postbox private_bag locked_bag
    postfach postbus boîte_postale apartado_de_correos apartado_postal casella_postale caixa_postal
    postboks
    """
)

_NUMBER = r"\d{1,6}(?:\s?[-–/&]\s?\d{1,5})?[A-Za-z]?"
_NO_YEAR = r"(?!(?:19|20)\d{2}\s)"
_AFTER = rf"(?:\s*,?\s*(?:{_UNITS}\.?\s*#?\s*|#\s?)[A-Z]?\d{{0,5}}[A-Z]?\b)?"
_BEFORE = rf"(?:{_UNITS}\.?\s*#?\s*\w{{1,5}}\s*,?\s+)?"
_STATE_ZIP = r"[A-Z]{2}\.?,?\s+\d{5}(?:-\d{4})?"
_TOWN = r"\p{Lu}[\p{L}'’.-]{1,30}+(?: \p{Lu}[\p{L}'’.-]{0,30}+){0,3}"
_CITY = (
    rf"(?:\s*,?\s+{_TOWN},?\s+{_STATE_ZIP}"
    rf"|,\s*{_TOWN}(?:,\s*{_TOWN})?(?=\s*(?:[,.;!?)\n]|$|[A-Z]{{1,2}}\d|\d)))?"
)
_ORDINAL = r"\d{1,3}(?:st|nd|rd|th|ST|ND|RD|TH)"
_NAME = rf"(?:(?:{WORD}|{_ORDINAL}|of|the|de|la)\s+){{1,4}}"
_COMPASS = r"(?:\s+(?:[NSEW]|NE|NW|SE|SW)\b\.?)?"
_SMALL_NAME = rf"(?:(?!{_COUNTED}\b)[a-z][a-z'’-]{{1,20}}\s+){{1,2}}"
_SMALL_UNIT = r"(?:,?\s+(?:(?:apt|apartment|suite|unit|flat)\b\.?|#)\s*\w{1,5})?"

_CONTEXT = "address live living resid locat ship deliver mail moved house home"

STREETS = Family(
    "STREET_ADDRESS",
    "StreetAddress",
    {
        "number, street, unit, city": Form(
            rf"{START}{_BEFORE}{_NUMBER},?\s+{_NAME}{_TYPES}\b\.?{_COMPASS}{_AFTER}{_CITY}",
            STRONG,
            _TYPES.needed(),
        ),
        "number, place, unit, city": Form(
            rf"{START}{_NO_YEAR}{_BEFORE}{_NUMBER},?\s+{_NAME}{_PLACES}\b\.?{_COMPASS}{_AFTER}{_CITY}",
            FAIR,
            _PLACES.needed(),
        ),
        "to the state and ZIP code": Form(
            rf"{START}{_NUMBER}\s+(?:{WORD}\s+){{1,4}}(?:{_UNITS}\.?\s*\d+\s*,?\s*)?(?:{WORD}\s*){{0,4}},"
            rf"\s*{_STATE_ZIP}\b",
            0.7,
            trigger(6, "99999", rf",\s*{_STATE_ZIP}"),
        ),
        "numbered road": Form(
            rf"{START}{_NUMBER}\s+(?:{WORD}\s+){{0,2}}(?:County\s+Road|County\s+Rd|State\s+Route|Highway|Hwy|"
            rf"Route|Rte|Rural\s+Route|RR|FM)\.?\s+\d{{1,4}}\b{_AFTER}{_CITY}",
            STRONG,
            trigger(2, words="road rd route highway hwy rte rr fm"),
        ),
        "one name alone": Form(
            rf"{START}{_NUMBER}\s+(?:[NSEW]\.?\s+)?(?:Broadway|Bowery|Embarcadero|Kingsway|Piccadilly|"
            rf"The\s+(?:Strand|Mall|Green|Close|Avenue|Crescent|Drive))\b{_AFTER}{_CITY}",
            STRONG,
            trigger(1, words="broadway bowery embarcadero kingsway piccadilly the"),
        ),
        "military": Form(
            r"\b(?:PSC\s+\d+,?\s+Box\s+\d+|Unit\s+\d+,?\s+Box\s+\d+|US[A-Z]{2}\s+[A-Z]\w+)"
            r"(?:\s*,\s*|\s+)(?:(?:APO|FPO|DPO)(?:\s*,\s*|\s+)(?:AA|AE|AP)\s+\d{5})",
            0.7,
            trigger(5, words="apo fpo dpo"),
        ),
    },
    _CONTEXT,
    trigger(1),
)

SMALL_STREETS = Family(
    "STREET_ADDRESS",
    "StreetAddressInSmallLetters",
    {
        "sure": Form(
            rf"{START}\d{{1,5}}[a-z]?\s+{_SMALL_NAME}{_SURE}\b\.?{_SMALL_UNIT}", FAIR, _SURE.needed()
        ),
        "unsure": Form(
            rf"{START}\d{{1,5}}[a-z]?\s+{_SMALL_NAME}{_UNSURE}\b\.?{_SMALL_UNIT}", DOUBTFUL, _UNSURE.needed()
        ),
    },
    _CONTEXT,
    trigger(1, form=r"\d[a-z]?\s+[a-z]"),
)

UNITS = Family(
    "STREET_ADDRESS",
    "Unit",
    {
        "apartment": Form(
            r"\b(?i:apt|apartment|suite|ste)\b\.?\s*(?:(?i:no|number|"
            r"nr)\b\.?\s*)?#?\s*[A-Za-z]?-?\d{1,5}[A-Za-z]?\b",
            SURE,
            trigger(1, words="apt apartment suite ste"),
        ),
        "flat": Form(
            r"\b[Ff]lat\s+(?:(?i:no)\b\.?\s*)?#?\d{1,4}[A-Za-z]?\b(?!\s*(?:rate|screen|fee|tyres?|tires?)\b)",
            FAIR,
            trigger(1, words="flat"),
        ),
        "unit": Form(
            r"\b(?:Unit|Bldg|Building|Blk)\b\.?\s+#?[A-Z]?\d{1,5}[A-Z]?\b",
            DOUBTFUL,
            trigger(1, words="unit bldg building blk"),
        ),
        "floor and door": Form(r"(?<!\w)#\d{2}-\d{2,4}\b", SURE, trigger(4, "#99")),
        "plot or house number": Form(
            r"\b(?i:plot|flat|house|door|shop|villa|h|d)\.?\s*(?i:no|number)\b\.?\s*[:#]?\s*"
            r"(?=[\w/-]{0,7}\d)[\w/-]{1,10}",
            SURE,
            trigger(1, words="no number"),
        ),
    },
    _CONTEXT,
    trigger(1),
)

POST_BOXES = Family(
    "STREET_ADDRESS",
    "PostBox",
    {
        "post box": Form(
            rf"\b{_BOXES}(?!\p{{L}})\s*"
            r"(?:(?i:no|number|nr)\b\.?\s*)?[#:]?\s*[A-Z]{0,2}\d[\d ]{0,8}(?<=\d)",
            STRONG,
            # the term may stand against its number
            Trigger(1, _BOXES.words | {"box"}),
        ),
        "box": Form(r"\bBox\s+#?\d{2,6}\b", DOUBTFUL, trigger(2, words="box")),
    },
    _CONTEXT,
    trigger(1),
)


# Street addresses in the forms of other languages, whatever the language of the text.


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


# Postal codes.


# letters that the inward part of a British code never has
_INWARD = r"\d(?![A-Za-z]?[CIKMOVcikmov])"
_CANADIAN = "ABCEGHJ-NPRSTV-Z"

BY_FORM = Family(
    "POSTAL_CODE",
    "PostalCode",
    {
        "state and ZIP code": Form(
            r"\b[A-Z]{2},?\s+\d{5}(?:-\d{4})?\b", SURE, trigger(5, "99999", r"[A-Z],?\s+\d{5}")
        ),
        "ZIP code and four": Form(r"(?<![\w.-])\d{5}-\d{4}\b(?!-)", FAIR, trigger(9, "99999-9999")),
        "UK": Form(
            rf"\b[A-Z]{{1,2}}\d[A-Z\d]?\s*{_INWARD}[A-Z]{{2}}\b",
            SURE,
            trigger(2, "A9", r"[A-Z]\d[A-Z\d]?\s*\d[A-Z]"),
        ),
        "UK in small letters": Form(
            rf"\b[a-z]{{1,2}}\d[a-z\d]?\s{_INWARD}(?!nd\b|st\b|rd\b|th\b|pm\b|am\b)[a-z]{{2}}\b",
            FAIR,
            trigger(2, "a9", r"[a-z]\d[a-z\d]?\s\d[a-z]"),
        ),
        "Canada": Form(
            rf"\b(?i:[{_CANADIAN}]\d[{_CANADIAN}][ -]?\d[{_CANADIAN}]\d)\b",
            SURE,
            trigger(3, "9A 9A9|9A9A9|9A-9A9|9a 9a9|9a9a9|9a-9a9|9A 9a9|9a 9A9|9A9a9|9a9A9|9A-9a9|9a-9A9"),
        ),
        "Australia": Form(
            r"\b(?:NSW|VIC|QLD|TAS|ACT|WA|SA|NT)\s+\d{4}\b",
            SURE,
            trigger(4, words="nsw vic qld tas act wa sa nt"),
        ),
        "Netherlands": Form(
            r"(?<![\w.,-])(?!19|20)[1-9]\d{3}\s(?!AD|BC|CE|AM|PM|KM|MB|GB|KB|TB|HZ|US|UK|EU|IT|CM|MM|"
            r"FT|SQ|KG|ML|TV|PC)"
            r"[A-Z]{2}\b(?![\s-][A-Z]{2})",
            FAIR,
            trigger(4, "9999", r"\d{4}\s[A-Z]{2}\b"),
        ),
        "Portugal, Brazil": Form(r"(?<![\w.-])\d{4,5}-\d{3}\b(?!-)", FAIR, trigger(7, "9999-999")),
        "two and three digits, town": Form(
            r"(?<![\w.-])\d{2}-\d{3}\b(?!-)(?=\s+\p{Lu}\p{Ll})", FAIR, trigger(5, "99-999")
        ),
        "three and two digits, town": Form(
            r"(?<![\w.,$€£-])\d{3} \d{2}(?=,?\s+\p{Lu}[\p{L}-]{2,}\b)", FAIR, trigger(5, "999 99")
        ),
        "country and code": Form(
            r"\b(?:D|DE|F|FR|A|AT|CH|B|BE|I|E|ES|L|LU|DK|S|SE|N|NO|FI|FIN|PL|CZ|HR|SI)-\d{4,5}\b",
            SURE,
            trigger(4, "A-9999"),
        ),
        "Japan": Form(r"〒\s?\d{3}-?\d{4}", STRONG, trigger(7, "〒")),
        "India": Form(r"(?<=\p{L}\s?-\s?)[1-8]\d{2}\s?\d{3}\b", FAIR, trigger(6, "-", r"-\s?\d{3}\s?\d{3}")),
        # a year before a capital looks the same
        "four digits, town": Form(
            r"(?<![\w.,$€£:/-])(?!19|20)[1-9]\d{3}(?=\s+\p{Lu}[\p{L}-]{2,}\b)",
            DOUBTFUL,
            trigger(4, "9999", r"\d{4}\s+\p{Lu}"),
        ),
    },
    "zip postcode postal postleitzahl plz pincode address city town",
    trigger(2),
)

ANNOUNCED_POST_CODES = Family(
    "POSTAL_CODE",
    "AnnouncedPostalCode",
    {
        "after its name": Form(
            r"(?i:\b(?:zip(?:\s*-?\s*codes?)?|zipcodes?|post(?:al)?\s*-?\s*codes?|postcodes?|"
            r"pin\s*code|pincode|plz|"
            r"postleitzahl|code\s+postal|código\s+postal|codice\s+postale|(?-i:CAP|CEP)|eircode)\b)"
            r"(?:\s*(?i:number|is|was|ist|est|es|of|for|to|my|your|in)\b){0,3}\s*[:=#-]?\s*"
            r"\K(?=[A-Za-z]{0,3}\d)[A-Za-z0-9]{2,8}(?:[ -](?=[A-Za-z]{0,2}\d|[A-Z]{2}\b)[A-Za-z0-9]{2,4}\b)?",
            STRONG,
            trigger(
                1,
                words="zip zipcode zipcodes post postal postcode postcodes postalcode postalcodes pin "
                "pincode plz postleitzahl postale cap cep eircode",
            ),
        )
    },
    needs=trigger(1),
)

FAMILIES = (
    STREETS,
    SMALL_STREETS,
    UNITS,
    POST_BOXES,
    ABROAD,
    ANNOUNCED,
    BY_FORM,
    ANNOUNCED_POST_CODES,
)
