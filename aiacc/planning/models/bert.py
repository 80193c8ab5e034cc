"""Devlin et al., "BERT", NAACL 2019: encoder, pooler and the head that names masked words. Pure."""

from __future__ import annotations

from aiacc.planning.models.layers import Layers, Parameter

VOCABULARY = 30522


def bert(layers: int, hidden: int, tokens: int, *, words: bool = True) -> list[Parameter]:
    """For samples of so many tokens; ``words``: with the head.

    Products of activations, which have no parameters, count for nothing.
    """
    net = Layers()
    net.table("embeddings.word", VOCABULARY, hidden)
    net.table("embeddings.position", 512, hidden)
    net.table("embeddings.type", 2, hidden)
    net.norm("embeddings.norm", hidden)
    for layer in range(layers):
        at = f"layer{layer}"
        for part in ("query", "key", "value", "output"):
            net.linear(f"{at}.{part}", hidden, hidden, tokens=tokens)
        net.norm(f"{at}.norm1", hidden)
        net.linear(f"{at}.up", hidden, 4 * hidden, tokens=tokens)
        net.linear(f"{at}.down", 4 * hidden, hidden, tokens=tokens)
        net.norm(f"{at}.norm2", hidden)
    net.linear("pooler", hidden, hidden)
    if not words:
        return net.parameters
    net.linear("words.transform", hidden, hidden, tokens=tokens)
    net.norm("words.norm", hidden)
    # Its weights are the embeddings, whose gradient is complete at the end of the backward pass.
    work = VOCABULARY * hidden * tokens
    net.parameters.append(Parameter("words.bias", (VOCABULARY,), work))
    return net.parameters
