"""Layers in networks, and what K-FAC's hooks would see of them."""

from torch import nn

from aiacc.kfac.factors import gradient_factor, input_factor


def record(model, inputs, backward):
    """Inputs and gradients of outputs of each layer, by name, in a pass that `backward` ends."""
    seen, handles = {}, []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)):
            continue

        def after(_module, args, output, name=name):
            seen.setdefault(name, [None, None])[0] = args[0].detach()

            def at_gradient(gradient):
                seen[name][1] = gradient.detach()

            output.register_hook(at_gradient)

        handles.append(module.register_forward_hook(after))
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
