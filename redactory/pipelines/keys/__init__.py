"""Keys of finished runs: wrapped anew, or destroyed."""
