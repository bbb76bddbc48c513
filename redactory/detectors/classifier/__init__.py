"""Hugging Face token classifiers from a local folder: read, and trained further.  Needs torch."""
