"""Hugging Face token classifiers from a local folder: inference and fine-tuning. Needs torch."""
