// Keys of the optimizer, the learning-rate schedule, the batch and the data.
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic optimizer_keys() {
  KeyTopic t;
  t.title = "Optimizer and schedule";
  t.intro = "Learning-rate keys may change between runs; the kind of optimizer may not.";
  t.keys = {
      {.name = "optimizer.type", .aliases = {"optimizer_type"}, .types = kStringKey, .default_json = "\"adam\"",
       .allowed = {"adam", "sgd"}, .value_aliases = {{"adamw", "adam"}, {"fusedadam", "adam"}},
       .doc = "adam is AdamW (decoupled weight decay), as in NeoX and Megatron. \"optimizer\": \"adam\" means the same.",
       .scope = KeyScope::kModel},
      {.name = "optimizer.params.lr", .aliases = {"lr"}, .types = kRealKey, .bounds = {0, 1000},
       .doc = "Peak learning rate.", .required = true},
      {.name = "optimizer.params.betas", .types = kListKey | kRealKey, .default_json = "[0.9, 0.999]", .bounds = {0, 1, false, true},
       .doc = "Adam's two averaging factors."},
      {.name = "adam_beta1", .types = kRealKey, .bounds = {0, 1, false, true}, .doc = "Megatron: first of optimizer.params.betas.",
       .status = KeyStatus::kShorthand},
      {.name = "adam_beta2", .types = kRealKey, .bounds = {0, 1, false, true}, .doc = "Megatron: second of optimizer.params.betas.",
       .status = KeyStatus::kShorthand},
      {.name = "optimizer.params.eps", .aliases = {"adam_eps"}, .types = kRealKey, .default_json = "1e-8", .bounds = {0, 1, true},
       .doc = "Added to the root in Adam, after bias correction."},
      {.name = "optimizer.params.momentum", .aliases = {"sgd_momentum"}, .types = kRealKey, .default_json = "0.0",
       .bounds = {0, 1, false, true}, .doc = "Momentum of sgd."},
      {.name = "weight_decay", .aliases = {"optimizer.params.weight_decay"}, .types = kRealKey, .default_json = "0.1",
       .bounds = {0, 1000}, .doc = "Decoupled weight decay of matrices (Megatron's default is 0.01); norms and biases take none."},
      {.name = "weight_decay_embeddings", .types = kBoolKey, .default_json = "true",
       .doc = "false: the embeddings take no weight decay (Megatron with embedding_init_method_std)."},
      {.name = "gradient_clipping", .aliases = {"clip_grad"}, .types = kRealKey, .default_json = "1.0", .bounds = {0, 1e12},
       .doc = "Largest global L2 norm of the gradient; 0 switches clipping off."},
      {.name = "min_lr", .types = kRealKey, .default_json = "0.0", .bounds = {0, 1000}, .doc = "Where the decay ends."},
      {.name = "lr_decay_style", .types = kStringKey, .default_json = "\"linear\"",
       .allowed = {"constant", "linear", "cosine", "inverse_square_root", "wsd"},
       .value_aliases = {{"inverse_sqrt", "inverse_square_root"}},
       .doc = "Shape of the learning rate after warm-up; wsd: warm-up, stable, decay."},
      {.name = "lr_decay_iters", .types = kIntKey, .default_text = "train_iters", .bounds = {1, 1e12}, .unit = "updates",
       .doc = "Update at which the decay ends; warm-up included."},
      {.name = "warmup", .aliases = {"lr_warmup_fraction"}, .types = kRealKey, .default_json = "0.01",
       .default_text = "0.01, unless lr_warmup_iters", .bounds = {0, 1}, .unit = "of lr_decay_iters",
       .doc = "Length of the warm-up as a fraction, rounded down to whole updates."},
      {.name = "lr_warmup_iters", .types = kIntKey, .default_text = "floor(warmup * lr_decay_iters)", .bounds = {0, 1e12},
       .unit = "updates", .doc = "Length of the warm-up, instead of the fraction."},
      {.name = "lr_warmup_init", .types = kRealKey, .default_json = "0.0", .bounds = {0, 1000},
       .doc = "Learning rate from which the warm-up starts."},
      {.name = "lr_warmup_convention", .types = kStringKey, .default_json = "\"neox\"", .allowed = {"neox", "megatron"},
       .doc = "Learning rate of the first update: neox lr / warm-up (twice), megatron lr_warmup_init."},
      {.name = "lr_wsd_decay_style", .types = kStringKey, .default_json = "\"linear\"",
       .allowed = {"linear", "cosine", "exponential", "minus_sqrt"}, .doc = "Shape of the final decay of wsd."},
      {.name = "lr_wsd_decay_iters", .types = kIntKey, .bounds = {1, 1e12}, .unit = "updates",
       .doc = "Length of the final decay; needed for wsd."},
      {.name = "train_iters", .types = kIntKey, .bounds = {0, 1e12}, .unit = "updates", .doc = "Updates of the whole run.",
       .required = true},
      {.name = "train_samples", .types = kIntKey, .bounds = {1, 1e15}, .unit = "sequences",
       .doc = "Megatron: length of the run in sequences; train_iters is this / train_batch_size, rounded down.",
       .status = KeyStatus::kShorthand},
  };
  return t;
}

KeyTopic batch_keys() {
  KeyTopic t;
  t.title = "Batch";
  t.intro =
      "train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks: any two derive the third, "
      "one alone means an accumulation of 1, all three must agree.";
  t.keys = {
      {.name = "train_batch_size", .aliases = {"global_batch_size"}, .types = kIntKey, .default_text = "from the other two",
       .bounds = {1, 1e9}, .unit = "sequences", .doc = "Sequences per update over all ranks.", .scope = KeyScope::kData},
      {.name = "train_micro_batch_size_per_gpu", .aliases = {"micro_batch_size"}, .types = kIntKey,
       .default_text = "from the other two", .bounds = {1, 1e6}, .unit = "sequences", .doc = "Sequences per micro step and rank.",
       .scope = KeyScope::kLayout},
      {.name = "gradient_accumulation_steps", .types = kIntKey, .default_text = "from the other two", .bounds = {1, 1e6},
       .unit = "micro steps", .doc = "Micro steps per update.", .scope = KeyScope::kLayout},
      {.name = "rampup_batch_size", .types = kListKey | kStringKey, .unit = "sequences",
       .doc = "[start, increment, samples]: the batch grows from start to train_batch_size in steps of increment over so many samples.",
       .scope = KeyScope::kData},
  };
  return t;
}

KeyTopic data_keys() {
  const KeyScope data = KeyScope::kData;
  const unsigned paths = kStringKey | kListKey;
  KeyTopic t;
  t.title = "Data and tokenizer";
  t.intro = "Paths are prefixes without .bin / .idx. Either data_path and split, or a list per split.";
  t.keys = {
      {.name = "data_path", .types = paths, .unit = "prefix",
       .doc = "One prefix, or a blend as a list or string \"weight prefix weight prefix ...\" (or prefixes alone, equally often).",
       .scope = data},
      {.name = "split", .types = kStringKey | kListKey, .default_json = "\"969, 30, 1\"",
       .default_text = "\"969, 30, 1\"; none with lists per split", .doc = "Shares of train, validation and test.", .scope = data},
      {.name = "train_data_paths", .aliases = {"train_data_path"}, .types = paths, .unit = "prefix", .doc = "Training data.", .scope = data},
      {.name = "train_data_weights", .types = kListKey | kRealKey, .bounds = {0, 1e12}, .doc = "One weight per training prefix.",
       .scope = data},
      {.name = "valid_data_paths", .aliases = {"valid_data_path"}, .types = paths, .unit = "prefix", .doc = "Validation data.",
       .scope = data},
      {.name = "valid_data_weights", .types = kListKey | kRealKey, .bounds = {0, 1e12}, .doc = "One weight per validation prefix.",
       .scope = data},
      {.name = "test_data_paths", .aliases = {"test_data_path"}, .types = paths, .unit = "prefix", .doc = "Test data.", .scope = data},
      {.name = "test_data_weights", .types = kListKey | kRealKey, .bounds = {0, 1e12}, .doc = "One weight per test prefix.",
       .scope = data},
      {.name = "eod_mask_loss", .types = kBoolKey, .default_json = "false",
       .doc = "true: end-of-document tokens do not count in the loss; needs eod_token.", .scope = data},
      {.name = "eod_token", .types = kIntKey, .default_json = "-1", .bounds = {-1, 100000000},
       .doc = "Id of the end-of-document token, -1: none.", .scope = data},
      {.name = "tokenizer", .types = kStringKey, .default_text = "from tokenizer_type and vocab_file where they say it",
       .doc = "byte | bpe:tokenizer.json | sentencepiece:MODEL; used for the vocabulary's size and by generate, not to train.",
       .scope = data},
      {.name = "tokenizer_type", .types = kStringKey,
       .doc = "NeoX / Megatron: HFTokenizer with vocab_file is tokenizer bpe:FILE, SPMTokenizer and SentencePieceTokenizer are "
              "sentencepiece:FILE; GPT2BPETokenizer and HFTokenizer without a readable file stand for 50257 ids.",
       .scope = data, .status = KeyStatus::kShorthand},
      {.name = "vocab_file", .aliases = {"tokenizer_model"}, .types = kStringKey, .unit = "path",
       .doc = "NeoX / Megatron: file of tokenizer_type.", .scope = data, .status = KeyStatus::kShorthand},
      {.name = "prefetch_batches", .types = kIntKey, .default_json = "2", .bounds = {0, 1024}, .unit = "batches",
       .doc = "Batches read ahead of the step that uses them."},
  };
  return t;
}

}  // namespace thinwire
