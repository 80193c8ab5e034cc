"""Ways to read the same images again and again, as their makers mean them to be used.

Each is a function of a `Place` that returns how to begin an epoch: an iterable of batches.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import aiacc.array as hvd
from aiacc.data import CachedDataset, Topology
from bench.data.images import SIDE, Images, decoded, label_of
from bench.data.origin import Throttle

BATCH, REQUESTS, AHEAD = 16, 16, 48

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
    #: Of each rank's DataLoader.
    workers: int

    @property
    def half(self) -> int:
        """Bytes of memory of a node for about half of the images, decoded."""
        return int(self.images.count * 3 * SIDE * SIDE * 0.62)


def _loaded(dataset: Any, sampler: Any, workers: int) -> Begin:
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=workers, persistent_workers=True
    )

    def begin(epoch: int) -> Any:
        sampler.set_epoch(epoch)
        return loader

    return begin


def _distributed(place: Place, dataset: Any) -> Begin:
    ranks = place.topology
    sampler = DistributedSampler(dataset, num_replicas=ranks.size, rank=ranks.rank, seed=1)
    return _loaded(dataset, sampler, place.workers)


def _aiacc(
    place: Place,
    memory: str | int = "2GB",
    disk: str | None = "2GB",
    shard: Any = "replicas",
) -> Begin:
    cached: Any = CachedDataset(
        place.images,
        (place.memory, memory),
        None if disk is None else (place.disk, disk),
        shard=shard,
        requests=REQUESTS,
        fingerprint="textures",
    )
    sampler: Any = cached.sampler(seed=1, ahead=AHEAD, topology=place.topology)
    begin = _loaded(cached, sampler, place.workers)
    begin.cached = cached  # type: ignore[attr-defined]
    return begin


def _web_dataset(place: Place) -> Begin:
    """WebDataset: tar shards, converted before, with its cache_dir."""
    import webdataset  # type: ignore[import-not-found,unused-ignore]

    (place.disk / "wds").mkdir(exist_ok=True)
    names = sorted(file.name for file in (place.images.folder / "wds").iterdir())
    dataset = webdataset.WebDataset(
        [f"{place.shards}/wds/{name}" for name in names],
        cache_dir=str(place.disk / "wds"),
        nodesplitter=webdataset.split_by_node,
        shardshuffle=len(names),
        empty_check=False,
    )
    dataset = dataset.shuffle(100).map(lambda one: (decoded(one["jpg"]), int(one["cls"])))
    loader: Any = DataLoader(dataset, BATCH, num_workers=place.workers, persistent_workers=True)
    return lambda epoch: loader


class _Through:
    """The images through one of fsspec's caches."""

    def __init__(self, place: Place, protocol: str) -> None:
        self._images = place.images
        self._folder = str(place.disk / protocol)
        self._protocol = protocol
        self._filesystem: Any = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        if self._filesystem is None:  # in the worker
            import fsspec  # type: ignore[import-untyped]

            self._filesystem = fsspec.filesystem(
                self._protocol, target_protocol="http", cache_storage=self._folder
            )
        with self._filesystem.open(f"{self._images.url}/{index}.jpg") as file:
            return decoded(file.read()), label_of(index)


class _DiskCache:
    """The images through diskcache: bytes of files, or what ``make`` makes of them."""

    def __init__(self, place: Place, folder: Path, make: Callable[[bytes], Any] = bytes) -> None:
        self._images, self._make = place.images, make
        self._folder = str(folder / "diskcache")
        self._cache: Any = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        if self._cache is None:
            import diskcache  # type: ignore[import-not-found,unused-ignore]

            self._cache = diskcache.Cache(self._folder, size_limit=2 * 10**9)
        data = self._cache.get(index)
        if data is None:
            data = self._make(self._images.read(index))
            self._cache.set(index, data)
        return decoded(data) if isinstance(data, bytes) else torch.from_numpy(data), label_of(index)


def _array(data: bytes) -> Any:
    return decoded(data).numpy()


def _half(place: Place, shard: str = "replicas") -> Begin:
    return _aiacc(place, memory=place.half, disk=None, shard=shard)


CONTENDERS: dict[str, Callable[[Place], Begin]] = {
    "bare": lambda place: _distributed(place, place.images),
    # One per node, in front of the same address.
    "filecache": lambda place: _distributed(place, _Through(place, "filecache")),
    # The bytes of the files, one per node.
    "diskcache": lambda place: _distributed(place, _DiskCache(place, place.disk)),
    # Decoded, in memory of the node.
    "decoded": lambda place: _distributed(place, _DiskCache(place, place.memory, _array)),
    "webdataset": _web_dataset,
    # Memory and disk of the node, 16 requests, 48 samples ahead, epochs over all nodes.
    "aiacc": lambda place: _aiacc(place),
    "aiacc_node": lambda place: _aiacc(place, shard="node"),
    "aiacc_half": _half,
    "aiacc_neighbour": lambda place: _half(place, "neighbour"),
}


def read(task: dict[str, Any]) -> dict[str, Any]:
    """One rank of a job: when each epoch began and ended, its images and a sum of them."""
    hvd.init()
    local_size = hvd.size() // task["nodes"]
    node, local_rank = divmod(hvd.rank(), local_size)
    topology = Topology((local_size,) * task["nodes"], node, local_rank)
    throttle = Throttle(*task["throttle"])
    images = Images(task["count"], task["url"], Path(task["origin"]), throttle)
    disk, memory = (Path(task[name]) / str(node) for name in ("disk", "memory"))
    for folder in (disk, memory):
        folder.mkdir(parents=True, exist_ok=True)
    # Where WebDataset looks for its place.
    os.environ.update(RANK=str(topology.rank), WORLD_SIZE=str(topology.size))
    hvd.barrier()
    name, _, workers = task["contender"].partition(":")
    place = Place(images, topology, disk, memory, task["shards"], int(workers or 1))
    begin = CONTENDERS[name](place)
    epochs = []
    for number in range(task["epochs"]):
        hvd.barrier()
        started, count, total = time.monotonic(), 0, 0
        for pixels, labels in begin(number):
            count += len(labels)
            total += int(pixels.to(torch.int64).sum()) + int(torch.as_tensor(labels).sum())
        epochs.append([started, time.monotonic(), count, total])
        hvd.barrier()
    found: dict[str, Any] = {"epochs": epochs}
    if hasattr(begin, "cached"):
        found["statistics"] = begin.cached.statistics().line()
    hvd.barrier()
    hvd.shutdown()
    return found
