"""Keys and tokens of programs: each opens a service to whoever reads it."""

from __future__ import annotations

from redactory.detectors.recognizers.family import DOUBTFUL, FAIR, STRONG, SURE, Family, Form, Terms
from redactory.detectors.triggers import trigger

# as their issuers document them: Stripe, OpenAI, Anthropic, GitHub, GitLab, Hugging Face, npm, PyPI, Slack,
# DigitalOcean, Shopify, SendGrid, Google
_BEGINNING = (
    r"(?:(?:[prs]k_(?:live|test)|gh[oprsu]|github_pat|hf|npm|dop_v1|shpat|whsec)_|"
    r"(?:sk|pypi|glpat|xapp|xox[abeoprs])-|SG\.|AIza)"
)
_SIGN = r"[\w+/.=~-]"
_NAMES = Terms("key keys token secret bearer apikey")
_NAME = (
    r"(?i:(?:api|access|secret|auth|private|client|service|signing)[ _-]?(?:keys?|token|secret)|"
    r"bearer|token|secret|apikey)"
)
_CAPITAL, _SMALL, _DIGIT = (
    rf"(?=[\w-]{{0,200}}{kind})" for kind in (r"[A-Z]", r"[a-z]", r"\d[\w-]{0,200}\d")
)

KEYS = Family(
    "API_KEY",
    "SecretKey",
    {
        "a known beginning": Form(
            rf"(?<![\w-]){_BEGINNING}(?=[\w.-]{{0,250}}\d)[\w-]{{12,250}}(?:\.[\w-]{{8,250}})?",
            STRONG,
            trigger(1, form=_BEGINNING),
        ),
        "JSON web token": Form(
            r"(?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{8,4000}(?:\.[\w-]{0,4000})?", STRONG, trigger(0, form="eyJ")
        ),
        "private key": Form(
            r"-----BEGIN (?:[A-Z]{2,20} ){0,3}PRIVATE KEY-----[A-Za-z0-9+/=\s]{0,9000}"
            r"(?:-----END (?:[A-Z]{2,20} ){0,3}PRIVATE KEY-----)?",
            STRONG,
            trigger(0, "-----AAAAA", words="private"),
        ),
        # a line of a key whose first line stands in another data point
        "a line of Base64": Form(
            r"(?<![\w+/=-])(?=[^\d]{0,200}\d)(?=[^A-Z]{0,200}[A-Z])(?=[^a-z]{0,200}[a-z])"
            r"[A-Za-z0-9+/]{56,400}={0,2}(?![\w+/=-])",
            FAIR,
            trigger(1),
        ),
        "told by a word": Form(
            rf"(?<![\p{{L}}\d]){_NAME}\b(?:\s*(?i:is|was)\b|\s*[:=]|\s){{1,3}}\s*[\"'“‘`<]{{0,2}}"
            rf"\K(?={_SIGN}{{0,250}}\d){_SIGN}{{12,250}}(?<![.,;:])",
            SURE,
            _NAMES.needed(),
        ),
        "letters, digits and hyphens": Form(
            rf"(?<![\w-]){_CAPITAL}{_SMALL}{_DIGIT}(?=[A-Za-z\d]{{0,200}}[_-])[\w-]{{20,200}}(?![\w-])",
            DOUBTFUL,
            trigger(2, "_|-"),
        ),
    },
    "key token secret api bearer credential",
)

FAMILIES = (KEYS,)
