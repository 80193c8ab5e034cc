"""How a script has ended, as `atexit` sees it."""

import sys

import pytest

from tests.support.programs import run_program

SAYS = "import atexit, sys; from aiacc import script_end\n"
SAYS += "atexit.register(lambda: print(script_end.goodbye()))\n"
IN_ORDER = "'s script has ended; "


def _goodbye(script, *options, typed=""):
    """The last line that this script, or what is typed, prints."""
    command = [sys.executable, *options, "-c", SAYS + script]
    return run_program(command, input=typed).stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(): raise KeyError('x')\nf()", "KeyError: 'x'"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise ValueError('first\\nsecond')", "ValueError: first"),
        ("raise ValueError('x' * 1000)", "ValueError: " + "x" * 188 + "..."),
        ("raise ValueError('\\udc80')", "ValueError: ?"),
        ("compile('1 +', 'f', 'exec')", "SyntaxError: invalid syntax"),
        ("try: 1 / 0\nexcept Exception: raise OSError('second')", "OSError: second"),
    ],
)
def test_an_exception_that_nobody_catches(script, error):
    assert _goodbye(script) == f"'s script has ended by {error}; look at its traceback"


@pytest.mark.parametrize(
    "script",
    [
        "",
        "sys.exit(3)",
        "try: 1 / 0\nexcept Exception: pass",
        # A test runner and others remember what they have caught in the same place.
        "import code; code.InteractiveInterpreter().runsource('1 / 0')",
        "import threading; threading.Thread(target=lambda: 1 / 0).start()",
    ],
)
def test_an_end_in_order(script):
    assert _goodbye(script).startswith(IN_ORDER)


def test_an_interactive_session_outlives_its_errors():
    assert _goodbye("", "-i", typed="1 / 0\n").startswith(IN_ORDER)
    assert _goodbye("1 / 0", "-i").startswith(IN_ORDER)
