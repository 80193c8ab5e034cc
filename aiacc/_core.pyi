"""The compiled core. Integers, strings and addresses cross this boundary; tensors only to be read.

Of tensors in host memory the core may find out address, shape and dtype by itself, through the C
functions of DLPack that their type offers (`read_tensors_of`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__version__: str

# Operation kinds of `submit`.
ALLREDUCE: int
ALLGATHER: int
BROADCAST: int
BARRIER: int
ALLTOALL: int
REDUCESCATTER: int
JOIN: int

class Listener:
    """A bound, listening socket of this rank; its port goes to the other ranks at bootstrap.

    It answers connections to `addresses`, all this host's own; to any if there are none.
    """

    def __init__(self, addresses: Sequence[str] = ()) -> None: ...
    @property
    def port(self) -> int: ...
    def close(self) -> None: ...

class ThreadReserve:
    """Room for so many threads, until it is released. EngineError if there is none."""

    def __init__(self, count: int) -> None: ...
    def release(self) -> None: ...

def interface_addresses() -> list[tuple[str, str, int, bool]]:
    """(interface, address, bits of the prefix, whether it runs), in the kernel's order."""

def init(
    *,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    cross_rank: int,
    cross_size: int,
    engine: str,
    gpu_engine: str = "staged",
    lanes: int,
    unit_bytes: int,
    token: bytes,
    epoch: int,
    addresses: Sequence[str],
    host_of: Sequence[int],
    listener: Listener | None,
    gpu_lanes: int = 1,
    gpu_capability: tuple[int, int] = ...,
    nccl_in_use: bool = False,
) -> None:
    """Connect to the other ranks and start the runtime.

    Collective. Blocks until every rank is connected. The values except the ranks, `addresses` (by
    which this rank reaches each) and `nccl_in_use` are equal everywhere; everything else comes from
    the configuration (`config`). `nccl_in_use`: others in this process may have made NCCL
    communicators. Raises on failure, leaving nothing open.
    """

def shutdown(how: str = "") -> None:
    """End the runtime; outstanding handles fail. Not collective, idempotent.

    `how` follows "rank N" in what the others are told; "": that it has shut down.
    """

def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def engine() -> str: ...
def gpu_engine() -> str: ...
def lanes() -> int: ...
def prepare(
    kind: int,
    verb: str,
    name: str | None,
    shape: tuple[int, ...] | tuple[tuple[int, ...], ...],
    dtype: int | tuple[int, ...],
    process_set: int,
    device: int,
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    wire: int = 0,
    root: int = 0,
    splits: tuple[int, ...] = (),
    /,
) -> Submission:
    """What is constant of an operation; see `aiacc.collectives.submission`, which calls this.

    The op name is "<verb>.<name>", or none without a `name`: then every start gets an automatic
    one, "<verb>.noname.<generation>.<n>", n counting the unnamed calls of this verb in the process
    set since `init` or the last join, which is what generation counts.
    A tuple of dtypes makes a group of an ALLREDUCE, ALLGATHER or REDUCESCATTER: tensors under one
    name, which become ready together, with a tuple of as many shapes.
    `root` is a global rank. The output of REDUCESCATTER has d0 // n rows and one more on the first
    d0 % n members; Sum and Average only. `splits[i]`: rows of an ALLTOALL for the i-th member.
    JOIN has no name, memory or process set (`take_join`).
    `device`: -1 for host memory, else the ordinal of the CUDA device that all the memory is on.
    `wire`: how the float32 tensor of an ALLREDUCE travels, and is added up: 0 as it is, 1 float16,
    2 bfloat16, 3 float8_e4m3, 4 float8_e5m2 (these two between CUDA devices only); or coded, in
    host memory, with Sum and Average only: 5 int8, 6 int4, 7 float8 in blocks, 8 the largest
    elements, 9 random ones, plus 256 times their number (`aiacc.compression.wire`).
    Raises ValueError for what no job could do. Needs no `init`, and outlives `shutdown`.
    """

class Submission:
    """A prepared operation, to be started any number of times. Threads: any."""

    def start(
        self,
        input: int | tuple[int, ...],
        output: int | tuple[int, ...],
        stream: int = 0,
        residual: int | tuple[int, ...] = 0,
        /,
    ) -> int:
        """Queue the operation and return its handle at once.

        `input` and `output` are addresses of contiguous memory that must stay alive and untouched
        until `wait` returns; equal for in-place; tuples for a group. ALLGATHER, ALLTOALL, BARRIER
        and JOIN take output 0: the core allocates (`take_output`). An ALLGATHER of host memory may
        have room for equal shapes of all ranks instead, of which `input` may be this rank's part:
        then `take_output` gives no bytes, unless the shapes differ. BROADCAST reads `input` on the
        root only. `stream`: of a device, the CUDA stream (0: the legacy default one) whose work so
        far has to be done before the memory is read or written; the host does not wait for it.
        `residual`: of a coded ALLREDUCE, float32 of as many elements that are added to the input
        (after the prescale factor) and become what the code loses; the same memory in every step.
        Raises ValueError for bad input (also a name that is already in flight in the process set,
        and a process set without this rank), NotImplementedError for what this engine or device
        cannot, HorovodInternalError (`aiacc.CollectiveError`) when not initialised or after a fatal
        error.
        """

    def start_in_place(self, *tensors: object) -> int | None:
        """`start` an ALLREDUCE with ``tensors`` as input and output, and return its handle.

        None, and nothing is started, unless the core can read the tensors (`read_tensors_of`), and
        they have the number, shapes and dtypes that were prepared, for host memory.
        """

def allreduce_in_place(
    tensor: object,
    name: str | None,
    process_set: int,
    op: int,
    prescale: float,
    postscale: float,
    /,
) -> int | None:
    """`prepare` an ALLREDUCE of one tensor and start it with the tensor as input and output.

    None, and nothing is started, unless the core can read the tensor (`read_tensors_of`).
    """

def read_tensors_of(
    types: tuple[type, ...],
    exchange: object,
    has_other_values: Callable[[Any], bool] | None,
    bytes_have_other_values: Callable[[Any], bool] | None,
    lacks_memory: Callable[[Any], bool] | None,
    /,
) -> None:
    """Let the core read tensors of these types, and of no others.

    It reads contiguous ones in host memory, of dtypes that it has. `exchange`: DLPack's capsule
    ``__dlpack_c_exchange_api__`` of these types; None: they have none, and are not read.
    `has_other_values` says of a tensor whether it is a view that gives its memory other values,
    such as their negatives; it is not read then. `bytes_have_other_values` says so of integers of 8
    bits, which DLPack calls narrower ones, too. `lacks_memory` says of one at an address below
    `LOWEST_ADDRESS` whether it has elements and no memory for them; nor is it read then.
    """

#: What is below it is no address of memory, or that of a program which is not position-independent.
LOWEST_ADDRESS: int

def poll(handle: int) -> bool:
    """Whether `wait` would return at once. ValueError for an unknown handle."""

def wait(handle: int, stream: int = 0, /) -> bool:
    """Block (without the GIL) until done; raise what went wrong. Whether what travelled was coded:
    it is not on one host whose ranks share memory, nor while a rank has joined, whatever was asked.

    Of memory on a CUDA device, done means that its work is queued: what follows on `stream` of that
    device (0: the legacy default one) comes after it.
    Releases the handle unless it is an ALLGATHER, an ALLTOALL or a JOIN, which `take_output` and so
    on release. ValueError for an unknown handle.
    """

def times(handle: int) -> tuple[float, float]:
    """Block until done; when it was submitted and done, in seconds of `time.perf_counter`.

    Of memory on a CUDA device: when its work was queued. Raises what went wrong; does not release
    the handle. ValueError for an unknown handle.
    """

def take_output(handle: int) -> tuple[npt.NDArray[np.uint8], tuple[int, ...]]:
    """Bytes and shape that a finished ALLGATHER produced; the array owns its memory."""

def take_outputs(handle: int) -> list[tuple[npt.NDArray[np.uint8], tuple[int, ...]]]:
    """Bytes and shapes that a finished ALLGATHER of a group produced."""

def output_shapes(handle: int) -> list[tuple[int, ...]]:
    """Shapes that a finished ALLGATHER or ALLTOALL produced on a CUDA device; see `take_into`."""

def take_into(handle: int, outputs: tuple[int, ...], stream: int, /) -> tuple[int, ...]:
    """Copy what a finished ALLGATHER or ALLTOALL produced on a CUDA device, and release the handle.

    `outputs`: addresses of memory on that device, of the shapes that `output_shapes` says. The
    copies are queued on `stream`; the host does not wait. Returns the rows received from every
    member for an ALLTOALL, else ().
    """

def take_alltoall(
    handle: int,
) -> tuple[npt.NDArray[np.uint8], tuple[int, ...], tuple[int, ...]]:
    """Bytes, shape and the rows received from every member of a finished ALLTOALL."""

def take_join(handle: int) -> int:
    """The last rank that joined, once all have."""

def send(input: int, bytes: int, to: int, key: str, /) -> int:
    """Send that many bytes at this address of host memory to a rank; returns a handle at once.

    They go to a `receive` there with the same key, in the order of the calls with that key. The
    send is over when that rank has them, or its receive gets them for certain. MismatchError if it
    receives another number of bytes; ValueError for bad input.
    """

def receive(output: int, bytes: int, source: int, key: str, /) -> int:
    """Receive what `send` says, into this address of host memory; returns a handle at once.

    `source` -1: from whichever rank sends first, as `take_source` tells, which then releases the
    handle.
    """

def take_source(handle: int) -> int:
    """The rank that sent what a finished `receive` has got."""

def add_process_set(ranks: tuple[int, ...], /) -> int:
    """Register a process set and return its id.

    Collective over all ranks of the job. Blocks (without the GIL) until the members are connected.
    ValueError if the ranks do not exist or are a set already.
    """

def remove_process_set(id: int, /) -> bool:
    """Forget a process set; False for the global one and one that is not registered.

    Collective over all ranks of the job. Blocks (without the GIL). What is not ready in the set by
    then fails on its members.
    """

def form_process_set(name: str, ranks: tuple[int, ...], /) -> int:
    """Register a process set that its members alone ask for, and return its id.

    Collective over these ranks, with the same name. Blocks (without the GIL) until they are
    connected. The ranks may be a set already. ValueError without a name, for ranks that do not
    exist, and unless this one is among them; MismatchError if they gave different ranks.
    """

def leave_process_set(id: int, /) -> None:
    """Leave a process set that was formed. Never blocks.

    It is removed when all its members have left. What another member submits to it, and this rank
    has not, fails.
    """

def process_set_ranks(id: int, /) -> tuple[int, ...]:
    """Global ranks of a process set, ascending. ValueError for an unknown one."""

def process_set_ids() -> tuple[int, ...]:
    """Ids of the registered process sets, ascending; 0 is all ranks."""

def flush() -> None:
    """Tell the coordinator that this rank will wait now: negotiate what is queued."""

def start_timeline(path: bytes, mark_cycles: bool = False) -> None: ...
def mark_step() -> None:
    """End a step of training in the timeline, if one is on."""

def stop_timeline() -> None: ...
def propose_parameters(unit_bytes: int, lanes: int, gpu_algorithm: str = "") -> None:
    """Change the planner's parameters on all ranks, together, after a later round.

    `gpu_algorithm`: auto, ring or tree; "" for that of AIACC_GPU_ALGORITHM. ValueError for another
    word, and for numbers that the engine has no use for.
    """

def stats() -> dict[str, int | float]:
    """Counters since `init`: rounds, control_bytes, units, tensors, data_bytes, wait_ns, ..."""

def engines() -> list[tuple[str, bool, str]]:
    """(name, viable, version or reason and remedy) of every engine this build knows."""

def coding_seconds(wire: int, elements: int) -> float:
    """How long this rank takes to code an all-reduce of so many float32 by itself, with residuals.

    Blocks: for some times as long; needs no `init`. Raises ValueError for a wire format that is not
    coded, see `prepare`.
    """

def select_largest(pairs: int, input: int, count: int, k: int, mode: int) -> bool:
    """Write the k largest magnitudes of `count` float32 to `pairs`: values, then uint32 indices.

    Addresses of contiguous host memory. `mode`: 0 or 1 for the largest, 2 for MSTopK as published.
    Blocks: while it works. False: a value is NaN or infinite; then the first such is among the
    pairs, and the others are zeros. Raises ValueError for a k or a mode that cannot be.
    """

class LarsOptions:
    """Of `aiacc.optim.LARS`. `first`: momenta are written without being read."""

    def __init__(
        self,
        *,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        trust_coefficient: float,
        eps: float,
        least_ratio: float,
        largest_ratio: float,
        nesterov: bool,
        larc: bool,
        adapt: bool,
        first: bool,
    ) -> None: ...

def lars_step(
    tensors: Sequence[tuple[int, int, int, int]], options: LarsOptions, threads: int
) -> None:
    """One step of LARS on float32 tensors in host memory, without the GIL, by so many threads.

    `tensors`: addresses of weights, gradient and momentum (0: none), which are contiguous, and the
    number of elements.
    """

def lars_step_on_gpu(
    tensors: Sequence[tuple[int, int, int, int]],
    options: LarsOptions,
    *,
    device: int,
    stream: int,
    lr: int,
    workspace: int,
) -> None:
    """Queue the same on a stream of a GPU, for memory of it, and return.

    `lr`: address of a float32 on the GPU that is read instead of the options', or 0. `workspace`:
    memory of `optim_workspace_bytes`, at a multiple of 16. All of it stays until the stream is past
    the step. Raises NotImplementedError or EngineError where `optim_problem` has an answer.
    """

class LambOptions:
    """Of `aiacc.optim.LAMB`."""

    def __init__(
        self,
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        least_ratio: float,
        largest_ratio: float,
        bias_correction: bool,
        adapt: bool,
    ) -> None: ...

def lamb_step_on_gpu(
    tensors: Sequence[tuple[int, int, int, int, int, float, int]],
    options: LambOptions,
    *,
    device: int,
    stream: int,
    lr: int,
    clip: int,
    workspace: int,
) -> None:
    """Queue a step of LAMB on a stream of a GPU, for float32 in memory of it, and return.

    `tensors`: addresses of weights, gradient, mean of gradients and of their squares, which are
    contiguous; address of the number of the step, from 1 on, as a float32 on the GPU, or 0 and the
    number; elements. `clip`: address of a float32 on the GPU that multiplies gradients, or 0. The
    rest is as of `lars_step_on_gpu`.
    """

def optim_workspace_bytes(tensors: int) -> int:
    """Bytes on the GPU that a step of so many tensors needs meanwhile."""

def optim_problem(device: int) -> str:
    """Why there are no kernels of optimizers on a CUDA device; "" once they are loaded.

    May wait for the GPU the first time.
    """

def pack_factors_on_gpu(
    factors: Sequence[tuple[int, int, int, int, int, int, float, float]],
    *,
    float64: bool,
    device: int,
    stream: int,
) -> None:
    """Queue packing factors on a stream of a GPU, for memory of it, and return.

    `factors`: addresses of n x d x d elements and of where their upper triangles are packed in the
    layout of `aiacc.kfac.packing`; d; n; elements from one row, and from one matrix, to the next;
    two numbers that only `average_factors_on_gpu` looks at. `float64`: instead of float32. All
    memory stays until the stream is past it. Raises NotImplementedError or EngineError where
    `optim_problem` has an answer.
    """

def unpack_factors_on_gpu(
    factors: Sequence[tuple[int, int, int, int, int, int, float, float]],
    *,
    float64: bool,
    device: int,
    stream: int,
) -> None:
    """Queue the way back, which writes both triangles; as `pack_factors_on_gpu`."""

def average_factors_on_gpu(
    factors: Sequence[tuple[int, int, int, int, int, int, float, float]],
    *,
    float64: bool,
    device: int,
    stream: int,
) -> None:
    """Queue the same with running means, which what is packed enters.

    The two numbers: a factor of what is packed, and its weight in the mean; with 1 the mean is not
    read. Else as `pack_factors_on_gpu`.
    """

def nccl_lanes_problem(lanes: int, in_use: bool) -> str:
    """Why so many lanes of NCCL would not be safe in this process; "" if they are, or without NCCL.

    `in_use`: others in this process may have made communicators.
    """

def nccl_gpus() -> tuple[list[str], str, bool, int]:
    """Tell (PCI addresses of the GPUs it sees, NCCL_HOSTID, whether ranks may share, capability).

    The capability is the lowest of these GPUs, the number before the point. The list is empty if
    they are not known. Initialises the driver.
    """

def load_mpi(plugin: str, library: str) -> str:
    """Load the `mpi` plug-in against this MPI library; "" or the reason why not."""

def mpi_initialize(network_lanes: int = 0, timeout_s: float = 30.0) -> tuple[int, int, str]:
    """MPI_Init if nobody did; (rank, size, library version). Collective, blocks.

    `network_lanes`: independent channels to other hosts, 0 when all ranks share one.
    """

def mpi_reserve(lanes: int) -> None:
    """Take the memory for so many lanes of engine mpi; for 0 only meet. Collective, blocks.

    EngineError on every rank if a host has not enough, and nothing is lost.
    """

def mpi_leave_unfinished() -> None:
    """The end of this process leaves MPI as it is, so that mpirun sees that it has died."""

def mpi_all_gather(payload: bytes) -> list[bytes]:
    """Every rank's payload over MPI, for bootstrap. Collective, blocks."""

def build_info() -> dict[str, str]:
    """Compiler, build type, CUDA and MPI found at build time (or why not)."""

# Configuration: the one table of environment variables lives in csrc/base/env.cc.
def env_table() -> list[tuple[str, str, str, str, str]]:
    """(name, Horovod alias or "", type, default, meaning) of every variable."""

def configure_log(rank: int) -> None:
    """Log as AIACC_LOG_LEVEL says, in the name of a rank; `init` does so, too."""

def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of open files to the hard one, at most to a million."""

def exhaustion_remedy(error_number: int) -> str:
    """What to do about an errno value that says that descriptors have run out; "" for others."""

def log_info(text: str) -> None:
    """Write one line to the log, if AIACC_LOG_LEVEL shows information."""

def log_warning(text: str) -> None:
    """Write one line to the log, if AIACC_LOG_LEVEL shows warnings."""

def config(variables: Mapping[str, str] | None = None) -> dict[str, str | int | float | bool]:
    """Parsed values by lower-case name without the AIACC_ prefix; ValueError if one is wrong.

    Of ``variables`` instead of those of this process, if they are given.
    """
