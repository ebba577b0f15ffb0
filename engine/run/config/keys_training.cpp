// Keys of the optimizer, the learning-rate schedule, the batch and the data.
#include "engine/run/config/enum_words.h"
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic optimizer_keys() {
  const KeysOf key{KeyScope::kRuntime}, model{KeyScope::kModel};
  KeyTopic t;
  t.title = "Optimizer and schedule";
  t.intro = "Learning-rate keys may change between runs; the kind of optimizer may not.";
  t.keys = {
      model("optimizer.type", kStringKey, "\"adam\"",
            "adam is AdamW (decoupled weight decay), as in NeoX and Megatron. \"optimizer\": \"adam\" means the same.",
            {.aliases = {"optimizer_type"},
             .allowed = EnumWords::of(OptimizerKind()),
             .value_aliases =
                 {{"adamw", "adam"}, {"fusedadam", "adam"}, {"cpu_adam", "adam"}, {"cpu_torch_adam", "adam"}}}),
      key("optimizer.params.lr", kRealKey, "null", "Peak learning rate.",
          {.aliases = {"lr"}, .bounds = {0, 1000}, .required = true}),
      key("optimizer.params.betas", kListKey | kRealKey, "[0.9, 0.999]", "Adam's two averaging factors.",
          {.bounds = {0, 1, false, true}}),
      key.word("adam_beta1", kRealKey, "Megatron: first of optimizer.params.betas.", {.bounds = {0, 1, false, true}}),
      key.word("adam_beta2", kRealKey, "Megatron: second of optimizer.params.betas.", {.bounds = {0, 1, false, true}}),
      key("optimizer.params.eps", kRealKey, "1e-8", "Added to the root in Adam, after bias correction.",
          {.aliases = {"adam_eps"}, .bounds = {0, 1, true}}),
      key("optimizer.params.momentum", kRealKey, "0.0",
          "Momentum of sgd. Switched on in the middle of a run it starts at zero.",
          {.aliases = {"sgd_momentum"}, .bounds = {0, 1, false, true}}),
      key("weight_decay", kRealKey, "0.1",
          "Weight decay of matrices, decoupled with adam and part of the gradient with sgd (Megatron's default is "
          "0.01); norms and biases take none.",
          {.aliases = {"optimizer.params.weight_decay"}, .bounds = {0, 1000}}),
      key("weight_decay_embeddings", kBoolKey, "true",
          "false: the embeddings take no weight decay (Megatron with embedding_init_method_std)."),
      key("gradient_clipping", kRealKey, "1.0", "Largest global L2 norm of the gradient; 0 switches clipping off.",
          {.aliases = {"clip_grad"}, .bounds = {0, 1e12}}),
      key.word("optimizer.params.max_grad_norm", kRealKey,
               "Older NeoX: gradient_clipping, which must be the same where both are given.", {.bounds = {0, 1e12}}),
      key("min_lr", kRealKey, "0.0", "Where the decay ends.", {.bounds = {0, 1000}}),
      key.word("decay_lr_to", kRealKey, "NeoX's Llemma: min_lr as a part of the peak learning rate.",
               {.bounds = {0, 1}}),
      key("lr_decay_style", kStringKey, "\"linear\"",
          "Shape of the learning rate after warm-up; wsd: warm-up, stable, decay.",
          {.allowed = EnumWords::of(LrDecay()), .value_aliases = {{"inverse_sqrt", "inverse_square_root"}}}),
      key("lr_decay_iters", kIntKey, "null", "Step at which the decay ends; warm-up included.",
          {.default_text = "train_iters, or the samples of the run", .bounds = {1, 1e15}, .unit = "steps"}),
      key("warmup", kRealKey, "0.01", "Length of the warm-up as a fraction, rounded down to whole steps.",
          {.aliases = {"lr_warmup_fraction"},
           .default_text = "0.01, unless lr_warmup_iters",
           .bounds = {0, 1},
           .unit = "of lr_decay_iters"}),
      key("lr_warmup_iters", kIntKey, "null", "Length of the warm-up, instead of the fraction.",
          {.aliases = {"warmup_iters"},
           .default_text = "floor(warmup * lr_decay_iters)",
           .bounds = {0, 1e15},
           .unit = "steps"}),
      key("lr_warmup_init", kRealKey, "0.0",
          "Learning rate from which the warm-up starts under lr_warmup_convention megatron.", {.bounds = {0, 1000}}),
      key("lr_warmup_convention", kStringKey, "\"neox\"",
          "First learning rate: neox lr / warm-up (twice where steps are counted), megatron lr_warmup_init. Linear "
          "decay: neox towards 0, cut off at min_lr; megatron towards min_lr.",
          {.allowed = EnumWords::of(WarmupConvention())}),
      key("lr_schedule_unit", kStringKey, "\"steps\"",
          "What lr_decay_iters, lr_warmup_iters and lr_wsd_decay_iters count. samples: the rate follows the samples of "
          "the steps taken, as in Megatron's runs of train_samples.",
          {.default_text = "\"steps\"; \"samples\" with Megatron's lengths in samples",
           .allowed = {"steps", "samples"}}),
      key("lr_wsd_decay_style", kStringKey, "\"linear\"", "Shape of the final decay of wsd.",
          {.allowed = EnumWords::of(WsdDecay())}),
      key("lr_wsd_decay_iters", kIntKey, "null", "Length of the final decay; needed for wsd.",
          {.bounds = {1, 1e15}, .unit = "steps"}),
      key("train_iters", kIntKey, "null", "Steps of the whole run.",
          {.bounds = {0, 1e12}, .unit = "steps", .required = true}),
      key.word("train_samples", kIntKey,
               "Megatron: length of the run in sequences; train_iters is this / train_batch_size, rounded down, "
               "behind the steps of rampup_batch_size.",
               {.bounds = {1, 1e15}, .unit = "sequences"}),
      key.word("lr_decay_samples", kIntKey, "Megatron: lr_decay_iters in sequences, with lr_schedule_unit samples.",
               {.bounds = {1, 1e15}, .unit = "sequences"}),
      key.word("lr_warmup_samples", kIntKey, "Megatron: lr_warmup_iters in sequences, likewise.",
               {.bounds = {0, 1e15}, .unit = "sequences"}),
      key.word("lr_wsd_decay_samples", kIntKey, "Megatron: lr_wsd_decay_iters in sequences, likewise.",
               {.bounds = {1, 1e15}, .unit = "sequences"}),
  };
  return t;
}

KeyTopic batch_keys() {
  const KeysOf run{KeyScope::kRuntime}, layout{KeyScope::kLayout};
  KeyTopic t;
  t.title = "Batch";
  t.intro =
      "train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data-parallel ranks: any two "
      "derive the third, "
      "one alone means an accumulation of 1, all three must agree.";
  t.keys = {
      run("train_batch_size", kIntKey, "null",
          "Sequences per step over all ranks. May change on resume, as rampup_batch_size may: samples count on in "
          "their order; train_iters, or train_samples, stays the end.",
          {.aliases = {"global_batch_size"},
           .default_text = "from the other two",
           .bounds = {1, 1e9},
           .unit = "sequences"}),
      layout("train_micro_batch_size_per_gpu", kIntKey, "null", "Sequences per micro step and rank.",
             {.aliases = {"micro_batch_size"},
              .default_text = "from the other two",
              .bounds = {1, 1e6},
              .unit = "sequences"}),
      layout("gradient_accumulation_steps", kIntKey, "null", "Micro-batches per step and data rank.",
             {.aliases = {"gas"}, .default_text = "from the other two", .bounds = {1, 1e6}, .unit = "micro steps"}),
      run("rampup_batch_size", kListKey | kStringKey, "null",
          "[start, increment, samples]: the batch grows from start to train_batch_size in steps of increment over so "
          "many samples.",
          {.unit = "sequences"}),
  };
  return t;
}

KeyTopic data_keys() {
  const KeysOf key{KeyScope::kData}, run{KeyScope::kRuntime};
  const unsigned paths = kStringKey | kListKey;
  KeyTopic t;
  t.title = "Data and tokenizer";
  t.intro = "Paths are prefixes without .bin / .idx. Either data_path and split, or a list per split.";
  t.keys = {
      key("data_path", paths, "null",
          "One prefix, or a blend as a list or string \"weight prefix weight prefix ...\" (or prefixes alone, equally "
          "often). A weight before a single prefix orders it as a blend of one, as in Megatron.",
          {.unit = "prefix"}),
      key("split", kStringKey | kListKey, "\"969, 30, 1\"", "Shares of train, validation and test.",
          {.default_text = "\"969, 30, 1\"; none with lists per split"}),
      key("train_data_paths", paths, "null", "Training data.", {.aliases = {"train_data_path"}, .unit = "prefix"}),
      key("train_data_weights", kListKey | kRealKey, "null", "One weight per training prefix.", {.bounds = {0, 1e12}}),
      key("valid_data_paths", paths, "null", "Validation data.", {.aliases = {"valid_data_path"}, .unit = "prefix"}),
      key("valid_data_weights", kListKey | kRealKey, "null", "One weight per validation prefix.",
          {.bounds = {0, 1e12}}),
      key("test_data_paths", paths, "null", "Test data.", {.aliases = {"test_data_path"}, .unit = "prefix"}),
      key("test_data_weights", kListKey | kRealKey, "null", "One weight per test prefix.", {.bounds = {0, 1e12}}),
      key("mid_level_dataset_surplus", kRealKey, "0.005",
          "Megatron: samples of each data set in a blend that are ordered beyond its share, as a part of that share.",
          {.bounds = {0, 1}}),
      key("eod_mask_loss", kBoolKey, "false",
          "true: what is predicted from an end-of-document token does not count in the loss; needs eod_token."),
      key("reset_attention_mask", kBoolKey, "false",
          "true: tokens see their own document alone; an end-of-document token ends the one before it. Needs "
          "eod_token."),
      key("reset_position_ids", kBoolKey, "false",
          "true: positions count from 0 in every document of a sequence; needs eod_token."),
      key("calculate_per_token_loss", kBoolKey, "true",
          "The loss of a step is the sum over its tokens that count, divided by their number (0 where there is none); "
          "false: the mean of the micro-batches' means. Without eod_mask_loss they are the same."),
      key("eod_token", kIntKey, "-1",
          "Id of the end-of-document token, as tokenize --append-eod prints it (byte: 256); -1: none. Not given: the "
          "tokenizer's, where a key needs it.",
          {.bounds = {-1, 100000000}}),
      key("tokenizer", kStringKey, "null",
          "byte | bpe:tokenizer.json | bpe:vocab.json,merges.txt | sentencepiece:MODEL; used for vocab_size, eod_token "
          "and by generate, not to train. byte has 256 ids, and 257 in data made with --append-eod: say vocab_size 257 "
          "there.",
          {.default_text = "from tokenizer_type, vocab_file and merge_file where they say it"}),
      key.word(
          "tokenizer_type", kStringKey,
          "NeoX / Megatron: HFTokenizer with vocab_file is tokenizer bpe:FILE, GPT2BPETokenizer with vocab_file "
          "and merge_file is bpe:VOCAB,MERGES, SPMTokenizer, SentencePieceTokenizer, Llama2Tokenizer and "
          "GPTSentencePieceTokenizer are sentencepiece:FILE. "
          "Without such files they stand for a vocab_size: HFTokenizer for 50277, SPMTokenizer and Llama2Tokenizer "
          "for 32000, "
          "GPT2BPETokenizer, which is also what vocab_file alone means, for 50257. NullTokenizer adds an id to "
          "vocab_size, as in Megatron."),
      key.word("vocab_file", kStringKey, "NeoX / Megatron: file of tokenizer_type.",
               {.aliases = {"tokenizer_model"}, .unit = "path"}),
      key.word("merge_file", kStringKey, "NeoX / Megatron: the merges that go with the vocab_file of GPT2BPETokenizer.",
               {.unit = "path"}),
      run("prefetch_batches", kIntKey, "2", "Batches read ahead of the step that uses them.",
          {.bounds = {0, 1024}, .unit = "batches"}),
  };
  return t;
}

}  // namespace thinwire
