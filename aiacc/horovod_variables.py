"""Variables of Horovod's that have no effect here, and the one warning about them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

_CYCLE = "there is no cycle"
_CHOICE = "the engine decides"
_TUNER = "what is tuned is the number of lanes, in a fixed number of steps"
_GPU = "there are no GPU operations yet"

#: Why a variable is ignored, and the value that asks for nothing: Horovod's default.
_IGNORED: dict[str, tuple[str, str]] = {
    "HOROVOD_FUSION_THRESHOLD": (
        "there is no fusion buffer; AIACC_UNIT_BYTES sets the size of what is packed or split",
        "134217728",
    ),
    "HOROVOD_CYCLE_TIME": (_CYCLE, "1"),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": (_CHOICE, "0"),
    "HOROVOD_HIERARCHICAL_ALLGATHER": (_CHOICE, "0"),
    "HOROVOD_TORUS_ALLREDUCE": (_CHOICE, "0"),
    "HOROVOD_CPU_OPERATIONS": ("AIACC_ENGINE chooses", ""),
    "HOROVOD_CONTROLLER": ("AIACC_ENGINE chooses", ""),
    "HOROVOD_DISABLE_GROUP_FUSION": ("a group begins together, but is packed like others", "0"),
    "HOROVOD_BATCH_D2D_MEMCOPIES": (_GPU, "1"),
    "HOROVOD_ENABLE_ASYNC_COMPLETION": (_GPU, "0"),
    "HOROVOD_ENABLE_XLA_OPS": (_GPU, "0"),
    "HOROVOD_DISABLE_NVTX_RANGES": (_GPU, "0"),
    "HOROVOD_ELASTIC": ("elastic jobs are not available yet", "0"),
    "HOROVOD_AUTOTUNE_LOG": (_TUNER, ""),
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": (_TUNER, "3"),
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": (_TUNER, "10"),
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": (_TUNER, "20"),
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": (_TUNER, "0.8"),
    "HOROVOD_MPI_THREADS_DISABLE": ("lanes need threads", "0"),
    "HOROVOD_THREAD_AFFINITY": ("the system places the threads", ""),
    "HOROVOD_CCL_CACHE": ("there is no oneCCL", "0"),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": (_CHOICE, "1073741824"),
    "HOROVOD_LOG_HIDE_TIME": ("the log always has the time", "0"),
}

#: What asks for something that is so in any case, what a launcher of Horovod's leaves behind, and
#: (by their beginnings) what only concerns its build.
_HARMLESS = frozenset(
    {
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "HOROVOD_HOSTNAME",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_SECRET_KEY",
        "HOROVOD_START_TIMEOUT",
        "HOROVOD_ELASTIC_TIMEOUT",
        "HOROVOD_DEBUG",
        "HOROVOD_CMAKE",
        "HOROVOD_SKIP_COMPILE",
        "HOROVOD_LOCAL_VERSION",
        "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    }
)
_OF_THE_BUILD = (
    "HOROVOD_WITH_",
    "HOROVOD_WITHOUT_",
    "HOROVOD_GPU",
    "HOROVOD_CUDA_",
    "HOROVOD_ROCM_",
    "HOROVOD_NCCL_",
    "HOROVOD_NVTX_",
    "HOROVOD_BUILD_",
    "HOROVOD_SPARK_",
)


def warning_about(variables: Mapping[str, str], honoured: Collection[str]) -> str | None:
    """What to say about variables that are set and have no effect; None if there are none.

    Args:
        variables: Variables of the environment, of any name.
        honoured: Names of Horovod's that have an effect.
    """
    ignored = {
        name: reason
        for name, value in sorted(variables.items())
        if name.startswith("HOROVOD_") and name not in honoured
        for reason in [_reason(name, value)]
        if reason is not None
    }
    if not ignored:
        return None
    listed = "; ".join(f"{name} ({reason})" for name, reason in ignored.items())
    return f"these variables have no effect: {listed}. `aiaccrun --help-env` prints those that have"


def _reason(name: str, value: str) -> str | None:
    if name in _HARMLESS or name.startswith(_OF_THE_BUILD):
        return None
    reason, default = _IGNORED.get(name, ("unknown", ""))
    return None if value in ("", default) else reason
