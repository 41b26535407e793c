"""The commands of the command line, a file a family. Heavy imports happen inside the functions."""
