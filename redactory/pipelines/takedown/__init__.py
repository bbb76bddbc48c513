"""Takedown: one person out of every run that holds her, what others said kept."""
