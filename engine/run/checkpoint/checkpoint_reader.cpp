// Listing, verifying and loading checkpoints, see checkpoint_reader.h.
#include "engine/run/checkpoint/checkpoint_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/shallow_json.h"
#include "engine/run/checkpoint/model_config_json.h"
#include "engine/run/checkpoint/stored_tensors.h"
#include "engine/run/checkpoint/verify_files.h"
#include "parallel/sites/control.h"

namespace thinwire {
namespace {

namespace fs = std::filesystem;

// step_000123 or step_000123-2; anything else (temporary directories above all) is not a checkpoint.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step_")) return std::nullopt;
  int64_t step = 0, again = 0;
  const char* end = name.data() + name.size();
  const auto [after_step, error] = std::from_chars(name.data() + 5, end, step);
  if (error != std::errc() || step < 0) return std::nullopt;
  if (after_step == end) return step;
  if (*after_step != '-') return std::nullopt;
  const auto [after_again, error_again] = std::from_chars(after_step + 1, end, again);
  if (error_again != std::errc() || after_again != end) return std::nullopt;
  return step;
}

class FillState : public StateVisitor {
 public:
  FillState(const VerifiedCheckpoint& found, const LoadOptions& options, const GotOn& got_on)
      : dir_(found.path), manifest_(found.manifest), options_(options), stored_(dir_, manifest_, got_on) {}

  void tensor(const GlobalSlice& slice) override {
    if (!wanted(slice.name)) return;
    const ManifestTensor* stored = stored_.find(slice.name);
    if (stored == nullptr) missing("tensor", slice.name);
    const SlicePlace place = place_of(slice);
    TW_CHECK(place.is_possible(), slice.name, ": slice outside its tensor");
    const auto shape = [](int64_t rows, int64_t cols) { return std::to_string(rows) + " x " + std::to_string(cols); };
    // All slices of a tensor have one shape and type: the manifest was held to that.
    if (stored->place.rows != slice.rows || stored->place.cols != slice.cols) {
      throw_bad_data(dir_ + ": tensor \"" + slice.name + "\" is " + shape(stored->place.rows, stored->place.cols) +
                     " in the checkpoint and " + shape(slice.rows, slice.cols) +
                     " in this model; the model keys must be those of the checkpoint");
    }
    if (stored->dtype != to_st_dtype(slice.local.dtype)) {
      throw_bad_data(dir_ + ": tensor \"" + slice.name + "\" is " + std::string(name_of(stored->dtype)) +
                     " in the checkpoint and " + std::string(name_of(to_st_dtype(slice.local.dtype))) + " here");
    }
    std::span<std::byte> out(static_cast<std::byte*>(slice.local.data), slice.local.bytes());
    if (!options_.copy) {
      stored_.read(slice.name, place, out);
    } else {
      scratch_.resize(out.size());
      stored_.read(slice.name, place, scratch_);
      options_.copy(out.data(), scratch_.data(), scratch_.size());
    }
  }
  void integer(const std::string& name, int64_t& value) override { scalar("integer", manifest_.integers, name, value); }
  void real(const std::string& name, double& value) override { scalar("real", manifest_.reals, name, value); }
  void text(const std::string& name, std::string& value) override { scalar("text", manifest_.texts, name, value); }

 private:
  bool wanted(const std::string& name) const {
    return std::none_of(options_.unwanted_prefixes.begin(), options_.unwanted_prefixes.end(),
                        [&](const std::string& prefix) { return name.starts_with(prefix); });
  }
  [[noreturn]] void missing(const char* kind, const std::string& name) {
    throw_bad_data(dir_ + ": the checkpoint has no " + kind + " \"" + name + "\", which this run needs");
  }
  template <typename T>
  void scalar(const char* kind, const std::map<std::string, T>& stored, const std::string& name, T& value) {
    if (!wanted(name)) return;
    const auto found = stored.find(name);
    if (found == stored.end()) missing(kind, name);
    value = found->second;
  }

  const std::string& dir_;
  const Manifest& manifest_;
  const LoadOptions& options_;
  StoredTensors stored_;
  std::vector<std::byte> scratch_;
};

// Where the run of this directory saves, as its resolved configuration says; "": in the directory, or it does not say.
std::string other_save_place(const std::string& run_dir) {
  nlohmann::json config;
  try {
    config = parse_shallow(read_file(run_dir + "/config.resolved.json", size_t{16} << 20));
  } catch (const Error& e) {
    if (e.code() != ExitCode::kBadData) throw;
    return "";
  }
  if (!config.is_object() || !config.contains("save") || !config["save"].is_string()) return "";
  std::string place = config["save"].get<std::string>();
  while (place.size() > 1 && place.back() == '/') place.pop_back();
  // By the names of then: the directory may have been moved since, or be named by another path now.
  const bool says = config.contains("run_dir") && config["run_dir"].is_string();
  for (const std::string& of : {run_dir, says ? config["run_dir"].get<std::string>() : run_dir})
    if (fs::path(place).lexically_normal() == fs::path(of + "/checkpoints").lexically_normal()) return "";
  return place;
}

}  // namespace

std::vector<FoundCheckpoint> list_checkpoints(const std::string& directory) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : list_directory(directory)) {
    const auto step = step_of(name);
    const std::string path = directory + "/" + name;
    if (!step || !is_directory(path)) continue;
    FoundCheckpoint checkpoint{path, name, *step, -1};
    try {
      checkpoint.sequence = read_sequence(checkpoint.path);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadData) throw;  // it may be the newest good one
      // stays -1: whoever verifies it learns why
    }
    found.push_back(std::move(checkpoint));
  }
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    const bool unreadable_a = a.sequence < 0, unreadable_b = b.sequence < 0;
    if (unreadable_a != unreadable_b) return unreadable_a;
    return a.sequence != b.sequence ? a.sequence > b.sequence : a.step != b.step ? a.step > b.step : a.name > b.name;
  });
  return found;
}

Manifest verify_checkpoint(const std::string& checkpoint_dir, Control& control, const GotOn& progress) {
  Manifest manifest;
  on_all_ranks(control, [&] { manifest = read_manifest(checkpoint_dir); });
  on_all_ranks(control, kMeetEvery, [&](const GotOn& got_on) {
    verify_files(checkpoint_dir, manifest, control.rank(), control.size(), [&](uint64_t bytes) {
      if (progress) progress(bytes);
      got_on(bytes);
    });
  });
  return manifest;
}

std::vector<FoundCheckpoint> resolve_checkpoint_path(const std::string& path) {
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  if (!is_directory(plain)) throw_bad_data(path + ": no such directory");
  struct stat info {};
  const std::string name = fs::path(plain).filename().string();
  if (::stat((plain + "/" + kManifestName).c_str(), &info) == 0 || step_of(name)) {
    return {{plain, name, step_of(name).value_or(0), 0}};
  }
  for (const std::string& directory : {plain, plain + "/checkpoints"}) {
    if (auto found = list_checkpoints(directory); !found.empty()) return found;
  }
  const std::string elsewhere = other_save_place(plain);
  if (!elsewhere.empty()) {
    if (auto found = list_checkpoints(elsewhere); !found.empty()) return found;
  }
  // What it is instead; a config.json alone is no sign, since folders of sweeps have one.
  const char *hf = "Hugging Face's format: `checkpoint import` makes one of it",
             *convert = "format: convert it to Hugging Face's, then `checkpoint import`";
  std::string foreign;
  for (const auto& [file, whose, what] : {std::tuple{"model.safetensors", "", hf},
                                          {"model.safetensors.index.json", "", hf},
                                          {"latest_checkpointed_iteration.txt", "Megatron-LM's ", convert},
                                          {"latest", "DeepSpeed's ", convert}})
    if (foreign.empty() && ::stat((plain + "/" + file).c_str(), &info) == 0) foreign = std::string("; ") + whose + what;
  throw_bad_data(path + ": no checkpoint here (neither manifest.json nor step_* nor checkpoints/step_*)" +
                 (elsewhere.empty() ? "" : ", nor in " + elsewhere + ", where its run saves") + foreign);
}

ModelConfig model_of(const VerifiedCheckpoint& checkpoint) {
  const nlohmann::json& info = checkpoint.manifest.info;
  if (!info.is_object() || !info.contains("model"))
    throw_bad_data(checkpoint.path + ": this checkpoint does not say which model it holds");
  return model_config_from_json(info["model"]);
}

void load_checkpoint(const VerifiedCheckpoint& found, const VisitState& state, const LoadOptions& options,
                     Control& control) {
  on_all_ranks(control, options.meet_every, [&](const GotOn& got_on) {
    FillState filler(found, options, got_on);
    state(filler);
  });
}

}  // namespace thinwire
