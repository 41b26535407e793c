"""The paper's experiments: one TOML a figure, the claims of its text, and what runs and judges them."""
