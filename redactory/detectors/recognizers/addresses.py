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

FAMILIES = (STREETS, SMALL_STREETS, UNITS, POST_BOXES)
