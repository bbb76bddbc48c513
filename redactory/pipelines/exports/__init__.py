"""Exports: what may leave a run, its data card and Croissant metadata, and its check without a key."""
