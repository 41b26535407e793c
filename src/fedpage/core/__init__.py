"""Types, random numbers, local steps and aggregation: what every other package builds on."""
