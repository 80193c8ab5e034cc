"""Plans on the bed: what planners predict, and what the optimizer makes of it."""
