"""The nightly job: what is new, curated, judged, released, and kept as long as it is to be kept."""
