"""Releases: the log of what became of each run of a job, and what people decide about them."""
