"""``aiacc-plan`` as its users call it."""

import json

import pytest

from aiacc.planning.trace import Tensor, Trace
from aiacc.run.main import main as aiaccrun
from aiacc.run.plan import main


class Command:
    """Calls ``aiacc-plan``, and writes the files that it is given."""

    def __init__(self, capsys, folder):
        self._capsys = capsys
        self.folder = folder

    def __call__(self, *arguments):
        """Exit status, standard output and standard error."""
        status = main([str(one) for one in arguments])
        return status, *self._capsys.readouterr()

    def out(self, *arguments):
        """Standard output of what must succeed."""
        status, out, err = self(*arguments)
        assert (status, err) == (0, "")
        return out

    def refused(self, *arguments):
        """The one line about what must be refused."""
        status, _, err = self(*arguments)
        assert (status, err.count("\n")) == (2, 1), err
        return err

    def table(self, *arguments):
        """Two lines of head, and the rows of the table that is printed."""
        lines = self.out(*arguments).splitlines()
        return lines[:2], [line.split() for line in lines[2:]]

    def rows(self, *arguments):
        """The rows alone."""
        return self.table(*arguments)[1]

    def file(self, name, content):
        """Path of a file with text, bytes, or the fields of a network."""
        path = self.folder / name
        if isinstance(content, dict):
            content = json.dumps({"version": 1, **content})
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def trace(self, *rows, forward_s=0.1, backward_s=0.1, dtype="float32"):
        """Path of a trace with (name, bytes, ready) of each tensor."""
        tensors = tuple(Tensor(name, size, dtype, ready, 0.0) for name, size, ready in rows)
        made = Trace("few", tensors, forward_s, backward_s, "measured")
        return self.file("trace.json", made.encode())


@pytest.fixture
def plan(capsys, tmp_path):
    return Command(capsys, tmp_path)


@pytest.fixture
def launch(capfd):
    """Calls ``aiaccrun``: exit status, standard output and standard error."""
    return lambda *words: (aiaccrun([str(word) for word in words]), *capfd.readouterr())
