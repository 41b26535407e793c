"""Compute with the paper's theory: theorems, complexity tables, constants and plans."""

from fedpage.theory.constants import (
    Constants,
    dissimilarity,
    estimate,
    heterogeneity,
    local_smoothness,
    reference,
    strong_convexity,
    variance,
)
from fedpage.theory.steps import (
    Tuned,
    convex_fedpage,
    convex_page,
    fedavg_steps,
    nonconvex_fedpage,
    nonconvex_page,
    scaffold_steps,
    strongly_convex_fedpage,
    strongly_convex_page,
)
from fedpage.theory.tables import TABLE, Entry, Setting, convex_case

__all__ = [
    "TABLE",
    "Constants",
    "Entry",
    "Setting",
    "Tuned",
    "convex_case",
    "convex_fedpage",
    "convex_page",
    "dissimilarity",
    "estimate",
    "fedavg_steps",
    "heterogeneity",
    "local_smoothness",
    "nonconvex_fedpage",
    "nonconvex_page",
    "reference",
    "scaffold_steps",
    "strong_convexity",
    "strongly_convex_fedpage",
    "strongly_convex_page",
    "variance",
]
