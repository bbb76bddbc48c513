"""Numbers of documents, orders, bookings and plates, told by the words before them."""

from __future__ import annotations

from redactory.detectors.recognizers.accounts import CODE, DIGITS, END, LINK, NUMBER
from redactory.detectors.recognizers.family import SURE, Family, Form, Terms
from redactory.detectors.triggers import Trigger

_PAPERS = Terms("passport license licence licenses licences permit visa dl green_card identity_card id_card")
_REGISTERS = Terms(
    "passport license licence permit social_security ssn itin ein vat_number tax_number nino nhs medicare"
)
_NUMBERED = Terms(
    """
    order tracking parcel package shipment invoice receipt ticket case claim policy contract customer
    client member membership patient student employee staff badge serial model part item product
    transaction payment reference ref booking reservation confirmation registration record file docket
    loyalty flyer flight train mrn chart insurance group subscriber vehicle vin device imei meid iccid sim
    asset po rma user session request job lot batch delivery consignment waybill awb
    """
)
_KNOWN = Terms(
    """
    order tracking parcel invoice receipt ticket case claim policy contract patient student employee badge
    serial transaction reference ref booking reservation confirmation registration docket mrn vin imei awb
    rma id
    """
)
_BOOKED = Terms(
    """
    booking reservation confirmation reference ref pnr locator tracking order ticket voucher coupon promo
    gift_card activation licence_key license_key product_key serial
    """
)
_LOCATORS = Terms("pnr locator")
_BOOKED_SMALL = Terms("booking reservation confirmation reference ref pnr")
_PLATES = Terms(
    """
    number_plate number_plates license_plate license_plates licence_plate licence_plates
    registration_plate plate plates plated registration reg tag
    """
)

DOCUMENTS = Family(
    "IDENTIFIER",
    "AnnouncedIdentifier",
    {
        "document": Form(rf"\b{_PAPERS}\b{LINK}\K(?:[A-Z]{{2,6}} )?{CODE}", SURE, _PAPERS.needed()),
        "document in groups": Form(rf"\b{_REGISTERS}\b{LINK}\K{DIGITS}", SURE, _REGISTERS.needed(3)),
        "number of something": Form(
            rf"\b{_NUMBERED}\b\s*{NUMBER}{LINK}\K(?:[A-Z]{{2,6}} )?(?=[\p{{L}}\d/-]{{3}}){CODE}",
            SURE,
            _NUMBERED.needed(),
        ),
        "something and its number": Form(
            rf"\b{_KNOWN}\b(?:\s*(?i:is|was|for|code|it['’]s)\b|\s*[:=#№(]){{0,4}}\s*"
            rf"\K(?=[\p{{L}}-]{{0,6}}\d)(?=\S*\d\S*\d\S*\d)[\p{{L}}\d][\p{{L}}\d/-]{{3,30}}{END}",
            SURE,
            _KNOWN.needed(3),
        ),
        "booking reference": Form(
            rf"\b{_BOOKED}\b{LINK}\K(?=[A-Z]{{0,15}}\d)[A-Z\d]{{5,16}}(?:-[A-Z\d]{{3,8}}){{0,5}}\b(?![.,]\d)",
            SURE,
            _BOOKED.needed(),
        ),
        "locator": Form(rf"\b{_LOCATORS}\b{LINK}\K[A-Z\d]{{5,8}}\b", SURE, _LOCATORS.needed(0)),
        # in a text all in capitals any word would do
        "booking reference of letters": Form(
            rf"\b(?!\p{{Lu}}{{2}}){_BOOKED}\b{LINK}(?<=(?:\b(?:number|code|no|id|is|was)\b|"
            rf"[:#№(\"'“‘])\W{{0,3}})"
            r"\K[A-Z]{5,16}(?:-[A-Z\d]{3,8}){0,5}\b",
            SURE,
            Trigger(words=_BOOKED.words, shapes=("AAAAA",)),
        ),
        "reference in small letters": Form(
            rf"\b{_BOOKED_SMALL}\b{LINK}\K(?=[a-z]{{0,9}}\d)[a-z\d]{{5,10}}\b(?![.,:]\d)",
            SURE,
            _BOOKED_SMALL.needed(),
        ),
        "plate": Form(
            rf"\b{_PLATES}\b{LINK}\K(?=[A-Z\d -]{{0,8}}\d)[A-Z\d]{{1,4}}(?:[ -]?[A-Z\d]{{1,5}}){{0,2}}\b"
            r"(?![.,:]\d)",
            SURE,
            _PLATES.needed(),
        ),
    },
)

FAMILIES = (DOCUMENTS,)
