"""Read Outlook messages (.msg) as mail: sender, recipients, subject, date and body; a copy is written as ``.eml``.

No free library writes ``.msg``, but Outlook opens ``.eml``. Attachments are counted and left out, and so are the
properties of Outlook, among them the internet headers. Other items, such as contacts, are not read.
"""

from __future__ import annotations

import io
import re
from email.header import Header, decode_header, make_header
from email.message import Message
from email.mime.application import MIMEApplication
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.utils import format_datetime
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.readers.document_formats import (
    DOCUMENT_WITHOUT_TEXT,
    ENCRYPTED_DOCUMENT,
    NOT_A_MESSAGE,
    ParsedDocument,
    UnreadableDocument,
)
from redactory.pipelines.readers.formats import ROW_TOO_LONG, UNDECODABLE
from redactory.pipelines.readers.mail_format import MailFormat

_MAX_UNPACKED_FACTOR = 4
"""Maximum size of all streams, as a multiple of the row limit: several can share the same bytes."""
_RECIPIENT_FIELDS = {2: "Cc", 3: "Bcc"}
_RECIPIENT_TYPE_MASK = 0xF


class OutlookFormat(MailFormat):
    """A file with one message of Outlook."""

    name = "msg"
    endings = (".msg",)
    written_format = "mail"

    def parse(self, data: bytes) -> ParsedDocument:
        """Convert the message to mail and parse it."""
        try:
            import olefile
            import oxmsg
        except ImportError:
            raise ConfigurationError("this format needs python-oxmsg: pip install 'redactory[documents]'") from None
        with olefile.OleFileIO(io.BytesIO(data)) as file:
            if sum(entry.size for entry in file.direntries if entry is not None) > _MAX_UNPACKED_FACTOR * self.limit:
                raise UnreadableDocument(ROW_TOO_LONG)
        try:
            mail = _convert_message(oxmsg.Message.load(io.BytesIO(data)))
        except UnicodeDecodeError:
            raise UnreadableDocument(UNDECODABLE) from None
        return super().parse(mail.as_bytes())


def _convert_message(message: Any) -> Message:
    """Convert a message to mail, with an empty part for each attachment."""
    from oxmsg.domain import constants

    kind, properties = message.message_class.upper(), message.properties
    if not re.match(r"IPM\.NOTE(?:\.|$)", kind):
        raise UnreadableDocument(NOT_A_MESSAGE)
    body, page = (message.body or "").rstrip("\0"), (message.html_body or "").rstrip("\0")
    if "SMIME" in kind:
        # its text is in an attachment
        raise UnreadableDocument(ENCRYPTED_DOCUMENT)
    if not body.strip() and not page.strip() and properties.binary_prop_value(constants.PID_RTF_COMPRESSED):
        # its text is rich text only, which is not read
        raise UnreadableDocument(DOCUMENT_WITHOUT_TEXT)
    texts = [MIMEText(text.replace("\r\n", "\n"), kind, "utf-8") for text, kind in ((body, "plain"), (page, "html"))]
    mail: Message = MIMEMultipart("alternative", _subparts=texts) if body and page else texts[bool(page)]
    if attachments := message.attachments:
        mail = MIMEMultipart("mixed", _subparts=[mail, *(MIMEApplication(b"") for _ in attachments)])
    address = properties.str_prop_value(constants.PID_SENDER_SMTP_ADDRESS)
    address = address or properties.str_prop_value(constants.PID_SENDER_EMAIL_ADDRESS)
    sender = _format_address(properties.str_prop_value(constants.PID_SENDER_NAME), address)
    fields = {
        "From": sender or str(make_header(decode_header(message.sender or ""))),
        "Subject": message.subject,
        "Date": message.sent_date and format_datetime(message.sent_date),
        "Message-ID": properties.str_prop_value(constants.PID_INTERNET_MESSAGE_ID),
    }
    for recipient in message.recipients:
        type_ = (recipient.properties.int_prop_value(constants.PID_RECIPIENT_TYPE) or 0) & _RECIPIENT_TYPE_MASK
        name, new = _RECIPIENT_FIELDS.get(type_, "To"), _format_address(recipient.name, recipient.email_address)
        fields[name] = ", ".join(filter(None, [fields.get(name), new]))
    for name, text in fields.items():
        if text := " ".join((text or "").replace("\0", " ").split()):
            mail[name] = Header(text, "utf-8", header_name=name).encode()
    return mail


def _format_address(name: str | None, address: str | None) -> str:
    """Format a name and an address as a field does; the address may be a path of Exchange."""
    name, address = (re.sub(r'[<>"\\\s]+', " ", text or "").strip() for text in (name, address))
    return " ".join([f'"{name}"'] * bool(name and name != address) + [f"<{address}>"] * bool(address))
