"""What aiacc raises. The core maps its error codes to these classes by name."""

from __future__ import annotations


class AiaccError(RuntimeError):
    """Base class of every error that aiacc defines."""


class CollectiveError(AiaccError):
    """A collective operation failed, or could not be started.

    Raised as this class itself when the runtime is not initialised, a broken invariant was found,
    or a rank gave NaN or infinity and AIACC_CHECK_FINITE is "raise". Unless it is
    a `MismatchError` the runtime is of no more use: call ``shutdown()`` and ``init()`` to go on in
    this process.
    """


class MismatchError(CollectiveError):
    """The ranks disagree about one operation. It failed on every rank; the job may go on."""


class PeerLostError(CollectiveError):
    """A rank died, froze, or can no longer be reached."""


class CollectiveTimeoutError(CollectiveError):
    """A deadline passed: a rank did not come to the start, or an operation stalled too long.

    If it was that of torch's ``Work.wait(timeout)``, the operation and the job go on.
    """


class ParallelMapError(AiaccError):
    """A `parallel_map` raised on a rank, and therefore on all of them. The job goes on."""


class EngineError(CollectiveError):
    """The engine that moves the data failed."""


class ShutdownError(CollectiveError):
    """The runtime was shut down while the operation was outstanding."""


class BootstrapError(CollectiveError):
    """The ranks could not find each other, or do not agree about the job."""


#: Horovod's name for `CollectiveError`.
HorovodInternalError = CollectiveError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """The set of hosts changed; an elastic job leaves its loop to take up the new one.

    Attributes:
        skip_sync: Hosts only left, so the state of the remaining ranks needs no synchronisation.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one that an extension was built for.

    aiacc has no extension of that kind and never raises this; scripts may name it.

    Attributes:
        name: The framework.
        version: The version that the extension was built for.
        installed_version: The version that is installed.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(
            f"{name} {installed_version} is installed (expected {version}); install that version"
        )
        self.name = name
        self.version = version
        self.installed_version = installed_version
