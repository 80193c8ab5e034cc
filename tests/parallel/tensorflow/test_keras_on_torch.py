"""The recipe for Keras on torch in docs/tensorflow.md runs as it stands there, on two ranks."""

import re

import numpy as np

from tests.support.ranks import ROOT, run_ranks

PAGE = (ROOT / "docs" / "tensorflow.md").read_text()
SECTION = PAGE.partition("\n## Keras on torch\n")[2].partition("\n## ")[0]
(RECIPE,) = re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)


def _recipe():
    """Weights after it, and the data of this rank."""
    names = {"__name__": "__main__"}
    exec(compile(RECIPE, "docs/tensorflow.md", "exec"), names)
    assert names["keras"].backend.backend() == "torch"
    return names["model"].get_weights(), names["inputs"], names["targets"]


def test_the_recipe_finds_what_suits_the_data_of_all_ranks():
    parts = run_ranks(2, _recipe, env={"KERAS_BACKEND": "torch"})
    (weights, inputs, targets), (others_weights, others_inputs, others_targets) = parts
    np.testing.assert_array_equal(weights, others_weights)
    # The recipe goes on until the loss is the least that there is.
    best, *_ = np.linalg.lstsq(
        np.concatenate([inputs, others_inputs]), np.concatenate([targets, others_targets])
    )
    alone, *_ = np.linalg.lstsq(inputs, targets)
    assert not np.allclose(weights[0], alone, atol=1e-2)
    np.testing.assert_allclose(weights[0], best, atol=1e-4)
