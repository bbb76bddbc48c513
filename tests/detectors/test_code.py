"""The profile for code and logs: identifiers stay, secrets and the people in headers do not."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from redactory.pipelines.curation.policy import Policy

PATCH = """\
From: Quirin Ozols <quirin@ozols.org>
Subject: fs: check the size of an orphan file

Signed-off-by: Ann Kovacs <ann.kovacs@example.org>
Reviewed-by: J. Müller <j@example.net>

diff --git a/lib/ext2fs/orphan.c b/lib/ext2fs/orphan.c
index 14ac3569..0f1889cb 100644
--- a/lib/ext2fs/orphan.c
+++ b/lib/ext2fs/orphan.c
@@ -15,6 +15,8 @@
 #include "ext2_fs.h"
+ * Copyright (C) 2024 Quirin Ozols
+\tif (num_blocks > EXT4_MAX_ORPHAN_FILE_BLOCKS)
+\t\tfree(fs_type);
 static int op_getattr(const char *path, struct stat *statbuf)
 \t\tmajor = strtoul(argv[3], &end1, 0);
-    ext2fs_close(fs);
2024-05-01 12:00:01 INFO worker-3 GET /srv/www/index.html 200 0x7ffe12
"""


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load({"segment": {"mode": "line"}, "detect": {"profile": "code"}})


def test_a_patch_keeps_its_code_and_no_name(policy: Policy) -> None:
    redacted = policy.redact(PATCH)
    assert not any(name in redacted for name in ("Quirin", "Ozols", "Ann", "Kovacs", "Müller", "@example", "@ozols"))
    before, after = PATCH.splitlines(), redacted.splitlines()
    code = [number for number, line in enumerate(before) if number > 6 and "Copyright" not in line]
    assert [after[number] for number in code] == [before[number] for number in code]


def test_an_address_is_masked_in_code_too(policy: Policy) -> None:
    line = '    send(user_id, quirin@ozols.org, "DE89370400440532013000");'
    assert policy.redact(line) == '    send(user_id, <MASK>, "<MASK>");'


def token(*parts: str) -> str:
    """Put together here, so that no scanner takes this file for a leak."""
    return "".join(parts)


@pytest.mark.parametrize(
    ("before", "secret", "behind"),
    [
        ("aws_key = ", token("AKIA", "IOSFODNN7EXAMPLE"), ";"),
        ("t = '", token("ghp", "_", "a1B2" * 9), "'"),
        ("stripe(", token("sk", "_live_", "4eC39HqLyjWDarjtT1zdp7dc"), ")"),
        ("maps?key=", token("AIza", "SyA-1234567890abcdefghijklmnopqrstu"), "&x=1"),
        ("Authorization: Bearer ", token("eyJ", "hbGciOiJIUzI1NiJ9", ".eyJ", "zdWIiOiIxMjM0In0", ".abcdefghijkl"), ""),
        ("db: postgres://", "admin:hunter2hunter2", "@db.internal/x"),
        ("password = '", "correct-horse", "';"),
        ("", token("-----BEGIN RSA ", "PRIVATE KEY-----") + base64.b64encode(b"k" * 60).decode(), ""),
    ],
)
def test_secrets_of_code_are_found(policy: Policy, before: str, secret: str, behind: str) -> None:
    redacted = policy.redact(before + secret + behind)
    assert secret not in redacted
    assert "<MASK>" in redacted


def test_prose_is_read_as_ever(policy: Policy) -> None:
    assert policy.redact("Mary Smith reported this from Boston.") == "<MASK> reported this from <MASK>."


def test_what_the_configuration_names_is_masked_in_code_too(tmp_path: Path) -> None:
    terms = tmp_path / "projects.txt"
    terms.write_text("Bluebird\n", encoding="utf-8")
    ticket = {"name": "ticket", "label": "TICKET", "patterns": {r"\bT-\d{6}\b": 0.9}}
    detect = {
        "profile": "code",
        "patterns": {"custom": [ticket]},
        "lists": {"deny": [{"label": "PROJECT", "file": str(terms)}]},
    }
    policy = Policy.load({"segment": {"mode": "line"}, "detect": detect})
    assert policy.redact('    log(user_id, "T-123456", Bluebird);') == '    log(user_id, "<MASK>", <MASK>);'
    assert policy.redact('    log(user_id, "T-12345", Redbird);') == '    log(user_id, "T-12345", Redbird);'
