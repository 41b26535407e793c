"""PyTorch models as problems (extra: `pip install 'fedpage[torch]'`)."""
