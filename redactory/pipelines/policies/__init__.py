"""Policies as a library, compared, and fitted to labelled text."""
