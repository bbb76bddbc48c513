"""Releases: the log of what became of each run of a job, and its records in words."""
