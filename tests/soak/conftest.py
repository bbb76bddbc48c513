"""The long tests share what the short ones disturb."""

from tests.pipelines.conftest import moments, rows, undisturbed

__all__ = ["moments", "rows", "undisturbed"]
