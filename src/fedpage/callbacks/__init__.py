"""Observe a run: progress, best model, experiment trackers, checkpoints."""
