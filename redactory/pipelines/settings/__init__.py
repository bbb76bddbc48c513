"""Sections of the configuration that are settings of this room's own packages."""
