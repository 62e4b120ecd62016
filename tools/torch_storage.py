#!/usr/bin/env python3
"""tools/torch_storage.py DIR --layers L --width C --heads H --context T --vocab V --batch B --lr X [--last N]

Repeats the trainings of build/.../tests/bench_storage in PyTorch, on the CPU, with one thread: fp32, and bf16 with fp32
masters (weights, activations and gradients bf16; AdamW updates the masters; each weight is a rounded master).
bench_storage --reference DIR has written DIR: both trainings begin with its weights and take its tokens. The first
losses in fp32 must be those of DIR. Prints one JSON object with the mean losses of the last N steps, and the losses of
three steps. Status 1: other losses; 2: usage, or no PyTorch.
"""
import argparse
import json
import os
import sys

from torch_step import GPT, safetensors, torch

FIRST, LIMIT = 10, 1e-4


def train(start, tokens, o, dtype):
    """Returns the loss of every step. With dtype fp32 master and weight are one tensor."""
    start = {name: t.clone() for name, t in start.items()}      # training changes them in place
    masters = GPT(start, o.layers, o.heads)
    model = masters if dtype == torch.float32 else GPT(start, o.layers, o.heads).to(dtype)
    adamw = torch.optim.AdamW(masters.parameters(), lr=o.lr, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.0)
    pairs = list(zip(masters.parameters(), model.parameters()))
    losses = []
    for batch in tokens:
        model.zero_grad(set_to_none=True)
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        for master, weight in pairs:
            master.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(masters.parameters(), 1.0)
        adamw.step()
        with torch.no_grad():
            for master, weight in pairs:
                weight.copy_(master)
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name in ("layers", "width", "heads", "context", "vocab", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--last", type=int, default=20)
    o = parser.parse_args()
    torch.set_num_threads(1)
    with open(os.path.join(o.directory, "tokens"), "rb") as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()
    tokens = tokens.view(-1, o.batch, o.context + 1)
    with open(os.path.join(o.directory, "losses"), encoding="ascii") as file:
        expected = [float(line) for line in file]
    start = safetensors(os.path.join(o.directory, "weights.safetensors"))
    result = {"torch": torch.__version__, "steps": len(tokens)}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        losses = train(start, tokens, o, dtype)
        worst = max(abs(a - b) / b for a, b in zip(losses[:FIRST], expected))
        if dtype == torch.float32 and not (len(expected) == len(tokens) and worst <= LIMIT):
            print(f"tools/torch_storage.py: the first losses differ from {o.directory}/losses by up to {worst:.1e} relative",
                  file=sys.stderr)
            return 1
        result[name] = sum(losses[-o.last:]) / o.last
        result[f"{name}_steps"] = [losses[(k + 1) * len(losses) // 3 - 1] for k in range(3)]
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
