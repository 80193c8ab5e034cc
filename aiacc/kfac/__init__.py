"""SPD-KFAC: the mathematics of K-FAC, and who computes what of it."""
