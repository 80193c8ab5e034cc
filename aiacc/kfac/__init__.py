"""Second-order optimisation by Kronecker factors, K-FAC."""
