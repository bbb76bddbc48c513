"""Masked copies of files, and back: redact, unmask, scan.

The formats are in :mod:`redactory.pipelines.readers`.
"""
