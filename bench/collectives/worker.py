"""One rank of one job: measures its rows and writes what it saw to a file. Started by ``jobs``."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from bench.collectives import exchange, peers, sockets, training
from bench.collectives.measure import Contender, interleave
from bench.collectives.rows import (
    BFLOAT16_EXACT,
    EXCHANGE,
    IDLE,
    LATENCY_BYTES,
    ROWS,
    SMALL_BYTES,
    SMALL_TENSORS,
    TENSORFLOW,
)
from bench.collectives.tensors import Tensors
from bench.shapes import Shape, resnet50

_SETTLE_S = 0.5
_FLOAT_BYTES = 4


def main() -> None:
    """Take the arguments that ``jobs`` gives, measure, write."""
    options = _options()
    torch.set_num_threads(1)
    rank, size = options.rank, options.size
    with_aiacc = rank is None
    if with_aiacc:
        import aiacc.torch as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()
        if size != options.size:
            raise RuntimeError(f"launched as one of {options.size} ranks, but aiacc has {size}")
    found: dict[str, object] = {"rank": rank}
    if IDLE in options.rows:
        found[IDLE] = _idle(options, with_aiacc, rank)
    rows = [row for row in ROWS if row.key in options.rows]
    if rows:
        gloo = peers.Gloo(rank, size, options.out / "gloo", options.timeout)
        records: dict[str, dict[str, object]] = {}
        for row in rows:
            contenders = _contenders(row.key, with_aiacc, gloo, rank, size, row.calls)
            seen = interleave(row, contenders, options.iterations, gloo.align)
            records[row.key] = {name: asdict(record) for name, record in seen.items()}
            del contenders
        found["rows"] = records
        gloo.align()
        gloo.close()
    if with_aiacc:
        found["engine"] = _engine()
        found["stats"] = _stats()
        hvd.shutdown()
    (options.out / f"rank{rank}.json").write_text(json.dumps(found))


def _contenders(
    key: str, with_aiacc: bool, gloo: peers.Gloo, rank: int, size: int, calls: int
) -> list[Contender]:
    """Everybody who takes part in a row, aiacc first."""

    def data(shapes: Sequence[tuple[str, Shape]]) -> Tensors:
        return Tensors(shapes, rank, size)

    if key in TENSORFLOW:
        return _in_graphs(key, with_aiacc, gloo, rank, size)
    if key in EXCHANGE:
        return exchange.contenders(key, with_aiacc, gloo, rank, size)
    if with_aiacc:
        from bench.collectives import ours
    count = SMALL_BYTES // _FLOAT_BYTES
    small = [(f"small{index}", (count,)) for index in range(SMALL_TENSORS)]
    if key == "resnet50":
        tensors = data(resnet50())
        mine = [ours.one_by_one(tensors, True, key)] if with_aiacc else []
        theirs = [
            *peers.one_by_one(gloo, tensors, True),
            peers.buckets(gloo, tensors),
            sockets.ring(rank, size, sum(tensor.nbytes for tensor in tensors.tensors)),
        ]
    elif key == "small":
        tensors = data(small)
        mine = [ours.one_by_one(tensors, False, key)] if with_aiacc else []
        theirs = peers.coalesced(gloo, tensors)
    elif key == "small_async":
        tensors = data(small)
        mine = [ours.one_by_one(tensors, False, key)] if with_aiacc else []
        theirs = peers.one_by_one(gloo, tensors, False)
    elif key in LATENCY_BYTES:
        tensors = data([(key, (LATENCY_BYTES[key] // _FLOAT_BYTES,))])
        mine = [ours.blocking(tensors, calls)] if with_aiacc else []
        theirs = peers.blocking(gloo, tensors, calls)
    elif key == "step":
        tensors = data(resnet50())
        mine = ours.steps(key, tensors, size) if with_aiacc else []
        theirs = [
            *training.ddp(gloo, tensors),
            training.without_communication(tensors, rank),
        ]
    elif key == "step_bf16":
        tensors = Tensors(resnet50(), rank, size, BFLOAT16_EXACT)
        mine = ours.steps(key, tensors, size) if with_aiacc else []
        theirs = [training.ddp_fp16(gloo, tensors)]
    else:
        tensors = data(small)
        mine = [ours.submit(tensors)] if with_aiacc else []
        theirs = [peers.submit(gloo, tensors)]
    return mine + theirs


def _in_graphs(
    key: str, with_aiacc: bool, gloo: peers.Gloo, rank: int, size: int
) -> list[Contender]:
    from bench.collectives import graphs

    data = Tensors(resnet50(), rank, size)
    if key == "tf_gradients":
        return graphs.gradients(data) if with_aiacc else []
    distributed = graphs.Distributed(rank, size, gloo.folder, gloo.align)
    mine = [graphs.step(data)] if with_aiacc else []
    return [*mine, distributed.step(data), graphs.alone(data, rank)]


def _idle(options: argparse.Namespace, with_aiacc: bool, rank: int) -> dict[str, float]:
    """CPU time and rounds of a rank that has nothing to do after its first collective."""
    rounds: Callable[[], float]
    if with_aiacc:
        import aiacc.torch as hvd

        hvd.allreduce(torch.ones(1), name="before idling")
        rounds = lambda: float(_stats().get("rounds", -1))  # noqa: E731
    else:
        gloo = peers.Gloo(rank, options.size, options.out / "gloo", options.timeout)
        gloo.align()
        rounds = float
    time.sleep(_SETTLE_S)
    cpu, before = time.process_time_ns(), rounds()
    time.sleep(options.idle_seconds)
    cpu = time.process_time_ns() - cpu
    exchanged = rounds() - before
    if not with_aiacc:
        gloo.close()
    return {"cpu_ms": round(cpu / 1e6, 4), "rounds": exchanged}


def _engine() -> str:
    """The engine that aiacc really took."""
    import aiacc

    return str(aiacc.engine())


def _stats() -> dict[str, int | float]:
    """Counters of aiacc."""
    import aiacc

    return dict(aiacc.stats())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", required=True, type=lambda text: text.split(","))
    parser.add_argument("--rank", type=int, help="of a job without aiacc, which has no launcher")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--idle-seconds", type=float, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
