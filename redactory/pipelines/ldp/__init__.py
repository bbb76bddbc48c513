"""Local privacy: both sides in one process, and over a wire."""
