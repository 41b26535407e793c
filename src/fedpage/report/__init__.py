"""Turn histories into plots, tables and an HTML page."""
