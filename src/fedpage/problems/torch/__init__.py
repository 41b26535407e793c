"""Make problems of PyTorch models (extra: `pip install 'fedpage[torch]'`)."""
