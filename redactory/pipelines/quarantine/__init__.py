"""Quarantine: what could not be processed, looked at and tried again."""
