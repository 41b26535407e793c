"""Reproduce the paper's experiments: its figures and claims as TOML, and the code that judges."""
