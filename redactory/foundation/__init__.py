"""The ground floor: what every room stands on and none owns.

Errors without text, canonical JSON, keys and keyed digests, files that are whole or absent, the one append-only record
format, the one random stream, and the count that a stage hands back.  Nothing here knows a corpus, a policy or a model.
"""
