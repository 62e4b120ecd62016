#!/usr/bin/env python3
"""Makes a tiny GPT-2 of Hugging Face with random weights, and its logits. tests/sample.t compares
the logits of 08_3d/sample with these logits.

    tests/gpt2.py       # writes tests/gpt2.safetensors and tests/gpt2.txt; needs torch, transformers and safetensors

The file has the names of GPT2LMHeadModel ("transformer." before each), and a causal mask, as the
files of older versions do. Entries 3 and 10 of the vocabulary have the same row, so their logits
are equal, and often the largest. 08_3d/sample then takes the smaller entry.
"""
import os

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

here = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(1)
size = dict(n_layer=3, n_embd=12, n_head=3, n_positions=16, vocab_size=11)
model = GPT2LMHeadModel(GPT2Config(**size, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).eval()
with torch.no_grad():
    for name, p in model.named_parameters():
        p.add_(torch.randn_like(p) * 0.3)
    model.transformer.wte.weight[3] = model.transformer.wte.weight[10]
    ids = torch.randint(0, size["vocab_size"], (1, 15))
    logits = model.double()(ids).logits[0]    # the model has the rounded weights of the file
model.float()
tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
tensors["transformer.h.0.attn.bias"] = torch.tril(torch.ones(16, 16, dtype=torch.uint8)).view(1, 1, 16, 16)
save_file(tensors, os.path.join(here, "gpt2.safetensors"), metadata={"format": "pt"})
os.chmod(os.path.join(here, "gpt2.safetensors"), 0o644)
with open(os.path.join(here, "gpt2.txt"), "w") as file:
    print(*ids[0].tolist(), file=file)
    for row in logits:
        print(*(f"{float(v):.12g}" for v in row), file=file)
