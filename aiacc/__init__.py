"""Synchronous data-parallel training for clusters whose network is the bottleneck.

Training scripts import a front-end: ``import aiacc.torch as hvd``. This package itself imports no
framework.
"""

from __future__ import annotations

from aiacc import unbuilt

try:
    from aiacc._core import __file__ as _core_file
    from aiacc._core import __version__

    unbuilt.check_folder_of(_core_file)
except ImportError as error:
    unbuilt.explain(error)
    raise
from aiacc.basics import (
    cross_rank,
    cross_size,
    engine,
    get_include,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
from aiacc.exceptions import (
    AiaccError,
    BootstrapError,
    CollectiveError,
    CollectiveTimeoutError,
    EngineError,
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    MismatchError,
    PeerLostError,
    ShutdownError,
)
from aiacc.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)

__all__ = [
    "AiaccError",
    "BootstrapError",
    "CollectiveError",
    "CollectiveTimeoutError",
    "EngineError",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "MismatchError",
    "PeerLostError",
    "ProcessSet",
    "ShutdownError",
    "__version__",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "engine",
    "get_include",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]
