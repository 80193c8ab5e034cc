"""One rank of a contender: reads epochs, and writes down when each began and ended."""

import json
import os
import sys
import time
from pathlib import Path

import aiacc.array as hvd
from aiacc.data import Topology
from bench.data.contenders import CONTENDERS, Place, checksum
from bench.data.images import Images
from bench.data.origin import Throttle


def main() -> None:
    """Entry point: a file with what to do."""
    job = json.loads(Path(sys.argv[1]).read_text())
    hvd.init()
    local_size = hvd.size() // job["nodes"]
    topology = Topology(
        (local_size,) * job["nodes"], hvd.rank() // local_size, hvd.rank() % local_size
    )
    folder = Path(job["folder"])
    throttle = Throttle(job["throttle"], job["bytes_per_s"], job["latency_s"])
    url = job["url"] if job["origin"] == "http" else None
    images = Images(job["kind"], job["count"], url, folder, throttle)
    disk, memory = (Path(job[name]) / str(topology.node) for name in ("disk", "memory"))
    for place in (disk, memory):
        place.mkdir(parents=True, exist_ok=True)
    place = Place(images, topology, disk, memory, job["url"])
    # Where WebDataset looks for its place.
    os.environ.update(RANK=str(topology.rank), WORLD_SIZE=str(topology.size))
    hvd.barrier()
    begin = CONTENDERS[job["contender"]](place)
    epochs = []
    for number in range(job["epochs"]):
        hvd.barrier()
        started, count, total = time.monotonic(), 0, 0
        for batch in begin(number):
            images_of, pixels = checksum(batch)
            count, total = count + images_of, total + pixels
        epochs.append([started, time.monotonic(), count, total])
        hvd.barrier()
    found = {"epochs": epochs}
    if hasattr(begin, "cached"):
        found["statistics"] = begin.cached.statistics().line()
    Path(job["results"], f"{hvd.rank()}.json").write_text(json.dumps(found))
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
