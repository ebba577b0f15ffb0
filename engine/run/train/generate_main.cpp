// The program `generate`: continues a prompt with a trained or imported model, token by token with a cache.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "data/tokenizer/text_stream.h"
#include "data/tokenizer/tokenizer.h"
#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/core/philox.h"
#include "engine/run/checkpoint/checkpoint_store.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/process_setup.h"
#include "engine/run/train/replica.h"
#include "model/decoder.h"

namespace {

using namespace thinwire;

struct SamplingOptions {
  double temperature = 1.0;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all tokens
  double top_p = 0.0;        // 0 and 1: all tokens
  uint64_t seed = 0;
};

// A token by softmax sampling in double, ties to the smaller id. logits: of the ids that exist. The random number
// depends on (seed, index) alone. Logits that are not finite throw Error(kBadData).
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, int64_t index) {
  for (float l : logits) {
    if (!std::isfinite(l)) throw_bad_data("the model's logits are not numbers: its weights are damaged or it diverged");
  }
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  if (options.temperature == 0.0) return *std::min_element(ids.begin(), ids.end(), better);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(ids.size())) {
    std::nth_element(ids.begin(), ids.begin() + options.top_k, ids.end(), better);
    ids.resize(static_cast<size_t>(options.top_k));
    std::sort(ids.begin(), ids.end());
  }
  const bool nucleus = options.top_p > 0.0 && options.top_p < 1.0;
  if (nucleus) std::sort(ids.begin(), ids.end(), better);
  double largest = -INFINITY;
  for (int32_t id : ids) largest = std::max(largest, static_cast<double>(logits[id]));
  std::vector<double> mass(ids.size());
  double total = 0.0;
  for (size_t i = 0; i < ids.size(); ++i) total += mass[i] = std::exp((logits[ids[i]] - largest) / options.temperature);
  if (nucleus) {  // as in Megatron-LM, the id that passes top_p belongs to it; of what top_k leaves
    size_t kept = 0;
    double sum = 0.0;
    while (kept < ids.size() && sum <= options.top_p * total) sum += mass[kept++];
    ids.resize(kept), total = sum;
  }
  const PhiloxBlock bits =
      philox(seed_key(options.seed), {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0,
                                      static_cast<uint32_t>(RandomPurpose::kSampling)});
  double left = (static_cast<double>(bits[0]) + static_cast<double>(bits[1]) * 0x1p-32) * 0x1p-32 * total;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (left < mass[i]) return ids[i];
    left -= mass[i];
  }
  return ids.back();
}

struct Options {
  std::string load, prompt, tokenizer;
  int64_t tokens = 200;
  bool add_bos = false;
  SamplingOptions sampling;
  int threads = 2;
  std::string device = "cpu";
};

// A decoder with the weights of a verified checkpoint, and room for `capacity` tokens.
class Model {
 public:
  Model(const VerifiedCheckpoint& found, const ModelConfig& config, int64_t capacity, const Options& o)
      : config_(config),
        backend_(open_backend(o.device, 0)),
        stream_(backend_.device->make_stream()),
        exec_(make_exec(*backend_.ops, *backend_.device, *stream_, o.threads)),
        arena_(backend_.device.get()),
        store_(config_, arena_, false),
        chunk_(static_cast<size_t>(std::min<int64_t>(capacity, 256))),
        decoder_(config_, store_, capacity, static_cast<int64_t>(chunk_), ports_, arena_, backend_.device.get(),
                 stream_.get()) {
    LoadOptions options;
    if (backend_.device->memory_total() > 0) {
      options.copy = [this](std::byte* to, const std::byte* from, size_t bytes) {
        backend_.device->copy_at_rest(to, from, bytes);
      };
    }
    load_checkpoint(
        found, [&](StateVisitor& v) { store_.visit(v, "model/", {}, false); }, options);
    store_.refresh_working(exec_);
    host_.resize(static_cast<size_t>(config_.padded_vocab));
    tokens_ = arena_.take(MemoryCategory::kData, DType::i32, {256});
    logits_ = arena_.take(MemoryCategory::kData, DType::f32, {config_.padded_vocab});
  }

  // Forgets what was fed.
  void restart() { decoder_.reset(); }

  // Feeds ids and returns the logits behind the last one, on the host.
  std::span<const float> feed(std::span<const int32_t> ids) {
    View last;
    for (size_t at = 0; at < ids.size(); at += chunk_) {
      const auto piece = ids.subspan(at, std::min<size_t>(chunk_, ids.size() - at));
      backend_.device->copy_to_device(tokens_.data, piece.data(), piece.size_bytes(), *stream_).wait(*stream_);
      last = decoder_.feed(exec_, tokens_.element_range(0, static_cast<int64_t>(piece.size())));
    }
    exec_.ops.cast(exec_, {last, logits_});
    backend_.device->copy_to_host(host_.data(), logits_.data, logits_.bytes(), *stream_).wait_on_host();
    return {host_.data(), static_cast<size_t>(config_.vocab)};
  }

 private:
  ModelConfig config_;
  Backend backend_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
  Arena arena_;
  Ports ports_;
  ParamStore store_;
  size_t chunk_;  // tokens fed at once
  Decoder decoder_;
  View tokens_, logits_;
  std::vector<float> host_;
};

int run(const Options& o) {
  if (o.device != "cpu") open_backend(o.device, 0);  // the device is checked before the data
  const VerifiedCheckpoint found = find_newest_valid(o.load);
  const ModelConfig config = model_of(found);
  std::string spec = o.tokenizer;
  if (spec.empty()) spec = found.manifest.info.value("tokenizer", "");
  if (spec.empty()) {
    if (config.vocab > 257) {
      throw_usage("generate: the checkpoint names no tokenizer; add --tokenizer bpe:FILE or sentencepiece:FILE");
    }
    spec = "byte";
  }
  const std::unique_ptr<Tokenizer> tokenizer = [&] {
    try {
      return make_tokenizer(spec, spec == "byte" && config.vocab == 257);
    } catch (const Error& e) {
      if (!o.tokenizer.empty()) throw;
      throw Error(e.code(), std::string(e.what()) + " (as the run recorded it; --tokenizer says where it is now)");
    }
  }();
  if (tokenizer->vocab_size() > config.vocab) {
    throw_usage("generate: the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " ids, the model " +
                std::to_string(config.vocab) + "; give the tokenizer that the training data was made with");
  }
  const auto before = tokenizer->before_text();
  std::vector<int32_t> prompt(before.begin(), before.end());
  const std::vector<int32_t> words = tokenizer->encode(o.prompt);
  prompt.insert(prompt.end(), words.begin(), words.end());
  if (o.add_bos) {
    if (!tokenizer->bos()) throw_usage("generate: --add-bos: " + spec + " has no such token of its own");
    prompt.insert(prompt.begin(), *tokenizer->bos());
  }
  if (prompt.empty()) prompt.push_back(tokenizer->eod().value_or(spec == "byte" ? '\n' : 0));
  const int64_t total = static_cast<int64_t>(prompt.size()) + o.tokens;
  const bool limited = config.positions == PositionKind::kLearned;
  const int64_t window = limited ? config.max_positions : total;
  if (static_cast<int64_t>(prompt.size()) > window) {
    throw_usage("generate: the prompt has " + std::to_string(prompt.size()) + " tokens, the model's positions end at " +
                std::to_string(window));
  }

  std::fputs(o.prompt.c_str(), stdout);
  std::vector<int32_t> all = prompt;
  std::vector<int32_t> pending = prompt;
  Model model(found, config, window, o);
  int64_t position = 0;
  TextStream text(*tokenizer, words);
  const auto print = [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  for (int64_t i = 0; i < o.tokens; ++i) {
    if (position + static_cast<int64_t>(pending.size()) > window) {
      // Learned positions are used up: go on from the last half of the text.
      pending.assign(all.end() - std::max<int64_t>(1, window / 2), all.end());
      model.restart();
      position = 0;
    }
    const std::span<const float> logits = model.feed(pending);
    position += static_cast<int64_t>(pending.size());
    const int32_t next =
        sample_token(logits.first(static_cast<size_t>(std::min(config.vocab, tokenizer->vocab_size()))), o.sampling, i);
    if (tokenizer->eod() == next) break;
    all.push_back(next);
    pending.assign(1, next);
    print(text.add(next));
  }
  print(text.finish());
  std::fputc('\n', stdout);
  finish_printing("generate");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ensure_passive_waiting(argv);
  const auto program = [&]() -> int {
    Options o;
    CLI::App app{"Continues a prompt with a trained model."};
    add_version(app, "generate", [] { return cpu_ops().isa(); });
    app.add_option("--load", o.load, "run directory, its checkpoints, or one checkpoint (needed)");
    app.add_option("--prompt", o.prompt, "text to continue");
    app.add_option("--tokens", o.tokens, "tokens to write")
        ->check(CLI::Range(int64_t{0}, int64_t{1000000}))
        ->capture_default_str();
    app.add_flag("--add-bos", o.add_bos, "begin with a SentencePiece model's <s>, as Llama 2 and Mistral expect");
    app.add_option("--temperature", o.sampling.temperature, "0 takes the most likely token")
        ->check(CLI::Range(0.0, 100.0))
        ->capture_default_str();
    app.add_option("--top-k", o.sampling.top_k, "choose among the K most likely (0: all)")
        ->check(CLI::Range(int64_t{0}, int64_t{100000000}))
        ->capture_default_str();
    app.add_option("--top-p", o.sampling.top_p, "choose among the most likely that together reach P (0: all)")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    app.add_option("--seed", o.sampling.seed, "same seed, same text")
        ->check([](const std::string& text) {  // a conversion alone wraps -1, and clamps what is too large
          uint64_t seed = 0;
          const char* const end = text.data() + text.size();
          const auto [stop, error] = std::from_chars(text.data(), end, seed);
          return error == std::errc() && stop == end ? "" : text + " is no whole number from 0 to 2^64 - 1";
        })
        ->capture_default_str();
    app.add_option("--tokenizer", o.tokenizer, "byte | bpe:FILE | sentencepiece:FILE (default: what the run recorded)");
    app.add_option("--device", o.device, "where it computes")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    app.add_option("--threads", o.threads, "CPU threads")->check(CLI::Range(1, most_threads()))->capture_default_str();
    if (const auto code = parse_command_line(app, "generate", argc, argv)) return *code;
    // A range lets NaN pass.
    if (std::isnan(o.sampling.temperature)) throw_usage("generate: --temperature is not a number");
    if (std::isnan(o.sampling.top_p)) throw_usage("generate: --top-p is not a number");
    if (o.load.empty()) throw_usage("generate: --load RUN_DIR_OR_CHECKPOINT is needed");
    log_set_console_level(LogLevel::kWarning);
    return run(o);
  };
  return run_program("generate", program, kMemoryHint);
}
