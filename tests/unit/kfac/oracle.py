"""curvlinops, which computes K-FAC from modules in its own way."""

import warnings

with warnings.catch_warnings():
    # What it imports scripts functions for torch.jit.
    warnings.simplefilter("ignore", DeprecationWarning)
    from curvlinops import KFACInverseLinearOperator, KFACLinearOperator

__all__ = ["KFACInverseLinearOperator", "operator_of", "their_factors"]


def operator_of(model, inputs, targets, loss, approx="expand", kind="empirical", samples=1):
    """The K-FAC of a model, its biases columns of the matrices."""
    return KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(inputs, targets)],
        fisher_type=kind,
        mc_samples=samples,
        kfac_approx=approx,
        separate_weight_and_bias=False,
        check_deterministic=False,
    )


def their_factors(*args, **kwargs):
    """A and G by name of layer."""
    operator = operator_of(*args, **kwargs)
    operator.compute_kronecker_factors()
    return operator._input_covariances, operator._gradient_covariances
