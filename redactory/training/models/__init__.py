"""Networks that a training can use, each behind the same few methods, and how each is read and written."""
