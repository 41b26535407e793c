"""Many runs: sweeps, tuning, and the paper's experiments."""
