"""The commands of the command line. Functions import heavy packages when they run."""
