"""``python -m redactory``: the command line, for where its script is not on the path."""

from redactory.flows.cli import main

main()
