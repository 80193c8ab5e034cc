"""CommLib's DataCache: samples are fetched from a slow origin once. Imports no framework."""

from aiacc.data.dataset import CachedDataset
from aiacc.data.keyed import CachedIterable, CachedKeys
from aiacc.data.orders import Topology
from aiacc.data.record import RecordError
from aiacc.data.statistics import Statistics

__all__ = ["CachedDataset", "CachedIterable", "CachedKeys", "RecordError", "Statistics", "Topology"]
