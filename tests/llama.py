#!/usr/bin/env python3
"""Makes tiny models of the Llama family with random weights by Hugging Face's transformers, and
writes PyTorch's results with them. tests/llama-files.t compares 08_3d/train --init and
08_3d/sample --from with these results.

    pip install torch transformers
    make PRECISION=fp64 ONLY=build/cpu-fp64/tests/test_oracle programs
    tests/llama.py      # writes tests/llama/NAME/ for each of: grouped, tied, qwen2, shards

A folder has what save_pretrained() writes, and expected.txt, a name and its numbers per line: ids and the logits of each
position, greedy tokens of generate(), and the losses and the gradient norms before clipping of ten training steps under SGD
and under AdamW. All of it is computed in double, with the weights of the file. The tokens of the steps are those of
tests/test_oracle --start.
"""
import os
import shutil
import subprocess

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

CLIP = 0.9
here = os.path.dirname(os.path.abspath(__file__))
oracle = os.path.join(here, "..", "build", "cpu-fp64", "tests", "test_oracle")
sizes = dict(num_hidden_layers=2, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12,
             max_position_embeddings=32, vocab_size=11, bos_token_id=None, eos_token_id=None)
models = {
    "grouped": (LlamaForCausalLM, LlamaConfig(**sizes, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False), None),
    "tied": (LlamaForCausalLM, LlamaConfig(**{**sizes, "num_key_value_heads": 4}, rms_norm_eps=1e-6, tie_word_embeddings=True), None),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**sizes, rms_norm_eps=1e-6, tie_word_embeddings=False,
                                            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}), None),
    "shards": (LlamaForCausalLM, LlamaConfig(**sizes, rms_norm_eps=1e-5, tie_word_embeddings=False,
                                             rope_parameters={"rope_type": "default", "rope_theta": 500.0}), "8KB"),
}


def in_double():
    """transformers computes the angles and the norms in single precision, whatever the weights are. Here they are double."""
    def rotation(self, x, position_ids):
        base, columns = self.config.rope_parameters["rope_theta"], self.config.hidden_size // self.config.num_attention_heads
        frequency = base ** (-torch.arange(0, columns, 2, dtype=torch.float64) / columns)
        angle = position_ids[..., None].double() * frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
    for module, name in ((modeling_llama, "Llama"), (modeling_qwen2, "Qwen2")):
        getattr(module, name + "RotaryEmbedding").forward = rotation
        getattr(module, name + "RMSNorm").forward = norm


def steps_of(folder, batch=4, steps=10):
    """The tokens and targets of the steps; a target of -1 is not counted."""
    said = subprocess.run([oracle, "--start", "--init", folder], stdout=subprocess.PIPE, text=True).stdout
    rows = {row[0]: torch.tensor([int(v) for v in row[1:]]).view(batch, -1)
            for row in map(str.split, said.splitlines()) if row and row[0].startswith(("tokens", "targets"))}
    return [(rows[f"tokens{i}"], rows[f"targets{i}"]) for i in range(steps)]


def train(model, optimizer, data):
    losses, norms = [], []
    for tokens, targets in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
    return losses, norms


def optimizer_of(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1)
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) == two] for two in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-5)


def show(file, name, values):
    print(name, *(f"{float(v):.12g}" for v in values), file=file)


def write(name, kind, config, shard):
    folder = os.path.join(here, "llama", name)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(sum(map(ord, name)))
    model = kind(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.5)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    load = lambda: kind.from_pretrained(folder, dtype=torch.float64)                    # noqa: E731
    ids = torch.randint(0, config.vocab_size, (1, 9))
    with open(os.path.join(folder, "expected.txt"), "w") as file, torch.no_grad():
        print("ids", *ids[0].tolist(), file=file)
        model = load().eval()
        for i, row in enumerate(model(ids).logits[0]):
            show(file, f"logits{i}", row)
        written = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        print("greedy", *written[0].tolist(), file=file)
        for optimizer in ("sgd", "adamw"):
            with torch.enable_grad():
                model = load()
                losses, norms = train(model, optimizer_of(optimizer, model), steps_of(folder))
            show(file, f"{optimizer}.loss", losses)
            show(file, f"{optimizer}.norm", norms)
    for path in os.listdir(folder):
        if path == "generation_config.json":
            os.remove(os.path.join(folder, path))
        else:
            os.chmod(os.path.join(folder, path), 0o644)


if __name__ == "__main__":
    in_double()
    for name, (kind, config, shard) in models.items():
        write(name, kind, config, shard)
