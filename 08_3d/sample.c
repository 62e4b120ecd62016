// ranks: 1
// level: core
// question: When a model writes text token by token, what can it keep from earlier tokens?
// vary: ranks 1|2|3|4|6
//
// Writes text with a trained model, at any tp x pp. --from names a checkpoint (train --save), an
// exported file, or Hugging Face's GPT-2, Llama or Qwen2. In every block a new token needs the keys
// and values of all earlier tokens. These keys and values do not change, because no position sees a
// later position. So each rank keeps the keys and values of its heads and blocks, and after the
// prompt each new token needs a forward of one row. When the context is full, the model reads the
// last T/2 tokens again.
//
// The program leaves out batches of many texts, which make writing efficient (Pope et al. 2022;
// Kwon et al. 2023). The program also leaves out data parallelism, because several runs give the
// same result.
//
// sampler.c has the technique. experiments/sample_run.c has the loop, experiments/sample_checks.c
// has the checks.
#include "08_3d/experiments/experiments.h"

static const Option options[] = {
    { "from", "PATH", NULL,
      "checkpoints, or a model's folder or file (GPT-2, Llama, Qwen2); without it a small model is "
      "trained first" },
    { "heads", "N", NULL, "attention heads, if no file gives their number (GPT-2: 12)" },
    { "context", "N", NULL,
      "with rotary positions: keep keys and values of N positions; without it: of all positions" },
    { "family", "gpt2|llama", "gpt2", "without --from: the family of the model" },
    { "kv-heads", "N", NULL, "without --from: heads of key and value; default 9" },
    { "ffn", "N", NULL, "without --from: features of the MLP; default 144" },
    { "untied", NULL, NULL, "without --from: the head has a table of its own" },
    { "tp", "N", NULL, "tensor-parallel ranks of a stage; without it: the ranks that --pp leaves" },
    { "pp", "N", "1", "pipeline stages" },
    { "prompt", "TEXT", "The ", "the beginning of the text; for models of bytes" },
    { "ids", "LIST", NULL, "the beginning as token ids, such as 15496,11; the output is ids, too" },
    { "tokens", "N", "40", "tokens to write" },
    REALS_ONLY("text is written with weights in reals, also from a file of 16-bit weights"),
    { "train-steps", "N", "600", "without --from: steps of the short training" },
    { "temperature", "X", "0.8", "of softmax(logits / temperature); 0: always the likeliest" },
    { "top-k", "N", "0", "choose among the k likeliest; 0: among all" },
    { "check", NULL, NULL,
      "compare with forwards of the whole text without a cache, and with the unsplit model" },
    { "logits", "FILE", NULL, "with --check: write the logits, one line per position" },
    { 0 },
};
EXPERIMENT(sample_run, options);
