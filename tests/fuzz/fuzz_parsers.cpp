// Plays files to parsers. Readers that want a path get one in memory, of this process alone.
#include "tests/fuzz/fuzz_parsers.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"
#include "engine/base/core/crc32c.h"
#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/manifest.h"
#include "engine/run/checkpoint/output_file.h"
#include "engine/run/config/load_config.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/plan/cluster.h"
#include "engine/run/trace/report_html.h"
#include "engine/run/trace/run_files.h"
#include "engine/run/train/plan_revisions.h"
#include "engine/run/train/product_file.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::fuzz {
namespace {

using nlohmann::json;
using test::spill;

const test::Scratch& scratch() {
  static const test::Scratch directory(std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp");
  static const bool quiet = [] {
    log_set_console_level(LogLevel::kError);
    return true;
  }();
  (void)quiet;
  return directory;
}

std::string text_of(std::span<const uint8_t> input) {
  return {input.begin(), input.end()};
}

void demand(bool law, const char* what) {
  if (!law) throw std::logic_error(what);
}

template <typename F>
bool accepted(ExitCode refusal, const F& f) {
  try {
    f();
    return true;
  } catch (const Error& e) {
    if (e.code() != refusal) throw;
    return false;
  }
}

bool play_config(const char* name, std::span<const uint8_t> input) {
  return accepted(ExitCode::kBadConfig, [&] {
    const ResolvedConfig c = load_config_text({{name, text_of(input)}}, {}, {.dry_run = true});
    note_lines(c);
    const std::string resolved = resolved_json(c).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const ResolvedConfig again = load_config_text({{"r.json", resolved}}, {}, {.dry_run = true});
    demand(c.values == again.values, "the resolved configuration loads back otherwise");
  });
}

bool play_megatron_args(std::span<const uint8_t> input) {
  const std::string file = scratch() / "args";
  spill(file, text_of(input));
  return accepted(ExitCode::kBadConfig, [&] { load_config({}, {}, {.dry_run = true, .args_files = {file}}); });
}

bool play_token_index(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  const std::string prefix = scratch() / "tokens";
  std::string tokens(input[0] * size_t{8}, '\0');
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<char>(i % 7);
  spill(prefix + ".bin", tokens);
  spill(prefix + ".idx", text_of(input.subspan(1)));
  return accepted(ExitCode::kBadData, [&] {
    const TokenFile file(prefix, 0);
    file.check_unchanged();
    file.fingerprint();
    for (int64_t d = 0; d <= file.documents(); ++d)
      demand(file.boundary(d) >= 0 && file.boundary(d) <= file.sequences(), "a document outside of the sequences");
    std::vector<int32_t> ids;
    for (int64_t s = 0; s < file.sequences(); ++s) {
      demand(file.length(s) * size_of(file.type()) <= static_cast<int64_t>(tokens.size()), "a sequence behind the end");
      ids.resize(static_cast<size_t>(file.length(s)));
      file.read(s, 0, ids);
    }
  });
}

bool play_tokenizer_json(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  const std::string file = scratch() / "tokenizer.json";
  spill(file, text_of(input.subspan(1)));
  std::unique_ptr<Tokenizer> tokenizer;
  if (!accepted(ExitCode::kBadData, [&] { tokenizer = make_tokenizer("bpe:" + file); })) return false;
  tokenizer->eod();
  const std::string text = "ab Ab, 12\n " + text_of(input.subspan(1, std::min<size_t>(input[0], input.size() - 1)));
  std::vector<int32_t> ids;
  // A byte that the vocabulary has no token for is refused as the text's fault.
  if (!accepted(ExitCode::kBadData, [&] { ids = tokenizer->encode(text); })) return true;
  for (int32_t id : ids) demand(id >= 0 && id < tokenizer->vocab_size(), "an id outside of the vocabulary");
  tokenizer->decode(ids);
  return true;
}

bool play_safetensors(std::span<const uint8_t> input) {
  const std::string path = scratch() / "x.safetensors";
  spill(path, text_of(input));
  return accepted(ExitCode::kBadData, [&] {
    const SafetensorsFile file(path);
    uint64_t bytes = 0;
    for (const SafetensorsEntry& entry : file.entries()) {
      demand(file.find(entry.name) == &entry, "a tensor is not found by its name");
      bytes += file.read_bytes(entry.name).size();
      entry.shape_text();
      std::vector<float> values(static_cast<size_t>(entry.count()));
      accepted(ExitCode::kBadData, [&] { file.read_f32(entry.name, values); });
      accepted(ExitCode::kBadData, [&] { file.read_i64(entry.name); });
    }
    demand(bytes < input.size(), "more data than the file has");
  });
}

bool play_manifest(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  std::string text = text_of(input.subspan(1));
  if (input[0] % 2 == 1) text += ",\n\"checksum\": \"" + hash_text(text) + "\"\n}\n";
  return accepted(ExitCode::kBadData, [&] {
    const Manifest part = part_from_text("part", text);
    demand(part_from_text("again", manifest_to_text(part)).tensors.size() == part.tensors.size(), "tensors are lost");
    const Manifest whole = manifest_from_text("manifest", text);
    const std::string written = manifest_to_text(whole);
    demand(manifest_to_text(manifest_from_text("again", written)) == written, "it is written otherwise than read");
  });
}

bool play_run_files(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  const std::string files[] = {metrics_path(scratch().path()), status_path(scratch().path()),
                               resolved_config_path(scratch().path()), prediction_path(scratch().path())};
  for (const std::string& file : files) std::filesystem::remove(file);
  spill(files[input[0] % 4], text_of(input.subspan(1)));
  const RunData run = load_run(scratch().path());
  demand(report_page({run}).find("</html>") != std::string::npos, "the page has no end");
  demand(compare_page({run, run}).find("</html>") != std::string::npos, "the page has no end");
  return run.problems.size() < 3;  // two files are missing
}

bool play_cluster(std::span<const uint8_t> input) {
  const std::string file = scratch() / "cluster.json";
  spill(file, text_of(input));
  return accepted(ExitCode::kBadConfig, [&] {
    const Cluster c = read_cluster(file);
    demand(c.ranks() > 0, "a cluster without ranks");
    const Reach farthest = c.reach(0, c.ranks() - 1);
    demand(c.node_of(0) == c.node_of(c.ranks() - 1) || c.links[static_cast<int>(farthest)].bytes_per_second() > 0.0,
           "nodes that nothing joins");
    for (const auto* curves : {&c.machine.products, &c.machine.passes})
      for (const auto& [op, curve] : *curves)
        for (const double amount : {0.0, 0.25, 1.0, 3e5, 1e15}) {
          demand(curve.alone.at(amount) > 0.0, "a rate that is none");
          demand(curve.loaded.empty() || curve.loaded.at(amount) > 0.0, "a rate that is none");
        }
    demand(c.machine.op_time("?", 1e9, 1e9).alone >= 0.0, "a time that is none");
    for (const char* codec : {"", "(", "block_int(4)", "hadamard + mx"}) c.machine.codec(codec);
  });
}

bool play_revisions(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  static const SiteWays kWays = {
      {Site::kDpGradient, {CodingWay::kCoded, CodingWay::kLight, CodingWay::kBf16, CodingWay::kPlain}}};
  static const auto config_of = [](const char* method) {
    return load_config_text({{"c.json", R"({"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2,
      "seq_length": 8, "vocab_size": 64, "pipe_parallel_size": 2})"}},
                            {std::string("pipe_partition_method=") + method}, {.ranks = 2, .dry_run = true});
  };
  static const ResolvedConfig configs[] = {config_of("uniform"), config_of("time")};
  const ResolvedConfig& config = configs[input[0] % 2];
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  std::string text = text_of(input.subspan(1));
  if ((input[0] & 2) != 0) text = "{\"run\":" + revisions_run(config) + "}\n" + text;
  return accepted(ExitCode::kBadConfig, [&] {
    const PlanRevisions read = PlanRevisions::replayed("revisions.jsonl", text, config, kWays);
    const std::string written = read.text(kAll);
    const PlanRevisions again = PlanRevisions::replayed("again", written, config, kWays);
    demand(again.text(kAll) == written, "revisions are written otherwise than read");
    for (const int64_t update : {int64_t{1}, int64_t{7}, kAll}) {
      demand(again.ways_at(update) == read.ways_at(update), "revisions are in force otherwise than read");
      read.begun_with(update);
    }
  });
}

bool play_product_table(std::span<const uint8_t> input) {
  if (input.empty()) return false;
  std::string text = text_of(input.subspan(1));
  if (const json places = parse_shallow(text); input[0] % 2 == 1 && !places.is_discarded()) {
    const std::string summed = places.dump();
    const uint32_t sum = crc32c(std::as_bytes(std::span(summed)));
    text = json({{"format", 1}, {"crc32c", printed("%08x", sum)}, {"places", places}}).dump();
  }
  ProductFile file;
  try {
    file = ProductFile::of(text);
  } catch (const std::string& fault) {
    demand(!fault.empty(), "refused without a reason");
    return false;
  }
  const std::string written = file.text();
  demand(ProductFile::of(written).text() == written, "a table is written otherwise than read");
  return true;
}

}  // namespace

const std::vector<Parser>& parsers() {
  static const std::vector<Parser> all = {
      {"config_json", [](std::span<const uint8_t> input) { return play_config("c.json", input); }},
      {"config_yaml", [](std::span<const uint8_t> input) { return play_config("c.yml", input); }},
      {"megatron_args", play_megatron_args},
      {"token_index", play_token_index},
      {"tokenizer_json", play_tokenizer_json},
      {"safetensors", play_safetensors},
      {"manifest", play_manifest},
      {"run_files", play_run_files},
      {"cluster", play_cluster},
      {"revisions", play_revisions},
      {"product_table", play_product_table},
  };
  return all;
}

const Parser* find_parser(const std::string& name) {
  const auto it = std::find_if(parsers().begin(), parsers().end(), [&](const Parser& p) { return p.name == name; });
  return it == parsers().end() ? nullptr : &*it;
}

}  // namespace thinwire::fuzz
