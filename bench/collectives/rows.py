"""The rows that are measured and the bars that they are held to. Imports nothing heavy."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Row:
    """One workload.

    Attributes:
        key: What ``--rows`` takes.
        title: What the table shows.
        scope: "collective": a sample lasts from the arrival of the last rank to the departure of
            the last one. "caller": a sample is the time that one rank's calling thread spent.
        unit: Unit of the samples.
        divisor: Operations in one timed call; samples are per operation.
        calls: Timed calls, back to back, in each round.
        rounds: Multiplies ``--iterations``, for rows that are short.
        ranks: With fewer ranks the row is left out.
    """

    key: str
    title: str
    scope: str = "collective"
    unit: str = "ms"
    divisor: int = 1
    calls: int = 1
    rounds: int = 1
    ranks: int = 1


@dataclass(frozen=True)
class Bar:
    """A limit that a row must reach with two ranks.

    Attributes:
        row: Key of the row.
        engine: Setting of ``AIACC_ENGINE`` that it holds for, under every launcher.
        limit: Highest ratio to ``peer``, or highest value in the row's unit when ``peer`` is "".
        peer: Contender that is divided by.
    """

    row: str
    engine: str
    limit: float
    peer: str


LATENCY_BYTES = {"latency_4B": 4, "latency_256K": 256 * 1024, "latency_4M": 4 * 1024 * 1024}
SMALL_TENSORS = 400
SMALL_BYTES = 1024
GROUPED_TENSORS = 100
GROUPED_BYTES = 64 * 1024
STEP_GROUPS = 8
#: Integers up to here are bfloat16 numbers.
BFLOAT16_EXACT = 256
#: Rows of `exchange`.
EXCHANGE = ("grouped", "alltoall", "reducescatter", "process_set")

ROWS = (
    Row("resnet50", "161 gradients of ResNet-50, 97.5 MiB, averaged"),
    Row("small", f"{SMALL_TENSORS} tensors of 1 KB, one by one"),
    Row("small_async", f"{SMALL_TENSORS} tensors of 1 KB, one by one on both sides"),
    Row("latency_4B", "one blocking all-reduce, 4 B", calls=40, rounds=2),
    Row("latency_256K", "one blocking all-reduce, 256 KB", calls=20, rounds=2),
    Row("latency_4M", "one blocking all-reduce, 4 MB", calls=5, rounds=2),
    Row("grouped", f"{GROUPED_TENSORS} tensors of 64 KB as one group, averaged"),
    Row("alltoall", "all-to-all, 4 MB on every rank"),
    Row("reducescatter", "reduce-scatter, 4 MB on every rank"),
    Row("process_set", "all-reduce of 4 MB in a process set of all ranks but one", ranks=3),
    Row("step", "training step, ResNet-50's shapes, free backward"),
    Row("step_bf16", "the same step, gradients as bfloat16 on their way"),
    # First of the two: tf.distribute wants to be there before TensorFlow does anything.
    Row("tf_step", "training step of Keras, ResNet-50's shapes"),
    Row("tf_gradients", "the 161 gradients, computed and averaged in a tf.function"),
    Row("submit", "submit from Python, per tensor", "caller", "us", SMALL_TENSORS, rounds=2),
)
IDLE = "idle"
KEYS = (*(row.key for row in ROWS), IDLE)
#: Rows for which TensorFlow is imported: measured when they are asked for, and by themselves, since
#: its threads would be there for the others too.
TENSORFLOW = ("tf_step", "tf_gradients")

BARS = (
    Bar("resnet50", "auto", 0.2, "gloo"),
    Bar("resnet50", "tcp", 0.7, "gloo"),
    Bar("small", "auto", 0.45, "gloo_coalesced"),
    Bar("small", "tcp", 0.5, "gloo_coalesced"),
    Bar("latency_4B", "auto", 0.02, ""),
    Bar("latency_4B", "tcp", 0.6, "gloo"),
    Bar("latency_4M", "auto", 0.3, "gloo"),
    Bar("latency_4M", "tcp", 0.9, "gloo"),
    Bar("grouped", "auto", 1.0, "gloo_coalesced"),
    Bar("grouped", "tcp", 1.0, "gloo_coalesced"),
    Bar("alltoall", "auto", 1.0, "gloo"),
    Bar("alltoall", "tcp", 1.0, "gloo"),
    Bar("reducescatter", "auto", 1.0, "gloo"),
    Bar("reducescatter", "tcp", 1.0, "gloo"),
    Bar("process_set", "auto", 1.0, "gloo"),
    Bar("process_set", "tcp", 1.0, "gloo"),
    Bar("step", "auto", 0.45, "ddp"),
    Bar("step", "tcp", 0.42, "ddp"),
    Bar("step_bf16", "auto", 1.0, "aiacc_fp32"),
    Bar("step_bf16", "tcp", 1.0, "aiacc_fp32"),
    Bar("tf_gradients", "auto", 1.1, "aiacc_torch"),
    Bar("tf_gradients", "tcp", 1.1, "aiacc_torch"),
    Bar("tf_step", "auto", 1.0, "tf_distribute"),
    Bar("tf_step", "tcp", 1.0, "tf_distribute"),
    Bar("submit", "auto", 2.5, ""),
    Bar("submit", "tcp", 2.5, ""),
    Bar("submit_cpp", "", 2.0, ""),
)

CONTENDERS = {
    "aiacc": "aiacc",
    "aiacc_groups": f"aiacc, {STEP_GROUPS} groups",
    "aiacc_view": "aiacc, gradient_as_bucket_view",
    "aiacc_fp16": "aiacc, float16",
    "aiacc_fp32": "aiacc, float32",
    "aiacc_zeroed": "aiacc, zero_grad(set_to_none=False)",
    "aiacc_view_zeroed": "aiacc, gradient_as_bucket_view, zero_grad(set_to_none=False)",
    "aiacc_torch": "aiacc, from torch",
    "tf_distribute": "tf.distribute, RING, custom loop",
    "gloo": "torch gloo",
    "gloo_multi": "torch gloo, 4 contexts",
    "gloo_coalesced": "torch gloo, coalesced call",
    "gloo_flat": "torch gloo, copied into one tensor by hand",
    "gloo_buckets": "torch gloo, 25 MiB buckets by hand",
    "sockets": "plain sockets: the bytes of a ring, not reduced",
    "ddp": "DDP/gloo",
    "ddp_multi": "DDP/gloo, 4 contexts",
    "ddp_view": "DDP/gloo, gradient_as_bucket_view",
    "ddp_fp16": "DDP/gloo, fp16_compress_hook",
    "none": "no communication",
}


def row_of(key: str) -> Row:
    """The row with this key."""
    return next(row for row in ROWS if row.key == key)


def bar_of(row: str, engine: str, ranks: int) -> Bar | None:
    """The bar of a row; with more ranks than two, to be no slower than the peer of that bar."""
    bar = next((bar for bar in BARS if (bar.row, bar.engine) == (row, engine)), None)
    if bar is None or ranks == 2:
        return bar
    return replace(bar, limit=1.0) if bar.peer else None
