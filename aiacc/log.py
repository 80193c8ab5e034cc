"""Lets AIACC_LOG_LEVEL govern Python's loggers of aiacc as it does the log of the core."""

from __future__ import annotations

import logging

from aiacc import _core

#: What Python has in the place of a level; "fatal" shows nothing that is logged here.
_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_logger = logging.getLogger("aiacc")


class _ToCore(logging.Handler):
    """Writes where the core writes, unless the application has handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`."""
        if logging.root.handlers or len(_logger.handlers) > 1:
            return
        write = _core.log_info if record.levelno < logging.WARNING else _core.log_warning
        write(self.format(record))


_handler = _ToCore()


def follow_level(rank: int | None = None) -> None:
    """Log as AIACC_LOG_LEVEL says from now on, in C++ and in Python.

    Args:
        rank: In whose name; None: of the rank that the runtime has, if it is up.

    Raises:
        ValueError: The variable does not parse.
    """
    if rank is not None or not _core.is_initialized():
        _core.configure_log(-1 if rank is None else rank)
    _logger.setLevel(_LEVELS[str(_core.config()["log_level"])])
    if _handler not in _logger.handlers:
        _logger.addHandler(_handler)
