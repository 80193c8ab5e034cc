"""curvlinops, which computes K-FAC from modules in its own way."""

import warnings

with warnings.catch_warnings():
    # What it imports scripts functions for torch.jit.
    warnings.simplefilter("ignore", DeprecationWarning)
    from curvlinops import KFACLinearOperator


def their_factors(model, inputs, targets, loss, approx="expand", kind="empirical"):
    """A and G by name of layer; biases are columns of the matrices."""
    operator = KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(inputs, targets)],
        fisher_type=kind,
        mc_samples=1,
        kfac_approx=approx,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    operator.compute_kronecker_factors()
    return operator._input_covariances, operator._gradient_covariances
