#!/usr/bin/env python3
"""Runs ten training steps of a small GPT in PyTorch, in double. tests/test_oracle.c compares its
steps with these steps.

    build/cpu-fp64/tests/test_oracle --start | grep -v '^\\[' | tests/oracle.py >tests/oracle.txt

Reads the initial weights and the tokens. Writes the weights, the tokens, and PyTorch's results
under SGD and under AdamW: losses, gradient norms before clipping, gradients of the first and the
last step, and the last weights. The model uses torch.nn.functional and torch.optim, and shares only
names and shapes with ours.
"""
import sys

import torch
from torch.nn import functional as F

CLIP = 0.9


def read(file):
    rows = [line.split() for line in file if line.strip()]
    return {row[0]: row[1:] for row in rows}


def forward(p, layers, heads, tokens):
    B, T = tokens.shape
    linear = lambda x, name: x @ p[name + ".weight"] + p[name + ".bias"]           # noqa: E731; weights are [in, out]
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)     # noqa: E731
    x = p["wte.weight"][tokens] + p["wpe.weight"][:T]
    for i in range(layers):
        h = f"h.{i}."
        q, k, v = (a.view(B, T, heads, -1).transpose(1, 2) for a in linear(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, -1))
        mix = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, -1)
        x = x + linear(mix, h + "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].t()                                   # the tied table


def show(name, values):
    print(name, *(repr(float(v)) for v in values))


def train(name, start, data, layers, heads, width):
    p = {key: torch.nn.Parameter(value.clone()) for key, value in start.items()}
    matrices, others = [v for v in p.values() if v.dim() == 2], [v for v in p.values() if v.dim() == 1]
    if name == "sgd":
        optimizer = torch.optim.SGD(p.values(), lr=0.1)
    else:
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-5)
    losses, norms = [], []
    for step, (tokens, targets) in enumerate(data):
        optimizer.zero_grad()
        logits = forward(p, layers, heads, tokens)
        # mean over tokens with a target
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        if step in (0, len(data) - 1):
            for key, value in p.items():
                show(f"{name}.{'last' if step else 'first'}-gradients.{key}", value.grad.flatten())
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        optimizer.step()
    for key, value in p.items():
        show(f"{name}.weights.{key}", value.detach().flatten())
    show(f"{name}.loss", losses)
    show(f"{name}.norm", norms)


def main():
    rows = read(sys.stdin)
    layers, width, heads, context, vocab, steps, batch = map(int, rows["sizes"])
    shapes = {"wte.weight": (vocab, width), "wpe.weight": (context, width), "attn.c_attn.weight": (width, 3 * width),
              "attn.c_proj.weight": (width, width), "mlp.c_fc.weight": (width, 4 * width), "mlp.c_proj.weight": (4 * width, width)}
    start = {}
    for row, values in rows.items():
        if row.startswith("start."):
            name = row[len("start."):]
            short = name.split(".", 2)[2] if name.startswith("h.") else name
            start[name] = torch.tensor([float(v) for v in values], dtype=torch.float64).reshape(shapes.get(short, (-1,)))
    ints = lambda name: torch.tensor([int(v) for v in rows[name]]).view(batch, context)                    # noqa: E731
    data = [(ints(f"tokens{i}"), ints(f"targets{i}")) for i in range(steps)]
    for row, values in rows.items():
        print(row, *values)
    for name in ("sgd", "adamw"):
        train(name, start, data, layers, heads, width)


if __name__ == "__main__":
    main()
