"""Stores: places at a URL; a finished run or an export there and back again, every digest compared."""
