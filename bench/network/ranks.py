"""What ranks on virtual hosts have in common."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

#: Operations at a time that are probed; more of them share what these had.
_PROBED_LANES = 2
#: So long threads of gloo have to drop what a communication hook has left there. Without that they
#: hold the last reference to the group, which cannot join itself, or need Python when that is gone.
_DROP_S = 1.0


def probe(task: Any) -> Any:
    """The network as `aiacc-plan probe` measures it, on rank 0."""
    from aiacc.run import probe as command

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.json"
        command.probe(path, task["mib"] << 20, _PROBED_LANES)
        return json.loads(path.read_text()) if path.exists() else None


@contextmanager
def gloo(number: int, contexts: int = 1) -> Iterator[None]:
    """Open a process group of torch over gloo.

    Args:
        number: Of those that the job has had, for a port of its own.
        contexts: How often the interface is listed, each time with connections of its own.
    """
    host, _, port = os.environ["AIACC_ADDR"].rpartition(":")
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join(["eth0"] * contexts)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{host}:{int(port) + 1 + number}",
        rank=int(os.environ["AIACC_RANK"]),
        world_size=int(os.environ["AIACC_SIZE"]),
    )
    yield
    time.sleep(_DROP_S)
    dist.destroy_process_group()
