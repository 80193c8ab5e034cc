"""The decoupled schedule: reduce-scatter in the backward pass, all-gather in the next forward pass.

That of Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep
Learning" (DeAR), ICDCS 2023 (arXiv 2302.12445), with the update between the two on 1/N of the
parameters, by the optimizer class that was wrapped.
"""
