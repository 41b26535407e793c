"""The commands of the command line, one module each, which `main` imports when it is used."""
