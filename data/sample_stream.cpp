// From a DataConfig to numbered samples.
#include "data/sample_stream.h"

#include <utility>

#include "data/batch_ramp.h"
#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

int64_t checked_product(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    throw_bad_config(std::string(what) + ": " + std::to_string(a) + " x " + std::to_string(b) +
                     " samples are too many to count");
  return product;
}

std::string short_number(double value) {
  return printed("%.6g", value);
}

bool holds_tokens(const TokenFile& file, SequenceRange range) {
  file.check_unchanged();
  for (int64_t s = range.first; s < range.last; ++s)
    if (file.length(s) > 0) return true;
  return false;
}

void check_numbers(const DataConfig& c) {
  if (c.seq_length < 1) throw_bad_config("seq_length: " + std::to_string(c.seq_length) + " must be at least 1");
  if (c.seq_length >= (int64_t{1} << 40))
    throw_bad_config("seq_length: " + std::to_string(c.seq_length) + " is too large");
  if (c.seed > 0xffffffffu)
    throw_bad_config("seed: " + std::to_string(c.seed) + " must be below 2^32 (numpy's shuffle takes one 32-bit word)");
  if (c.vocab < 0) throw_bad_config("vocab: " + std::to_string(c.vocab) + " must not be negative");
  if (c.train_iters < 0 || c.eval_iters < 0 || c.eval_interval < 0)
    throw_bad_config("train_iters, eval_iters and eval_interval must not be negative");
  check_batch_ramp(c);
}

}  // namespace

SplitSizes split_sizes(const DataConfig& c) {
  SplitSizes sizes;
  sizes.train = samples_after(c, c.train_iters);
  sizes.test = checked_product(c.eval_iters, c.global_batch, "eval_iters");
  const int64_t evaluations = c.eval_interval > 0 ? c.train_iters / c.eval_interval + 1 : 1;
  sizes.valid = checked_product(evaluations, sizes.test, "eval_iters");
  return sizes;
}

SampleStream::SampleStream(const DataConfig& c, EvalCheck check) : seq_length_(c.seq_length), vocab_(c.vocab) {
  check_numbers(c);
  seed_ = static_cast<uint32_t>(c.seed);
  blend_surplus_ = c.blend_surplus;
  const bool separate = !c.train.empty() || !c.valid.empty() || !c.test.empty();
  if (separate && !c.data.empty())
    throw_bad_config(
        "data_path: give either data_path (divided by split) or train_data_paths / valid_data_paths / test_data_paths, "
        "not both");
  if ((separate ? c.train : c.data).empty())
    throw_bad_config(separate ? "train_data_paths: is missing beside valid_data_paths / test_data_paths; give the "
                                "training data, or use data_path with split"
                              : "data_path: is missing; give the prefix of a .bin / .idx pair (the tokenize program "
                                "makes one from text)");
  const SplitSizes sizes = split_sizes(c);
  // All of them, whether evaluation reads them or not: they say whether a checkpoint belongs to these data.
  for (const auto* prefixes : {&c.data, &c.train, &c.valid, &c.test})
    for (const WeightedPrefix& p : *prefixes) open(p.prefix);
  const SplitFractions cut = separate ? SplitFractions{} : parse_split(c.split);
  const auto fractions = [&](Split s) { return separate ? whole_file(s) : cut; };
  const bool blended = !separate && (c.data.size() > 1 || c.data[0].weight.has_value());
  const auto is_blend = [&](const auto& prefixes) { return separate ? prefixes.size() > 1 : blended; };
  build(Split::kTrain, separate ? c.train : c.data, fractions(Split::kTrain), sizes.train, is_blend(c.train));
  require(Split::kTrain);
  for (const Split s : {Split::kValid, Split::kTest}) {
    const auto& prefixes = !separate ? c.data : s == Split::kValid ? c.valid : c.test;
    const bool weighted = fractions(s).part[static_cast<size_t>(s)].has_value() && !prefixes.empty();
    auto& absent = parts_[static_cast<size_t>(s)].absent;
    if (!weighted)
      absent = separate ? std::string("no ") + name_of(s) + "_data_paths given"
                        : "its weight in split \"" + c.split + "\" is zero";
    else if (c.eval_iters == 0)
      absent = "eval_iters is 0";
    else
      build(s, prefixes, fractions(s), s == Split::kValid ? sizes.valid : sizes.test, is_blend(prefixes));
    if (s == Split::kValid && check == EvalCheck::kRequire && weighted && c.eval_interval > 0 && c.eval_iters > 0)
      require(s);
  }
}

std::shared_ptr<const TokenFile> SampleStream::open(const std::string& prefix) {
  auto& file = files_[prefix];
  if (!file) {
    file = std::make_shared<const TokenFile>(prefix, vocab_);
    order_.push_back(file);
  }
  return file;
}

void SampleStream::build(Split split, const std::vector<WeightedPrefix>& prefixes, const SplitFractions& fractions,
                         int64_t wanted, bool blended) {
  Part& made = parts_[static_cast<size_t>(split)];
  const std::string name = name_of(split);
  made.wanted = wanted;
  made.blended = blended;
  std::vector<double> weights;
  for (const auto& p : prefixes) weights.push_back(p.weight.value_or(1.0));
  if (blended) {
    if (prefixes.size() > 65535)
      throw_bad_config("data_path: " + std::to_string(prefixes.size()) + " files, at most 65535 can be blended");
    for (size_t k = 0; k < prefixes.size(); ++k)
      if (!(weights[k] > 0.0))
        throw_bad_config("data_path: weight " + short_number(weights[k]) + " of " + prefixes[k].prefix +
                         " must be positive; leave out what is not to be used");
    if (wanted == 0)
      throw_bad_config(
          "train_iters: is 0, but blending files by weight needs to know how many samples to order; give "
          "train_iters, or one prefix without a weight");
    made.weights = normalize_weights(weights, "data_path");
  } else {
    made.weights = {1.0};
  }
  int64_t blend_size = 0;
  for (size_t k = 0; k < prefixes.size(); ++k) {
    auto file = open(prefixes[k].prefix);
    const auto range = split_range(fractions, split, file->sequences());
    if (!range) {
      made.absent = "its weight in split is zero";
    } else if (range->count() == 0) {
      made.absent = prefixes[k].prefix + " has " + std::to_string(file->sequences()) +
                    " sequences, and none of them falls into it";
    } else if (split != Split::kTrain && !holds_tokens(*file, *range)) {
      made.absent = prefixes[k].prefix + " has only empty sequences in it";
    } else {
      blend_size += blend_share(wanted, made.weights[k]);
      made.sets.emplace_back(std::move(file), *range, seq_length_,
                             blended ? blend_request(wanted, made.weights[k], blend_surplus_) : wanted, seed_, name);
      if (made.sets.back().size() == 0)
        made.absent = prefixes[k].prefix + " holds fewer than seq_length + 1 = " + std::to_string(seq_length_ + 1) +
                      " tokens in it";
    }
    if (!made.absent.empty()) return made.sets.clear();
  }
  if (!blended) return;
  // Megatron normalises once for the requests and again for the turns, which can move the last bit of a weight.
  made.blend = Blend(normalize_weights(made.weights, "data_path"), blend_size);
  for (size_t k = 0; k < made.sets.size(); ++k)
    if (made.blend.taken(static_cast<int64_t>(k)) > made.sets[k].size())
      throw_bad_config("data_path: blending takes " + std::to_string(made.blend.taken(static_cast<int64_t>(k))) + " " +
                       name + " samples of " + prefixes[k].prefix + ", but only " +
                       std::to_string(made.sets[k].size()) + " were built; raise mid_level_dataset_surplus, " +
                       short_number(blend_surplus_) + " now");
}

void SampleStream::require(Split split) const {
  if (has(split)) return;
  const std::string name = name_of(split);
  const std::string mend = split == Split::kTrain
                               ? "give more data or a larger first weight in `split`"
                               : "give it a larger weight in `split` (e.g. \"95, 5, 0\"), give " + name +
                                     "_data_paths, or switch evaluation off with eval_iters=0";
  throw_bad_config("the " + name + " split has no samples: " + part(split).absent + "; " + mend);
}

int64_t SampleStream::size(Split split) const {
  const Part& p = part(split);
  return p.sets.empty() ? 0 : p.blended ? p.blend.size() : p.sets[0].size();
}

void SampleStream::read(Split split, int64_t sample, std::span<int32_t> tokens) const {
  TW_CHECK(sample >= 0 && sample < size(split), "sample ", sample, " of ", size(split), " in the ", name_of(split),
           " split");
  const Part& p = part(split);
  if (!p.blended) return p.sets[0].read(sample, tokens);
  p.sets[static_cast<size_t>(p.blend.dataset(sample))].read(p.blend.sample(sample), tokens);
}

std::string SampleStream::describe() const {
  std::string text;
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const Part& p = part(split);
    if (!text.empty()) text += "\n";
    text += std::string("data ") + name_of(split) + ": ";
    if (!has(split)) {
      text += "none (" + p.absent + ")";
      continue;
    }
    text += std::to_string(size(split)) + " samples of " + std::to_string(seq_length_) + " tokens (" +
            std::to_string(p.wanted) + " needed)";
    for (size_t k = 0; k < p.sets.size(); ++k) {
      const GptDataset& d = p.sets[k];
      text += "; " + d.file().prefix() + (p.blended ? " weight " + short_number(p.weights[k]) : "") + ": " +
              std::to_string(d.epochs()) + (d.epochs() == 1 ? " epoch of " : " epochs of ") +
              std::to_string(d.tokens_per_epoch()) + " tokens in " + std::to_string(d.range().count()) +
              " sequences (" + name_of(d.file().type()) + ")" +
              (d.separate_final_epoch() ? ", last epoch shuffled apart" : "");
    }
  }
  // No writer leaves any: the .idx may be that of an older or another .bin, whose sequences begin elsewhere.
  for (const auto& file : order_)
    if (file->bytes_behind() > 0)
      text += "\nwarning: " + file->prefix() + ".bin: the last " + std::to_string(file->bytes_behind()) +
              " bytes are in no sequence of the .idx; do the two belong together?";
  return text;
}

std::string SampleStream::order(Split split) const {
  std::string text;
  for (const GptDataset& d : part(split).sets)
    text += (text.empty() ? "" : "; ") + std::to_string(d.epochs()) + (d.epochs() == 1 ? " epoch" : " epochs") +
            (d.separate_final_epoch() ? ", the last apart" : "");
  return text;
}

std::string SampleStream::fingerprint() const {
  std::string text;
  for (const auto& file : order_) {
    if (!text.empty()) text += " ";
    text += file->fingerprint();
  }
  return text;
}

void print_samples(const SampleStream& stream, int64_t n, std::ostream& out) {
  const int64_t size = stream.size(Split::kTrain);
  if (n < 0 || n > size)
    throw_usage("--print-samples " + std::to_string(n) + ": the training split has " + std::to_string(size) +
                " samples; ask for 0 to " + std::to_string(size) + ", or raise train_iters");
  std::vector<int32_t> tokens(static_cast<size_t>(stream.seq_length()) + 1);
  std::string line;
  for (int64_t i = 0; i < n; ++i) {
    stream.read(Split::kTrain, i, tokens);
    line = "{\"sample\":" + std::to_string(i) + ",\"tokens\":[";
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (t > 0) line += ',';
      line += std::to_string(tokens[t]);
    }
    line += "]}\n";
    out << line;
  }
  out.flush();
  if (!out) throw_io("--print-samples: writing the samples failed");
}

}  // namespace thinwire
