"""Prepare and try a deployment: keys, checks before a run, a federation on one machine."""
