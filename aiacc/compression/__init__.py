"""How gradients get shorter on their way, and when that pays: names, rules, predictions. Pure."""
