// The resolver's topics about training: batch and data-parallel ranks, schedule, data paths.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "data/batch_ramp.h"
#include "data/split.h"
#include "engine/base/core/sequence_cut.h"
#include "engine/base/core/shipped.h"
#include "engine/base/core/text.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/resolver.h"

namespace thinwire {
namespace {

bool number_from(const std::string& word, double& out) {
  const auto r = std::from_chars(word.data(), word.data() + word.size(), out);
  return r.ec == std::errc() && r.ptr == word.data() + word.size() && std::isfinite(out);
}

}  // namespace

std::vector<WeightedPrefix> parse_prefixes(const nlohmann::json& value) {
  std::vector<std::string> words;
  if (value.is_string()) {
    words = split_words(value.get<std::string>());
    double ignored = 0.0;
    // A path with blanks in it stays one path; only "weight prefix ..." is taken apart.
    if (words.size() > 1 && !number_from(words[0], ignored)) words = {value.get<std::string>()};
  } else {
    for (const auto& item : value) {
      if (item.is_string())
        words.push_back(item.get<std::string>());
      else if (item.is_number())
        words.push_back(item.dump());
      else
        throw std::invalid_argument("the list holds something that is neither a prefix nor a weight");
    }
  }
  if (words.empty()) throw std::invalid_argument("names no data");
  std::vector<WeightedPrefix> result;
  double weight = 0.0;
  if (words.size() == 1 || !number_from(words[0], weight)) {
    for (const std::string& word : words) {
      if (word.empty()) throw std::invalid_argument("holds an empty prefix");
      result.push_back({word, std::nullopt});
    }
  } else {
    if (words.size() % 2 != 0)
      throw std::invalid_argument("a blend is weight prefix weight prefix ...; one half of a pair is missing");
    for (size_t i = 0; i < words.size(); i += 2) {
      if (!number_from(words[i], weight) || weight <= 0.0)
        throw std::invalid_argument("\"" + words[i].substr(0, 60) + "\" stands where a positive weight belongs");
      if (words[i + 1].empty()) throw std::invalid_argument("holds an empty prefix");
      result.push_back({words[i + 1], weight});
    }
  }
  for (const WeightedPrefix& p : result) {
    const std::string& s = p.prefix;
    if (s.size() > 4 && (s.compare(s.size() - 4, 4, ".bin") == 0 || s.compare(s.size() - 4, 4, ".idx") == 0))
      throw std::invalid_argument("a prefix goes without .bin / .idx: \"" + s.substr(0, s.size() - 4) + "\"");
  }
  return result;
}

void Resolver::batch() {
  const char *train = "train_batch_size", *micro = "train_micro_batch_size_per_gpu",
             *accum = "gradient_accumulation_steps";
  if (broken(train) || broken(micro) || broken(accum) ||
      !known({"pipe_parallel_size", "model_parallel_size", "context_parallel_size"}))
    return;
  const int64_t context = integer("context_parallel_size");
  const int64_t stage_ranks = integer("pipe_parallel_size") * integer("model_parallel_size") * context;
  const bool has_train = given(train) != nullptr, has_micro = given(micro) != nullptr,
             has_accum = given(accum) != nullptr;

  // Data-parallel ranks.
  int64_t ranks = options_.ranks;
  const bool from_key = ranks == 0 && options_.dry_run && known({"global_num_gpus"});
  if (from_key) ranks = integer("global_num_gpus");
  int64_t dp = 1;
  if (ranks > 1000000 || stage_ranks > 1000000)
    return fail({"pipe_parallel_size", "model_parallel_size"}, "at most 1000000 ranks can be laid out");
  if (ranks > 0) {
    if (ranks % stage_ranks != 0) {
      return fail({"pipe_parallel_size", "model_parallel_size"},
                  str(ranks) + " ranks are not a multiple of pipe_parallel_size " + str(integer("pipe_parallel_size")) +
                      " * model_parallel_size " + str(integer("model_parallel_size")) +
                      (context > 1 ? " * context_parallel_size " + str(context) : "") + ": take " + str(stage_ranks) +
                      " or a multiple (mpirun -n), or smaller sizes");
    }
    dp = ranks / stage_ranks;
  } else if (has_train && has_micro && has_accum && integer(train) % (integer(micro) * integer(accum)) == 0) {
    dp = integer(train) / (integer(micro) * integer(accum));
    if (dp > 1000000 / stage_ranks) return fail({train}, "asks for more than 1000000 ranks");
  }
  const Setting* meant = given("global_num_gpus");
  if (meant != nullptr && meant->value.get<int64_t>() != stage_ranks * dp)
    note("global_num_gpus", "has no effect: the number of ranks is " + str(stage_ranks * dp));
  set("global_num_gpus", stage_ranks * dp);

  const std::string over = dp == 1 ? "one data-parallel rank" : str(dp) + " data-parallel ranks";
  if (!has_train && !has_micro && options_.dry_run && !has_accum) {
    // The file of a model alone, as NeoX splits its configurations: what it costs can be told.
    note(micro, "not given; the dry run takes 1");
    set(micro, 1), set(accum, 1), set(train, dp);
    return parse_ramp();
  }
  if (!has_train && !has_micro) {
    return fail({train},
                "missing: give two of train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps");
  }
  if (has_train && has_micro && has_accum) {
    if (integer(train) != integer(micro) * integer(accum) * dp) {
      fail({accum}, "train_batch_size " + str(integer(train)) + " is not train_micro_batch_size_per_gpu " +
                        str(integer(micro)) + " * gradient_accumulation_steps " + str(integer(accum)) + " * " + over +
                        " = " + str(integer(micro) * integer(accum) * dp) + "; leave one of them out");
    }
    parse_ramp();
    return;
  }
  if (has_train) {
    // The missing one of micro and accumulation; with train alone the accumulation is 1.
    const int64_t known_part = (has_micro ? integer(micro) : has_accum ? integer(accum) : 1) * dp;
    if (integer(train) % known_part != 0) {
      const std::string what = has_micro   ? "train_micro_batch_size_per_gpu " + str(integer(micro)) + " * "
                               : has_accum ? "gradient_accumulation_steps " + str(integer(accum)) + " * "
                                           : "";
      return fail({train, micro, accum},
                  "train_batch_size " + str(integer(train)) + " is not a multiple of " + what + over);
    }
    set(has_micro ? accum : micro, integer(train) / known_part);
    if (!has_micro && !has_accum) set(accum, 1);
  } else {
    if (!has_accum) set(accum, 1);
    set(train, integer(micro) * integer(accum) * dp);
    if (integer(train) > 1000000000)
      return fail({micro, accum}, "makes a batch of " + str(integer(train)) + " sequences (at most 1e9)");
  }
  parse_ramp();
}

// Sequence parallelism cuts the tokens of a micro-batch.
void Resolver::tokens_for_tensor_ranks() {
  const char* micro = "train_micro_batch_size_per_gpu";
  if (!known({"sequence_parallel", "model_parallel_size", "seq_length", micro}) || !flag("sequence_parallel")) return;
  // The shortest part of a sequence that a context-parallel rank has.
  const int64_t length =
      SequenceCut{integer("seq_length"), 0, static_cast<int>(integer("context_parallel_size"))}.least();
  const int64_t tokens = integer(micro) * length, t = integer("model_parallel_size");
  if (tokens < t)
    fail({"sequence_parallel", "model_parallel_size", "seq_length", micro},
         "cuts the " + str(tokens) + " tokens of a micro-batch (train_micro_batch_size_per_gpu * seq_length) over " +
             str(t) + " tensor-parallel ranks: some would have none; say false, or give longer sequences");
}

// A gradient is rounded once, when its sum is complete: nothing may be added to it afterwards.
void Resolver::gradient_dtype() {
  const char *key = "grad_dtype", *accum = "gradient_accumulation_steps", *stages = "pipe_parallel_size";
  if (!known({key, "precision", accum, stages, "model_parallel_size", "global_num_gpus"}) || !is(key, "bf16")) return;
  if (!is("precision", "bf16")) fail({key, "precision"}, "bf16 goes with precision bf16");
  if (integer(accum) > 1)
    fail({key, accum}, "bf16 is for one micro-batch per step: a sum of " + str(integer(accum)) +
                           " would be rounded at each; say fp32, or gradient_accumulation_steps 1");
  if (integer(stages) > 1)
    fail({key, stages}, "bf16 is for one pipeline stage; say fp32");
  else if (integer("global_num_gpus") > integer("model_parallel_size"))
    fail({key, "global_num_gpus"},
         "bf16 is for one data-parallel rank: sums over ranks are fp32; say fp32, and zero_optimization.stage 2 to "
         "shard them");
  if (known({"compression.sends"}) && is("compression.sends", "momentum"))
    fail({key, "compression.sends"}, "bf16 holds gradients, not the momentum that is sent instead");
}

void Resolver::parse_ramp() {
  const Setting* ramp = given("rampup_batch_size");
  if (ramp == nullptr) return;
  std::vector<std::string> words;
  if (ramp->value.is_string()) {
    std::string text = ramp->value.get<std::string>();
    std::replace(text.begin(), text.end(), ',', ' ');
    words = split_words(text);
  } else {
    for (const auto& item : ramp->value)  // Megatron's lists hold strings
      words.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }
  std::vector<double> numbers(words.size());
  bool good = words.size() == 3;
  for (size_t i = 0; i < words.size() && good; ++i)
    good = number_from(words[i], numbers[i]) && numbers[i] >= 1 && numbers[i] <= 1e15 &&
           numbers[i] == std::floor(numbers[i]);
  if (!good) return fail({"rampup_batch_size"}, "must be three positive integers: start, increment, samples");
  const int64_t start = static_cast<int64_t>(numbers[0]), step = static_cast<int64_t>(numbers[1]);
  const int64_t full = integer("train_batch_size");
  if (start > full || (full - start) % step != 0) {
    return fail({"rampup_batch_size"}, "from " + str(start) + " in steps of " + str(step) +
                                           " the batch never becomes train_batch_size " + str(full));
  }
  const int64_t unit = integer("train_micro_batch_size_per_gpu") *
                       (integer("global_num_gpus") / (integer("pipe_parallel_size") * integer("model_parallel_size") *
                                                      integer("context_parallel_size")));
  if (start % unit != 0 || step % unit != 0) {
    return fail({"rampup_batch_size"}, "start and increment must be multiples of " + str(unit) +
                                           " (train_micro_batch_size_per_gpu * data-parallel ranks)");
  }
  set("rampup_batch_size", {start, step, static_cast<int64_t>(numbers[2])});
}

// Lengths in samples are Megatron's. The schedule counts samples where it has one of them, and in a run of
// train_samples where nothing is in steps. A length of 0 is the same in both.
void Resolver::schedule_in_samples() {
  DataConfig data;
  data.global_batch = integer("train_batch_size");
  data.done_iters = options_.done_iters, data.done_samples = options_.done_samples;
  // parse_ramp() leaves one that is wrong out, with its message.
  if (const auto ramp = values_.find("rampup_batch_size"); ramp != values_.end()) {
    data.ramp_start = ramp->second.at(0).get<int64_t>();
    data.ramp_increment = ramp->second.at(1).get<int64_t>();
    data.ramp_samples = ramp->second.at(2).get<int64_t>();
  }
  const Setting* total = given("train_iters") == nullptr ? given("train_samples") : nullptr;
  if (total != nullptr) {
    const int64_t iters = iterations_of(data, total->value.get<int64_t>());
    if (iters == 0) fail({"train_samples"}, "is less than one batch of " + str(data.global_batch));
    if (data.ramp_samples > total->value.get<int64_t>())
      fail({"rampup_batch_size", "train_samples"}, "the ramp is longer than train_samples");
    set("train_iters", iters);
  }

  struct Length {
    const char *in_steps, *in_samples;
  };
  constexpr Length kLengths[] = {{"lr_decay_iters", "lr_decay_samples"},
                                 {"lr_warmup_iters", "lr_warmup_samples"},
                                 {"lr_wsd_decay_iters", "lr_wsd_decay_samples"}};
  const auto counts = [&](const char* key) {
    const Setting* length = given(key);
    return length != nullptr && length->value.get<int64_t>() != 0;
  };
  bool steps = false, samples = false;
  for (const Length& length : kLengths) {
    steps = steps || counts(length.in_steps);
    samples = samples || counts(length.in_samples);
  }
  const bool unit_given = given("lr_schedule_unit") != nullptr;
  if (!unit_given && (samples || (total != nullptr && !steps))) set("lr_schedule_unit", "samples");
  const bool by_samples = value("lr_schedule_unit") == "samples";
  for (const auto& [in_steps, in_samples] : kLengths) {
    const Setting* length = given(in_samples);
    if (counts(in_samples) && !by_samples)
      fail({in_samples}, "contradicts lr_schedule_unit steps");
    else if (length != nullptr && !broken(in_steps))
      set(in_steps, length->value);
    else if (counts(in_steps) && samples && !unit_given)
      fail({in_steps}, std::string("counts steps beside lengths in samples: give ") + in_samples);
  }
  if (!by_samples || broken("lr_decay_iters") || !value("lr_decay_iters").is_null()) return;
  if (total != nullptr)
    set("lr_decay_iters", total->value);
  else if (known({"train_iters"}))
    set("lr_decay_iters", std::max<int64_t>(1, samples_after(data, integer("train_iters"))));
}

void Resolver::schedule() {
  if (options_.dry_run) {
    for (const char* key : {"train_iters", "optimizer.params.lr"}) {
      const bool iters = key == std::string_view("train_iters");
      if (broken(key) || !value(key).is_null() || (iters && given("train_samples") != nullptr)) continue;
      note(key, "not given; a run needs it, the dry run takes 1");
      if (iters)
        set(key, 1);
      else
        set(key, 1.0);
    }
  }
  if (known({"train_batch_size"})) schedule_in_samples();
  if (!known({"train_iters"})) return;
  if (value("lr_decay_iters").is_null() && !broken("lr_decay_iters"))
    set("lr_decay_iters", std::max<int64_t>(1, integer("train_iters")));
  if (!known({"lr_decay_iters"})) return;
  const int64_t decay = integer("lr_decay_iters");
  // The steps of a checkpoint, which is not known yet, may have taken other batches.
  const bool by_batch =
      given("train_samples") != nullptr && given("lr_decay_iters") == nullptr && is("lr_schedule_unit", "steps");
  const std::string length = "lr_decay_iters " + str(decay) +
                             (by_batch ? " (train_samples / train_batch_size: say lr_decay_iters where a run goes on "
                                         "that has taken other batches)"
                                       : "");
  if (!broken("warmup") && !broken("lr_warmup_iters")) {
    // NeoX warms up while steps <= warmup * lr_decay_iters. The small addend undoes the binary rounding of fractions
    // like 0.01.
    if (value("lr_warmup_iters").is_null())
      set("lr_warmup_iters", static_cast<int64_t>(std::floor(real("warmup") * static_cast<double>(decay) + 1e-6)));
    set("warmup", nullptr);
    if (integer("lr_warmup_iters") > decay)
      fail({"lr_warmup_iters", "lr_warmup_samples", "lr_decay_iters"},
           "warm-up of " + str(integer("lr_warmup_iters")) + " " + text("lr_schedule_unit") + " is longer than " +
               length + ": shorten it, or say warmup=0.01, a share of them");
  }
  if (const Setting* part = given("decay_lr_to"); part != nullptr && known({"optimizer.params.lr"}))
    set("min_lr", part->value.get<double>() * real("optimizer.params.lr"));
  if (known({"min_lr", "optimizer.params.lr"}) && real("min_lr") > real("optimizer.params.lr"))
    fail({"min_lr", "optimizer.params.lr"}, "min_lr " + shown(value("min_lr")) + " is above the peak learning rate " +
                                                shown(value("optimizer.params.lr")));
  if (known({"lr_warmup_init", "optimizer.params.lr"}) && real("lr_warmup_init") > real("optimizer.params.lr"))
    fail({"lr_warmup_init"}, "is above the peak learning rate " + shown(value("optimizer.params.lr")));
  if (known({"lr_warmup_init", "lr_warmup_convention"}) && real("lr_warmup_init") != 0 &&
      !is("lr_warmup_convention", "megatron"))
    fail({"lr_warmup_init"}, "is read under lr_warmup_convention megatron alone, and it is " +
                                 shown(value("lr_warmup_convention")) +
                                 ": set lr_warmup_convention to \"megatron\", or leave lr_warmup_init out");
  if (is("lr_decay_style", "wsd") && !broken("lr_wsd_decay_iters")) {
    if (value("lr_wsd_decay_iters").is_null())
      fail({"lr_wsd_decay_iters", "lr_decay_style"}, "lr_decay_style wsd needs lr_wsd_decay_iters");
    else if (known({"lr_warmup_iters"}) && integer("lr_wsd_decay_iters") + integer("lr_warmup_iters") > decay)
      fail({"lr_wsd_decay_iters", "lr_wsd_decay_samples"},
           "warm-up and final decay together are longer than " + length);
  }
  if (is("optimizer.type", "adam")) note_unread({"optimizer.params.momentum"}, "only optimizer.type sgd reads it");
  if (is("optimizer.type", "sgd"))
    note_unread({"optimizer.params.betas", "optimizer.params.eps"}, "only optimizer.type adam reads it");
  if (known({"lr_decay_style"}) && !is("lr_decay_style", "wsd"))
    note_unread({"lr_wsd_decay_iters", "lr_wsd_decay_samples", "lr_wsd_decay_style"},
                "only lr_decay_style wsd reads it");
}

void Resolver::check_paths(const std::string& paths, const std::string& weights) {
  const Setting* p = given(paths);
  const Setting* w = given(weights);
  if (p == nullptr) {
    if (w != nullptr && !broken(paths)) fail({weights.c_str()}, "there is no " + paths + " to weigh");
    return;
  }
  try {
    std::vector<WeightedPrefix> prefixes = parse_prefixes(p->value);
    for (const WeightedPrefix& data : prefixes)
      if (const std::string shipped = shipped_file(data.prefix, ".idx"); !shipped.empty())
        note(paths, shipped_note(shipped));
    if (paths == "data_path" && prefixes.size() > 1 && !prefixes[0].weight)
      note(paths, "prefixes without weights are drawn equally often (Megatron: by their sizes); give weights");
    if (w == nullptr) return;
    if (p->value.is_string() || prefixes.size() != p->value.size())
      return fail({weights.c_str()}, "weights are already in " + paths);
    if (w->value.size() != prefixes.size())
      return fail({weights.c_str()}, str(static_cast<int64_t>(w->value.size())) + " weights for " +
                                         str(static_cast<int64_t>(prefixes.size())) + " prefixes");
    for (const auto& item : w->value)
      if (item.get<double>() <= 0.0)
        return fail({weights.c_str()}, "a weight must be positive; leave the data out instead");
  } catch (const std::invalid_argument& e) {
    fail({paths.c_str()}, e.what());
  }
}

void Resolver::split_text() {
  if (broken("split")) return;
  if (given("train_data_paths") != nullptr) {
    if (given("split") != nullptr) fail({"split"}, "contradicts the lists per split (train_data_paths ...)");
    set("split", nullptr);
    return;
  }
  const nlohmann::json given_split = value("split");
  std::string text;
  if (given_split.is_string()) {
    text = given_split.get<std::string>();
  } else {
    for (const auto& item : given_split) {
      if (!item.is_number()) return fail({"split"}, "must hold numbers");
      text += (text.empty() ? "" : ",") + item.dump();
    }
    set("split", text);
  }
  if (const std::string fault = split_fault(text); !fault.empty()) fail({"split"}, shown(text) + " " + fault);
}

void Resolver::data() {
  check_paths("train_data_paths", "train_data_weights");
  check_paths("valid_data_paths", "valid_data_weights");
  check_paths("test_data_paths", "test_data_weights");
  for (const char* key : {"valid_data_paths", "test_data_paths"})
    if (given(key) != nullptr && given("train_data_paths") == nullptr && !broken("train_data_paths"))
      fail({key}, "needs train_data_paths beside it");
  check_paths("data_path", "");
  split_text();
  if (options_.data_required && given("data_path") == nullptr && given("train_data_paths") == nullptr &&
      !broken("data_path") && !broken("train_data_paths"))
    fail({"data_path"}, "missing: the prefix of the training data, without .bin / .idx");
}

}  // namespace thinwire
