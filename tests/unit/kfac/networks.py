"""Layers in networks, and what K-FAC's hooks would see of them."""

from torch import nn

from aiacc.kfac.factors import gradient_factor, input_factor


def record(model, inputs, backward):
    """Inputs and gradients of outputs of each layer, by name, in a pass that `backward` ends."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
    names = {module: name for name, module in model.named_modules() if isinstance(module, kinds)}
    seen = {}

    def after(module, args, output):
        found = seen.setdefault(names[module], [None, None])
        found[0] = args[0].detach()
        output.register_hook(lambda gradient: found.__setitem__(1, gradient.detach()))

    handles = [module.register_forward_hook(after) for module in names]
    backward(model(inputs))
    for handle in handles:
        handle.remove()
    return seen


def factors_of(model, inputs, backward, approx="expand", **of_loss):
    """A and G of each layer by name."""
    return {
        name: (
            input_factor(model.get_submodule(name), a, approx=approx),
            gradient_factor(model.get_submodule(name), g, approx=approx, **of_loss),
        )
        for name, (a, g) in record(model, inputs, backward).items()
    }
