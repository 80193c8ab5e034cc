"""How a script has ended, as `atexit` sees it."""

import sys

import pytest

from tests.support.programs import run_program

SAYS = "import atexit, sys; from aiacc import script_end\n"
SAYS += "atexit.register(lambda: print(script_end.goodbye()))\n"


def _goodbye(script, option="-q", typed=""):
    """The last line that this script, or what is typed, prints."""
    done = run_program([sys.executable, option, "-c", SAYS + script], input=typed)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("script", "error", "options"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero", {}),
        ("def f(): raise KeyError('x')\nf()", "KeyError: 'x'", {}),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", {}),
        ("raise ValueError('first\\nsecond')", "ValueError: first", {}),
        ("raise ValueError('x' * 1000)", "ValueError: " + "x" * 188 + "...", {}),
        ("raise ValueError('\\udc80')", "ValueError: ?", {}),
        ("compile('1 +', 'f', 'exec')", "SyntaxError: invalid syntax", {}),
        ("try: 1 / 0\nexcept Exception: raise OSError('second')", "OSError: second", {}),
        ("", None, {}),
        ("sys.exit(3)", None, {}),
        ("try: 1 / 0\nexcept Exception: pass", None, {}),
        # A test runner and others remember what they have caught in the same place.
        ("import code; code.InteractiveInterpreter().runsource('1 / 0')", None, {}),
        ("import threading; threading.Thread(target=lambda: 1 / 0).start()", None, {}),
        # An interactive session outlives its errors.
        ("", None, {"option": "-i", "typed": "1 / 0\n"}),
        ("1 / 0", None, {"option": "-i"}),
    ],
)
def test_an_exception_that_nobody_catches_is_named_and_others_are_not(script, error, options):
    said = _goodbye(script, **options)
    if error is None:
        assert said.startswith("'s script has ended; ")
    else:
        assert said == f"'s script has ended by {error}; look at its traceback"
