"""What happens to runs later: scheduled runs, approval, erasure, quarantine, verification, export.

Each command leaves a finished folder or none.
"""
