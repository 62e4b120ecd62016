#!/usr/bin/env python3
"""tools/torch_step.py DIR --layers L --width C --heads H --context T --vocab V --batch B [--threads N] [--seconds X]

Times the model of build/.../tests/bench_step in PyTorch: GPT-2's architecture, fp32, AdamW, on the CPU. bench_step
--reference DIR has written DIR. First PyTorch must reach the same losses in ten steps from the same weights and tokens.
Only then are steps timed, as bench_step times them. Prints one JSON object. Status 1: other losses; 2: usage, or no
PyTorch.
"""
import argparse
import json
import os
import struct
import sys
import time

try:
    import torch
    from torch.nn import functional as F
except ImportError as missing:
    print(f"tools/torch_step.py: {missing}; pip install torch, or apt-get install python3-torch", file=sys.stderr)
    sys.exit(2)

STEPS, WARM_UP, FEWEST, LIMIT = 10, 2, 5, 1e-4
TYPES = {"F32": torch.float32, "F64": torch.float64}


def safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:8 + length]), {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"]).float()
    return tensors


class GPT(torch.nn.Module):
    """Pre-norm blocks, learned positions, tanh GELU, tied embeddings, biases."""

    def __init__(self, tensors, layers, heads):
        super().__init__()
        self.layers, self.heads = layers, heads
        # The file has [in, out]; torch.nn.Linear stores [out, in].
        tensors = {name: t.t().contiguous() if ".c_" in name and t.dim() == 2 else t for name, t in tensors.items()}
        self.p = torch.nn.ParameterDict({name.replace(".", "_"): torch.nn.Parameter(t) for name, t in tensors.items()})

    def linear(self, x, name):
        return F.linear(x, self.p[f"{name}_weight"], self.p[f"{name}_bias"])

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}_weight"], self.p[f"{name}_bias"], 1e-5)

    def forward(self, tokens, targets):
        B, T = tokens.shape
        x = self.p["wte_weight"][tokens] + self.p["wpe_weight"][:T]
        for i in range(self.layers):
            h = f"h_{i}"
            q, k, v = self.linear(self.norm(x, f"{h}_ln_1"), f"{h}_attn_c_attn").chunk(3, dim=-1)
            q, k, v = (a.view(B, T, self.heads, -1).transpose(1, 2) for a in (q, k, v))
            if hasattr(F, "scaled_dot_product_attention"):
                mix = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mask = torch.full((T, T), float("-inf")).triu(1)
                mix = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask, dim=-1) @ v
            x = x + self.linear(mix.transpose(1, 2).reshape(B, T, -1), f"{h}_attn_c_proj")
            middle = F.gelu(self.linear(self.norm(x, f"{h}_ln_2"), f"{h}_mlp_c_fc"), approximate="tanh")
            x = x + self.linear(middle, f"{h}_mlp_c_proj")
        logits = F.linear(self.norm(x, "ln_f"), self.p["wte_weight"]).float()      # torch_storage.py runs in bf16
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def optimizer(model):
    settings = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.0)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **settings)
    except (RuntimeError, TypeError):                  # older versions support it on GPUs only
        return torch.optim.AdamW(model.parameters(), **settings)


def step(model, adamw, tokens):
    adamw.zero_grad(set_to_none=True)
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adamw.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name in ("layers", "width", "heads", "context", "vocab", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    with open(os.path.join(o.directory, "tokens"), "rb") as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()
    tokens = tokens.view(STEPS, o.batch, o.context + 1)
    with open(os.path.join(o.directory, "losses"), encoding="ascii") as file:
        expected = [float(line) for line in file]
    model = GPT(safetensors(os.path.join(o.directory, "weights.safetensors")), o.layers, o.heads)
    adamw = optimizer(model)
    losses = [step(model, adamw, tokens[i]) for i in range(STEPS)]
    worst = max(abs(a - b) / b for a, b in zip(losses, expected))
    if len(expected) != STEPS or not worst <= LIMIT:
        print(f"tools/torch_step.py: the losses differ from {o.directory}/losses by up to {worst:.1e} relative: {losses}",
              file=sys.stderr)
        return 1
    seconds, begun = [], time.perf_counter()
    while len(seconds) < WARM_UP + FEWEST or time.perf_counter() - begun < o.seconds:
        start = time.perf_counter()
        step(model, adamw, tokens[len(seconds) % STEPS])
        seconds.append(time.perf_counter() - start)
    median = sorted(seconds[WARM_UP:])[len(seconds[WARM_UP:]) // 2]
    with open("/proc/self/status", encoding="ascii") as file:
        resident = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    print(json.dumps({"torch": torch.__version__, "threads": o.threads, "losses_differ": worst, "steps": len(seconds) - WARM_UP,
                      "step_seconds": median, "tokens_per_second": o.batch * o.context / median,
                      "resident_bytes": resident}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
