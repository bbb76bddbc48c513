"""Shared foundation: what every package uses and none owns.

Errors without text, canonical JSON, keys and keyed digests, atomic file writes, the append-only record format, the
random stream, and stage reports. Nothing here knows a corpus, a policy or a model.
"""
