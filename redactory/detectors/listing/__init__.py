"""Lists: terms that are always sensitive, terms that are public, whatever the details of their spelling."""
