"""Reissue: the one way in which a finished run is changed."""
