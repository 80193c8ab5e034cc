"""Numbers of ranks. What proves nothing that another number does not prove is for the nightly run.

Three are no power of two and have ranks that are neither first nor last; two are often the only
ones with a path of their own, which other tests of two ranks take.
"""

import pytest

_TWO = pytest.param(2, marks=pytest.mark.nightly)
ONE_TO_THREE = [1, 3, _TWO]
TWO_AND_THREE = [3, _TWO]
