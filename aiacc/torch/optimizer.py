"""The optimizer that averages gradients over all ranks before it steps."""

from __future__ import annotations

import math
import operator
import warnings
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from aiacc import arguments, basics
from aiacc.collectives.reduce_ops import (
    Adasum,
    Average,
    Sum,
    gradient_factors,
    name_of_op,
)
from aiacc.compression.codecs import NONE, Codec
from aiacc.compression.compressor import allowed_of
from aiacc.compression.policy import Policy
from aiacc.compression.wire import is_coded
from aiacc.planning.cost import counted
from aiacc.planning.plan import ALL_REDUCE, DECOUPLED, SCHEDULES, Plan, check_kind
from aiacc.planning.search import check_wish
from aiacc.process_sets import ProcessSet, global_process_set, set_id
from aiacc.torch.adasum_optimizer import AdasumDistributed, distribute_adasum
from aiacc.torch.compression.compressors import Compression, Compressor, compressor_of, name_of
from aiacc.torch.compression.wire_format import has_cast
from aiacc.torch.decoupled.checks import check_arguments
from aiacc.torch.decoupled.distribute import distribute_decoupled
from aiacc.torch.decoupled.optimizer import DecoupledDistributed
from aiacc.torch.decoupled.setup import Setup
from aiacc.torch.optimizer_mixin import (
    DistributedOptimizerMixin,
    check_passes,
    default_names,
    distribute,
)
from aiacc.torch.reducer.codec import compressing
from aiacc.torch.reducer.feedback import feedback_of, warn_if_idle, warn_of_patterns
from aiacc.torch.reducer.gradients import NamedParameters, checked_names
from aiacc.torch.reducer.identity import next_identity
from aiacc.torch.reducer.options import Asked, ReductionOptions
from aiacc.torch.reducer.plan import (
    FUSED_BYTES,
    Planner,
    by_size,
    chosen,
    evenly,
    fused,
    planned,
    singly,
)
from aiacc.torch.reducer.reducer import GradientReducer
from aiacc.torch.reducer.storage import flat_buckets, own_memory

#: Small enough for the first bucket to leave early, large enough to be cut into parallel units.
DEFAULT_BUCKET_BYTES = 8 << 20
_BUCKET_BYTES = arguments.Rule(
    "a finite number of bytes > 0",
    arguments.is_number,
    lambda number: bool(0 < number < math.inf),
    f"leave it out for {DEFAULT_BUCKET_BYTES >> 20} MiB",
)


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | Compressor | Codec | Policy | str = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: bool = False,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    plan: Plan | str | None = None,
    schedule: str = ALL_REDUCE,
    model: torch.nn.Module | None = None,
) -> DistributedOptimizerMixin | AdasumDistributed | DecoupledDistributed:
    """An optimizer like ``optimizer`` whose `step` uses the gradients of all ranks.

    Each gradient is submitted as soon as the backward pass has computed it, so that communication
    overlaps with the rest of the pass. To clip gradients (or to unscale them, with a GradScaler)::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    Collective: every rank wraps an optimizer of the same parameters, and makes its optimizers in
        the same order, by which gradients of two optimizers are told apart, whatever their names.

    Args:
        optimizer: Optimizer to wrap. Use only the returned one from now on; it shares the state
            and the parameter groups.
        named_parameters: (name, parameter) for every parameter of ``optimizer``; the names pair
            the gradients of the ranks; another optimizer may have the same. Default: names by
            position.
        compression: Form in which gradients travel: one of `Compression`; the name of a codec of
            `aiacc.compression.codecs`, such as "int8" or "mstopk:density=0.01"; or a `Policy`,
            which also says which gradients are compressed (default: of two dimensions and 16,384
            elements at least), from which step on, and what becomes of what is lost. "auto": some
            steps measure what bf16 or int8 would save on this network; the fastest stays, and a
            line says so. "auto:int8+mstopk" chooses between these, by time alone.
        backward_passes_per_step: Passes whose gradients are accumulated before each reduction.
        op: Average, Sum, Min, Max or Product; or Adasum, which combines the changes that the ranks
            would make to the parameters, in `step`.
        gradient_predivide_factor: Divide by this before the sum and multiply by it afterwards;
            with op=Average only.
        num_groups: Deprecated form of ``groups``.
        groups: Number of groups, or disjoint lists of parameters, whose gradients are reduced
            together as soon as the last of a group is there; those in no list are reduced singly.
        sparse_as_dense: Reduce sparse gradients as dense ones; otherwise the entries of all ranks
            are gathered.
        process_set: Ranks that take part; on other ranks the optimizer steps with its own
            gradients.
        gradient_as_bucket_view: Let gradients live in persistent flat buckets from the second step
            on, laid out in the order in which the backward pass computes them. A bucket is one
            operation without copies before or after, and no step allocates memory for gradients.
            Parameters' ``grad`` are views of buckets: change them in place, and clear them with
            ``zero_grad(set_to_none=False)``, so that autograd adds to them. After torch's default
            ``zero_grad()`` each gradient is copied to its view. In host memory that costs more than
            views save: if the second step copies most of them, the ranks give the flat memory up,
            and a bucket is a group of gradients, as those of ``groups`` are.
        bucket_bytes: Size of such a bucket, or of one of the decoupled schedule; a larger gradient
            has one of its own.
        plan: Which gradients travel together, by the names of ``named_parameters``
            (`aiacc.planning`, `aiacc-plan`); equal on all ranks, which compare it in their first
            step. From the second step on a bucket leaves when its last gradient is there; with
            ``gradient_as_bucket_view`` its gradients are views of one flat memory. "auto": record
            13 steps, plan from when their gradients came and from what their operations cost, try
            that plan, DDP's buckets, buckets of 25 MiB and the best of these with larger units, for
            some steps each, stay with what was fastest, no plan perhaps, and say so; plan anew when
            steps change. The name of a planner, "optimal" for example: record, plan once, and stay
            with that.
        schedule: "all_reduce"; or "decoupled" (Zhang et al., "DeAR", ICDCS 2023): the backward
            pass reduces each bucket to shards, `step` updates this rank's 1/N of the parameters,
            with 1/N of the state, and whatever uses a parameter next waits until the others' parts
            of it have come. For optimizers that update each element by itself.
            Parameters and gradients become views of flat buckets; gradients stay a rank's own:
            clip them with the returned optimizer's ``clip_grad_norm_``. Call its ``flush`` before
            code that torch does not see uses parameters, and its ``consolidate_state_dict``, on
            every rank, before ``state_dict`` (docs/planning.md, "The decoupled schedule").
        model: What is trained; for the decoupled schedule.

    Returns:
        Instance of a subclass of the class of ``optimizer``, of the same name, that has
        ``synchronize``, ``skip_synchronize`` and ``set_backward_passes_per_step`` besides.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: Another wrong argument, or aiacc is not initialised.
    """
    arguments.check(
        locals(),
        optimizer=arguments.OPTIMIZER,
        model=arguments.or_none(arguments.MODULE),
        bucket_bytes=_BUCKET_BYTES,
    )
    prescale_factor, postscale_factor = gradient_factors(op, gradient_predivide_factor)
    set_id(process_set)  # refuses one that is not registered
    passes = check_passes(backward_passes_per_step)
    if isinstance(optimizer, DistributedOptimizerMixin | AdasumDistributed | DecoupledDistributed):
        raise ValueError(
            f"optimizer is a DistributedOptimizer ({type(optimizer).__name__}) already (expected "
            "one of torch's); wrap it once"
        )
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} (expected one of {', '.join(SCHEDULES)})")
    groups = _resolve_groups(num_groups, groups)
    named = _name_parameters(optimizer, named_parameters)
    basics.size()  # ValueError before init
    allowed = allowed_of(compression)
    finds_codec = allowed is not None
    compressor: Any = Policy(NONE) if finds_codec else compressor_of(compression)
    given = repr(compression) if finds_codec else name_of(compressor)
    options = partial(
        ReductionOptions,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        sparse_as_dense=sparse_as_dense,
    )
    wish = check_wish(plan) if isinstance(plan, str) else None
    if plan is not None and wish is None:
        check_kind(plan)
    if schedule == DECOUPLED:
        if isinstance(plan, str):
            raise ValueError(
                f"plan={plan!r} with schedule='decoupled' (expected a Plan, or none); make one "
                "with aiacc-plan, or use schedule='all_reduce'"
            )
        if compressor is not Compression.none:
            raise ValueError(
                f"schedule='decoupled' with compression={given} (expected Compression.none: a "
                "reduce-scatter sends gradients as they are); use schedule='all_reduce'"
            )
        model = check_arguments(optimizer, model, op, groups, gradient_as_bucket_view)
        if plan is not None:
            _check_plan(plan, None, named, schedule)
        decoupled = options(
            planner=by_size(bucket_bytes) if plan is None else planned(plan),
            identity=next_identity(process_set),
        )
        return distribute_decoupled(optimizer, Setup(model, named, decoupled), passes)
    if op == Adasum:
        together = groups if plan is None else plan
        _check_adasum(process_set, together, gradient_as_bucket_view)
        if not has_cast(compressor):
            raise ValueError(
                f"op=Adasum with compression={given} (expected none, fp16 or bf16: changes of "
                "parameters are combined as numbers of at least 16 bits); use Compression.bf16"
            )
        adasum = distribute_adasum(optimizer, named, compressor, next_identity(process_set))
        adasum.set_backward_passes_per_step(passes)
        return adasum
    if gradient_as_bucket_view:
        _check_buckets(groups)
    feedback = feedback_of(compressor, prescale_factor)
    if feedback is not None:
        _check_sums(op, str(compression) if finds_codec else feedback.policy.codec)
    if finds_codec and (plan is not None or groups is not None or gradient_as_bucket_view):
        raise ValueError(
            f"compression={given} with plan, groups or gradient_as_bucket_view (expected none of "
            "them: it forms buckets of its own); leave them out, or name a codec"
        )
    compressed = [] if feedback is None else feedback.compressed(named)
    if feedback is not None:
        names = [name for name, _ in named]
        warn_of_patterns(feedback.policy.unmatched(names), names)
        warn_if_idle(feedback.policy, named, process_set)
    if isinstance(plan, Plan):
        _check_plan(plan, groups, named)
        planner = planned(plan)
    elif wish is not None:
        _check_alone(groups)
        planner = singly()
    elif gradient_as_bucket_view:
        planner = by_size(bucket_bytes if feedback is None else FUSED_BYTES, compressed)
    elif groups is None and feedback is not None and not finds_codec:
        planner = fused(FUSED_BYTES, compressed)
    else:
        planner = _planner(_names_of(groups, named))
    storage = flat_buckets if gradient_as_bucket_view else own_memory
    codec = partial(compressing, compressor) if feedback is None else feedback.codec
    asked = Asked(
        _asked(plan, _names_of(groups, named), bucket_bytes if gradient_as_bucket_view else None),
        "no codec" if feedback is None else given if finds_codec else str(feedback.policy),
        str(bool(sparse_as_dense)),
    )
    identity = next_identity(process_set)
    all_reduce = options(
        planner=planner, storage=storage, codec=codec, asked=asked, identity=identity
    )
    if feedback is not None:
        all_reduce = all_reduce._replace(settle=feedback.settle, drop=feedback.drop)
    reducer = GradientReducer(named, all_reduce, passes)
    return distribute(optimizer, reducer, wish, feedback, allowed)


def _resolve_groups(
    num_groups: int, groups: int | list[list[torch.Tensor]] | None
) -> int | list[list[torch.Tensor]] | None:
    if num_groups != 0:
        warnings.warn(
            "the argument 'num_groups' is deprecated; use 'groups'",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    if groups is None:
        return groups
    number: Any = groups
    if arguments.is_whole(number) and number > 0:
        return operator.index(number)
    if isinstance(groups, list) and all(
        isinstance(group, list | tuple) and all(isinstance(entry, torch.Tensor) for entry in group)
        for group in groups
    ):
        members = [entry for group in groups for entry in group]
        if len(set(members)) != len(members):
            raise ValueError("groups contain a parameter twice (expected disjoint lists)")
        return groups
    raise ValueError(
        f"groups={groups!r:.100} (expected a positive number or a list of lists of parameters)"
    )


def _asked(
    plan: Plan | str | None,
    groups: int | list[list[str]] | None,
    bucket_bytes: int | None,
) -> str:
    """What decides on buckets, to be compared by the ranks."""
    views = "" if bucket_bytes is None else " and gradient_as_bucket_view"
    if isinstance(plan, Plan):
        return f"plan {plan.digest[:12]} of {len(plan.buckets)} buckets{views}"
    if plan is not None:
        return f"plan={plan!r}{views}"
    if isinstance(groups, int):
        return f"{groups} groups"
    if groups is not None:
        checksum = zlib.crc32(repr(sorted(groups)).encode())
        return f"{len(groups)} groups of names with checksum {checksum:08x}"
    if bucket_bytes is not None:
        return f"buckets of {bucket_bytes} bytes"
    return "no plan"


def _names_of(
    groups: int | list[list[torch.Tensor]] | None, named: NamedParameters
) -> int | list[list[str]] | None:
    if groups is None or isinstance(groups, int):
        return groups
    name_of = {parameter: name for name, parameter in named}
    return [[name_of[p] for p in group if p in name_of] for group in groups]


def _planner(groups: int | list[list[str]] | None) -> Planner:
    if groups is None:
        return singly()
    return evenly(groups) if isinstance(groups, int) else chosen(groups)


def _check_adasum(process_set: ProcessSet, groups: object, buckets: bool) -> None:
    if process_set.process_set_id != 0:
        raise NotImplementedError(  # Horovod's class
            f"op=Adasum with {process_set} (expected global_process_set); use op=Average"
        )
    if groups is not None or buckets:
        raise ValueError(
            "op=Adasum with groups, a plan or gradient_as_bucket_view (expected none: changes of "
            "parameters are combined one by one); leave them out"
        )


def _check_sums(op: int, codec: Codec | str) -> None:
    if op not in (Average, Sum) and (isinstance(codec, str) or is_coded(codec)):
        raise ValueError(
            f"op={name_of_op(op)} with compression={codec} (expected Average or Sum: codecs are "
            "for sums); use Compression.bf16"
        )


def _check_buckets(groups: object) -> None:
    if groups is not None:
        raise ValueError(
            "gradient_as_bucket_view=True and groups are given (expected at most one of them, for "
            "buckets are groups); leave out one"
        )


def _check_alone(groups: object) -> None:
    if groups is not None:
        raise ValueError("plan and groups are given (expected at most one); leave out one")


def _check_plan(
    plan: Plan, groups: object, named: NamedParameters, schedule: str = ALL_REDUCE
) -> None:
    _check_alone(groups)
    if plan.schedule != schedule:
        raise ValueError(
            f"plan with schedule {plan.schedule!r} (expected {schedule!r}, the optimizer's); plan "
            f"with another planner, or pass schedule={plan.schedule!r}"
        )
    planned_names = {name for bucket in plan.buckets for name in bucket}
    strange = sorted(planned_names - {name for name, _ in named})
    if strange:
        remedy = "plan for this model, or pass the named_parameters() that it was planned for"
        raise ValueError(
            f"plan has {counted(len(strange), 'gradient')} that the optimizer lacks, "
            f"{strange[0]!r} for one (expected names of named_parameters, such as "
            f"{named[0][0]!r}); {remedy}"
        )
    trainable = [name for name, parameter in named if parameter.requires_grad]
    left_out = [name for name in trainable if name not in planned_names]
    if left_out:
        warnings.warn(
            f"plan leaves out {len(left_out)} of {len(trainable)} parameters, {left_out[0]!r} for "
            "one: their gradients are reduced one by one",
            stacklevel=3,
        )


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> list[tuple[str, torch.Tensor]]:
    """Name and parameter of everything that ``optimizer`` updates."""
    defaults = default_names(optimizer.param_groups)
    named = defaults if named_parameters is None else checked_names(named_parameters)
    name_of = {parameter: name for name, parameter in named}
    parameters = [parameter for _, parameter in defaults]
    unnamed = [index for index, parameter in enumerate(parameters) if parameter not in name_of]
    if unnamed:
        shapes = [tuple(parameters[index].shape) for index in unnamed[:5]]
        raise ValueError(
            f"named_parameters leaves out {len(unnamed)} of the optimizer's {len(parameters)} "
            f"parameters, of shapes {shapes} (expected all of them); "
            "pass the named_parameters() of every model that the optimizer updates"
        )
    for parameter in parameters:
        if hasattr(parameter, "full_tensor"):
            raise ValueError(
                f"parameter {name_of[parameter]!r} is a {type(parameter).__name__} (expected one "
                "with memory of its own): FSDP2 and tensor parallelism reduce its gradient "
                "themselves; use the optimizer as it is"
            )
    return [(name_of[parameter], parameter) for parameter in parameters]
