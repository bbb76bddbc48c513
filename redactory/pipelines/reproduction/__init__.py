"""Reproduction: the figures of the CRT paper on a corpus of one's own."""
