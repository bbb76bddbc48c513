"""Networks: what a training learns, each behind the same few methods, and how each is read and written."""
