"""`python -m fedpage`."""

from fedpage.cli.main import main

main()
