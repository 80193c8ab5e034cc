"""Chooses the MPI of this process, and loads the plug-in of the `mpi` engine and a library for it.

An MPI that is initialised under the launcher of another one ends the process, or takes it for a job
of one rank. So the launcher decides; without one, what is there does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from aiacc import _core
from aiacc.bootstrap.providers.mapped import initialized_mpis, mapped_libraries
from aiacc.config import UNKNOWN, MpiEnvironment, MpiFlavour
from aiacc.siblings import ancestors

#: What people call them, by their names in this code; also the names of their wheels on PyPI.
NAMES: dict[MpiFlavour, str] = {"mpich": "MPICH", "openmpi": "Open MPI"}
#: How to build a plug-in for them.
HEADERS: dict[MpiFlavour, str] = {
    "mpich": "pip install mpich",
    "openmpi": "apt-get install libopenmpi-dev",
}
#: What the dynamic linker knows their libraries by.
_SONAMES: dict[MpiFlavour, Sequence[str]] = {
    "mpich": ("libmpi.so.12", "libmpich.so.12"),
    "openmpi": ("libmpi.so.40",),
}
#: Where they share memory.
SHARED_MEMORY = "/dev/shm"
_MIB = 1 << 20
#: What MPI_Init needs there for a host and for each of its ranks, with a margin. MPICH 5.0 takes
#: 5.2 MiB for a rank, and with several lanes between hosts a MiB for every two of these; with less
#: than 10 MiB more its processes come to disagree, and crash. Open MPI 4.1 takes 4.0 MiB.
_HOST_BYTES: dict[MpiFlavour, int] = {"mpich": 12 * _MIB, "openmpi": 0}
_RANK_BYTES: dict[MpiFlavour, int] = {"mpich": 6 * _MIB, "openmpi": 5 * _MIB}
_LAUNCHERS = ("mpirun", "mpiexec", "hydra", "orte", "prte")
_FOLDER = Path(__file__).parent


def built() -> dict[MpiFlavour, str]:
    """What there are plug-ins for: version and library that each was built with, by flavour."""
    info = _core.build_info()
    return {flavour: info[f"mpi_{flavour}"] for flavour in NAMES if info[f"mpi_{flavour}"]}


def plugin(flavour: MpiFlavour) -> Path:
    """Where the plug-in for this flavour is, if it was built."""
    return _FOLDER / f"libaiacc_mpi_{flavour}.so"


def choose(
    launcher: MpiFlavour | None, available: Collection[MpiFlavour]
) -> tuple[list[MpiFlavour], str]:
    """Which plug-ins may serve this process. Pure.

    Args:
        launcher: Whose mpirun has started it; None: nobody's.
        available: What there are plug-ins for.

    Returns:
        Flavours, the first choice first, and "" or why there are none and what to do.
    """
    if launcher is None:
        flavours = [flavour for flavour in NAMES if flavour in available]
        return flavours, "" if flavours else (
            "this aiacc was built without MPI: install the mpich wheel or another MPI, then "
            "rebuild aiacc"
        )
    if launcher in available:
        return [launcher], ""
    served = " and ".join(NAMES[flavour] for flavour in NAMES if flavour in available)
    alternative = f"use the mpirun of {served}, or " if served else ""
    return [], (
        f"{NAMES[launcher]}'s mpirun started this process, and this aiacc was built for "
        f"{served or 'no MPI'}: {alternative}rebuild aiacc where {NAMES[launcher]}'s mpicc is on "
        f"PATH ({HEADERS[launcher]})"
    )


def fabrics(root: Path = Path("/")) -> list[str]:
    """Devices of this host for which MPI is worth its price, and which this process may use.

    They are network devices that programs drive themselves. Between hosts without them MPI sends by
    TCP as engine `tcp` does, by one connection in Open MPI, and polls for what comes. The kernel
    lists devices in a container, too, whose files it does not have there, and ports that are down.
    """
    classes = root / "sys/class"
    verbs = {  # InfiniBand, RoCE, EFA
        _text(entry / "ibdev"): root / "dev/infiniband" / entry.name
        for entry in _entries(classes / "infiniband_verbs")
    }
    found = [
        device.name
        for device in _entries(classes / "infiniband")
        if _usable(verbs.get(device.name))
        and any("ACTIVE" in _text(port / "state") for port in _entries(device / "ports"))
    ]
    slingshot = _entries(classes / "cxi")
    return sorted(found + [one.name for one in slingshot if _usable(root / "dev" / one.name)])


def load(library: str, launcher: MpiFlavour | None) -> str:
    """Make the `mpi` engine available. Does not initialise MPI. Idempotent.

    Args:
        library: Path of the MPI library, AIACC_MPI_LIBRARY; "" to look for one.
        launcher: Whose mpirun has started this process; None: nobody's.

    Returns:
        "" if it is available, else the reason and the remedy.
    """
    flavours, reason = choose(launcher, [name for name in NAMES if plugin(name).exists()])
    reasons = [reason] if reason else []
    for flavour in flavours:
        tried = []
        for candidate in candidates(library, flavour):
            reason = _core.load_mpi(str(plugin(flavour)), candidate)
            if not reason:
                return ""
            tried.append(reason)
        remedy = f"pip install {flavour}, or set AIACC_MPI_LIBRARY to the path of one"
        reasons.append(
            tried[0]
            if len(tried) == 1
            else f"no library of {NAMES[flavour]} could be loaded ({'; '.join(tried)}); {remedy}"
        )
    return "; ".join(reasons)


def candidates(library: str, flavour: MpiFlavour) -> list[str]:
    """Libraries to try, the likeliest first.

    A process must not have two, and mpi4py may have brought one: that, or else ``library`` unless
    it is "", is the only one.
    """
    mapped = next(mapped_libraries("libmpi.so", "libmpich.so"), library)
    return [mapped] if mapped else list(dict.fromkeys(_candidates(flavour)))


def lack_of_memory(mpi: MpiEnvironment | None, lanes: int) -> str:
    """Why this host has too little shared memory for MPI with so many lanes, or "".

    MPICH does not ask before it uses the memory, and then a signal ends the process; without any it
    aborts, where Open MPI takes another folder. If MPI is initialised already, its memory is taken.
    """
    if mpi is None or next(initialized_mpis(), None) is not None:
        return ""
    ranks = mpi.size if mpi.local_size == UNKNOWN else mpi.local_size
    if mpi.flavour == "mpich" and ranks > 1 and not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return (
            f"{SHARED_MEMORY} cannot be written, or is not there (expected a folder in memory for "
            f"MPICH with {ranks} ranks here); mount a tmpfs there (docker run --shm-size=1g)"
        )
    try:
        system = os.statvfs(SHARED_MEMORY)
    except OSError:
        return ""
    across = 0 if ranks == mpi.size else lanes
    return memory_problem(mpi.flavour, ranks, across, system.f_bavail * system.f_frsize)


def memory_problem(flavour: MpiFlavour, ranks: int, lanes: int, free_bytes: int) -> str:
    """The same for a number of ranks on this host, and bytes that are left. Pure."""
    of_lanes = (lanes * lanes + 1) * _MIB if flavour == "mpich" else 0
    need = _HOST_BYTES[flavour] + ranks * max(_RANK_BYTES[flavour], of_lanes)
    if ranks == 1 or need <= free_bytes:
        return ""
    return (
        f"{SHARED_MEMORY} has {free_bytes // _MIB} MiB left (expected {need // _MIB} for "
        f"{NAMES[flavour]} with {ranks} ranks here, {lanes or 'no'} lanes between hosts); enlarge "
        "it (docker run --shm-size=1g)" + (", or lower AIACC_LANES" if lanes > 1 else "")
    )


def warning_about_flows(version: str, hosts: int, lanes: int) -> str | None:
    """What to tell the user of an MPI that has one TCP connection per pair of processes. Pure.

    Args:
        version: Text of MPI_Get_library_version.
        hosts: Hosts of the job.
        lanes: All-reduces at a time.
    """
    if "Open MPI" not in version or hosts == 1 or lanes == 1:
        return None
    return (
        f"[mpi] {version.strip()} has one TCP connection per pair of processes, so {lanes} lanes "
        "get no more of a network that caps flows than one; unless the network is no TCP network, "
        "set AIACC_ENGINE=tcp, or build aiacc for MPICH and use its mpirun"
    )


def _entries(folder: Path) -> list[Path]:
    """What is in it; nothing if it is not there, or may not be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _usable(device: Path | None) -> bool:
    return device is not None and os.access(device, os.R_OK | os.W_OK)


def _candidates(flavour: MpiFlavour) -> Iterator[str]:
    for folder in _folders_of_launcher():
        yield from (str(folder / name) for name in _SONAMES[flavour] if (folder / name).exists())
    yield from _in_wheel(flavour)
    yield from _SONAMES[flavour]


def _folders_of_launcher() -> Iterator[Path]:
    """Where the libraries of mpirun, or of its daemon on this host, are: its version fits best."""
    for process in ancestors():
        try:
            program = Path(f"/proc/{process}/exe").readlink()
        except OSError:  # another user's
            continue
        if program.name.startswith(_LAUNCHERS):
            for path in mapped_libraries("libopen-", "libprrte", process=process):
                yield Path(path).parent
            yield from (program.parent.parent / name for name in ("lib", "lib64"))


def _in_wheel(flavour: MpiFlavour) -> Iterator[str]:
    try:
        files = metadata.files(flavour) or []
    except metadata.PackageNotFoundError:
        return
    # Only names with a version: in a wheel the one without is a text that names the library.
    names = _SONAMES[flavour]
    yield from sorted({str(Path(str(f.locate())).resolve()) for f in files if f.name in names})
