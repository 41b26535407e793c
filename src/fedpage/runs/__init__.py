"""One run on disk: history, run directory, checkpoints, configuration."""
