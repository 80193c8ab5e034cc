"""Clusters for tests, by the formula of a ring."""

from aiacc.compression.costs import Cluster
from aiacc.planning.cost import Analytic


def cluster(hosts, local=1, *, gbit=10.0, inside_gbit=100.0, alpha=0.0):
    """Hosts whose ranks share ``gbit``; every message takes ``alpha`` seconds to start."""
    across = Analytic("ring", alpha, 8e-9 / gbit * local, 0.0, hosts)
    inside = Analytic("ring", alpha, 8e-9 / inside_gbit, 0.0, local)
    return Cluster(hosts, local, across, inside if local > 1 else None)
