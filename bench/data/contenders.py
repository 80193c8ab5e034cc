"""Ways to read the same images again and again, as their makers mean them to be used.

Each is a function of a `Place` that returns how to begin an epoch: an iterable of batches.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from aiacc.data import CachedDataset, Topology
from bench.data.images import Images, decoded, label_of

BATCH, WORKERS, REQUESTS, AHEAD = 16, 1, 16, 48

#: Begins an epoch: the batches.
Begin: TypeAlias = Callable[[int], Iterable[Any]]


@dataclass(frozen=True)
class Place:
    """Where a rank is, and what it reads."""

    images: Images
    topology: Topology
    #: Of this node: on disk, and in memory.
    disk: Path
    memory: Path
    #: Addresses of the shards for those that read shards.
    shards: str

    @property
    def half(self) -> int:
        """Bytes of memory of a node for about half of the images, decoded."""
        side = 256 if self.images.kind == "textures" else 128
        return int(self.images.count * 3 * side * side * 0.62)


def bare(place: Place) -> Begin:
    """DataLoader alone."""
    return _distributed(place, place.images)


def fsspec_filecache(place: Place) -> Begin:
    """Fsspec's file cache in front of the same address, one per node."""
    return _distributed(place, _Through(place, "filecache"))


def disk_cache(place: Place) -> Begin:
    """diskcache.Cache with the bytes of the files, one per node."""
    return _distributed(place, _DiskCache(place))


def aiacc(place: Place) -> Begin:
    """Memory and disk of the node, 16 requests, 48 samples ahead, epochs over all nodes."""
    return _aiacc(place, ahead=AHEAD)


def aiacc_node(place: Place) -> Begin:
    """The same with shards that stay on their nodes."""
    return _aiacc(place, ahead=AHEAD, shard="node")


def aiacc_one_request(place: Place) -> Begin:
    """The same with one request of each worker, and nothing ahead."""
    return _aiacc(place, requests=1)


def aiacc_half(place: Place) -> Begin:
    """Memory for half of the images, and no disk."""
    return _aiacc(place, ahead=AHEAD, memory=place.half, disk=None)


def aiacc_neighbour(place: Place) -> Begin:
    """The same; what the other node keeps comes from there."""
    return _aiacc(place, ahead=AHEAD, memory=place.half, disk=None, shard="neighbour")


def web_dataset(place: Place) -> Begin:
    """WebDataset: tar shards, converted before, with its cache_dir."""
    import webdataset

    (place.disk / "wds").mkdir(exist_ok=True)
    names = (Path(place.images.folder) / "wds" / "names").read_text().split()
    dataset = webdataset.WebDataset(
        [f"{place.shards}/wds/{name}" for name in names],
        cache_dir=str(place.disk / "wds"),
        nodesplitter=webdataset.split_by_node,
        shardshuffle=len(names),
        empty_check=False,
    )
    dataset = dataset.shuffle(100).map(lambda one: (decoded(one["jpg"]), int(one["cls"])))
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda epoch: loader


CONTENDERS = {
    "bare": bare,
    "filecache": fsspec_filecache,
    "diskcache": disk_cache,
    "webdataset": web_dataset,
    "aiacc": aiacc,
    "aiacc_node": aiacc_node,
    "aiacc_one": aiacc_one_request,
    "aiacc_half": aiacc_half,
    "aiacc_neighbour": aiacc_neighbour,
}


def _distributed(place: Place, dataset: Any) -> Begin:
    ranks = place.topology
    sampler = DistributedSampler(dataset, num_replicas=ranks.size, rank=ranks.rank, seed=1)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True
    )

    def begin(epoch: int) -> Any:
        sampler.set_epoch(epoch)
        return loader

    return begin


def _aiacc(
    place: Place,
    requests: int = REQUESTS,
    ahead: int = 0,
    memory: str | int = "2GB",
    disk: str | None = "2GB",
    shard: Any = "replicas",
) -> Begin:
    cached = CachedDataset(
        place.images,
        (place.memory, memory),
        None if disk is None else (place.disk, disk),
        shard=shard,
        requests=requests,
        fingerprint=place.images.kind,
    )
    sampler = cached.sampler(seed=1, ahead=ahead, topology=place.topology)
    loader = DataLoader(
        cached, BATCH, sampler=sampler, num_workers=WORKERS, persistent_workers=True
    )

    def begin(epoch: int) -> Any:
        sampler.set_epoch(epoch)
        return loader

    begin.cached = cached  # type: ignore[attr-defined]
    return begin


class _Through:
    """The images through one of fsspec's caches."""

    def __init__(self, place: Place, protocol: str) -> None:
        self._images = place.images
        self._folder = str(place.disk / protocol)
        self._protocol = protocol
        self._filesystem = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        if self._filesystem is None:  # in the worker
            import fsspec

            self._filesystem = fsspec.filesystem(
                self._protocol, target_protocol="http", cache_storage=self._folder
            )
        with self._filesystem.open(f"{self._images.url}/{index}.jpg") as file:
            return decoded(file.read()), label_of(self._images.kind, index)


class _DiskCache:
    """The images through diskcache."""

    def __init__(self, place: Place) -> None:
        self._images = place.images
        self._folder = str(place.disk / "diskcache")
        self._cache = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        if self._cache is None:
            import diskcache

            self._cache = diskcache.Cache(self._folder, size_limit=2 * 10**9)
        data = self._cache.get(index)
        if data is None:
            data = self._images.read(index)
            self._cache.set(index, data)
        return decoded(data), label_of(self._images.kind, index)


def checksum(batch: Any) -> tuple[int, int]:
    """How many images a batch has, and a sum that says which."""
    pixels, labels = batch
    return len(labels), int(pixels.to(torch.int64).sum()) + int(torch.as_tensor(labels).sum())
