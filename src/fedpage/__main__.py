"""`python -m fedpage`."""

from fedpage.cli import main

main()
