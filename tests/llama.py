#!/usr/bin/env python3
"""Makes tiny models of the Llama family with random weights by Hugging Face's transformers, and
writes PyTorch's results with them. tests/llama-files.t compares 08_3d/train --init and 08_3d/sample
--from with these results.

    pip install torch transformers
    make PRECISION=fp64 ONLY=build/cpu-fp64/tests/test_oracle programs
    tests/llama.py            # writes tests/llama/NAME/ for each of: grouped, tied, qwen2, shards
    tests/llama.py FOLDER     # reads FOLDER, which 08_3d/train --export has written

With FOLDER, the class that config.json names must load the model without a missing or surplus
tensor. Its logits in single precision, with transformers' own code, must agree with those in double
within 1e-5. Then the script writes FOLDER/expected.txt and returns 0. Status 1 means that the model
is wrong. Status 2 means that PyTorch or transformers is not installed.

A folder has the files of save_pretrained(), and expected.txt. Each line of expected.txt has a name
and its numbers: the ids, the logits of each position, the greedy tokens of generate(), and the
losses and the gradient norms before clipping of ten training steps under SGD and under AdamW. All
numbers are computed in double, with the weights of the file. The tokens of the steps are those of
tests/test_oracle --start.
"""
import json
import os
import shutil
import subprocess
import sys

try:
    import torch
    import transformers
    from torch.nn import functional as F
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2 import modeling_qwen2
except ImportError as missing:
    print(f"tests/llama.py: {missing}; pip install torch transformers", file=sys.stderr)
    sys.exit(2)

CLIP = 0.9
ROUNDING = 1e-5
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
    """Makes transformers compute angles and norms in double, which it computes in single precision."""
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
    """Returns the tokens and targets of the steps. A target of -1 is not counted."""
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
    record(folder, kind, torch.randint(0, config.vocab_size, (1, 9)))
    for path in os.listdir(folder):
        if path == "generation_config.json":
            os.remove(os.path.join(folder, path))
        else:
            os.chmod(os.path.join(folder, path), 0o644)


def record(folder, kind, ids):
    """Writes expected.txt, the results of transformers in double with the model in this folder."""
    load = lambda: kind.from_pretrained(folder, dtype=torch.float64)                    # noqa: E731
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


def read_export(folder):
    """Loads our export, and records the results in double. Returns None, or a mistake as text."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    kind = getattr(transformers, config["architectures"][0])
    model, loaded = kind.from_pretrained(folder, output_loading_info=True)
    wrong = {key: found for key, found in loaded.items() if found}
    if wrong:
        return f"{kind.__name__} does not load it: {wrong}"
    torch.manual_seed(len(folder))
    ids = torch.randint(0, config["vocab_size"], (1, 9))
    with torch.no_grad():
        single = model.eval()(ids).logits.double()
        in_double()
        double = kind.from_pretrained(folder, dtype=torch.float64).eval()(ids).logits
    error = (single - double).abs().max().item()
    record(folder, kind, ids)
    return None if error < ROUNDING else f"logits in single precision differ by {error:.1e}"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    if len(sys.argv) > 1:
        wrong = read_export(sys.argv[1])
        print(f"tests/llama.py: {sys.argv[1]}: {wrong}" if wrong else f"{sys.argv[1]}/expected.txt is written")
        sys.exit(1 if wrong else 0)
    in_double()
    for name, (kind, config, shard) in models.items():
        write(name, kind, config, shard)
