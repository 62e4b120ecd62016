#!/usr/bin/env python3
"""tools/torch_sample.py FOLDER --ids LIST --tokens N --written LIST [--threads N] [--rounds N]

Runs Hugging Face's generate() on the model that 08_3d/train --export has written in FOLDER, for comparison with
08_3d/sample --from FOLDER: always the likeliest token, with a cache of keys and values, fp32, on the CPU. Each id that
sample has written (--written, with the prompt) must be the likeliest token of this model, up to rounding of the logits.
Only then is generate() timed. Prints one JSON object. Status 1: other ids; 2: usage, or no PyTorch or transformers.
"""
import argparse
import json
import sys
import time

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"tools/torch_sample.py: {missing}; pip install torch transformers", file=sys.stderr)
    sys.exit(2)

ROUNDING = 1e-3


def ids_of(text):
    return [int(part) for part in text.split(",")]


def first_wrong(model, prompt, written):
    """Returns the place of the first token in `written` that is not the likeliest, by more than rounding, or None."""
    logits = model(torch.tensor([written[:-1]])).logits[0]
    for place in range(len(prompt), len(written)):
        row = logits[place - 1]
        if row.max() - row[written[place]] > ROUNDING:
            return place
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--ids", type=ids_of, required=True)
    parser.add_argument("--written", type=ids_of, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(o.folder).eval()
    model.generation_config.eos_token_id = None            # all tokens are written, as in sample
    seconds = []
    with torch.no_grad():
        wrong = first_wrong(model, o.ids, o.written)
        if wrong is not None or o.written[:len(o.ids)] != o.ids or len(o.written) != len(o.ids) + o.tokens:
            print(f"tools/torch_sample.py: token {wrong} of --written is not what {o.folder} writes", file=sys.stderr)
            return 1
        prompt = torch.tensor([o.ids])
        for _ in range(o.rounds):
            start = time.perf_counter()
            text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, use_cache=True,
                                  max_new_tokens=o.tokens, pad_token_id=0)
            seconds.append(time.perf_counter() - start)
            assert text.shape[1] == len(o.ids) + o.tokens
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "threads": o.threads,
                      "tokens_per_second": o.tokens / min(seconds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
