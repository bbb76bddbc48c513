"""Stanza's entity recognizer, with the marginals of its CRF for every token.  Needs torch."""
