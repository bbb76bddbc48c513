"""JSON lines: each row is an object, or is refused by file and row without its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from redactory.foundation.canonical import read_json_lines
from redactory.foundation.errors import InputError


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": "\xc3\xa9"}')
    assert list(read_json_lines(path)) == [(1, {"a": 1}), (4, {"a": "é"})]


@pytest.mark.parametrize("line", [b"secret", b'["secret"]', b'{"a": "secret", "a": 1}', b'{"\xff": 1}', b"[" * 99_999])
def test_a_row_that_is_no_object_is_refused_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(InputError, match=r"rows\.jsonl, row 2: expected a JSON object") as refused:
        list(read_json_lines(path))
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None
    with pytest.raises(InputError, match="cannot be read"):
        list(read_json_lines(tmp_path / "gone.jsonl"))
