// Saving behind the step and committing, see checkpoint_store.h.
#include "engine/run/checkpoint/checkpoint_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string generation_name(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step_%06lld", static_cast<long long>(step));
  return name;
}

// For file names: letters, digits, '-' and '_' only.
std::string tame(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  }
  return text.substr(0, 40);
}

// Newest first; fills `refused` with the reasons of those that do not verify.
std::optional<LoadReport> first_valid(const std::vector<FoundGeneration>& found, std::vector<std::string>& refused) {
  for (const FoundGeneration& generation : found) {
    try {
      return LoadReport{generation.path, verify_generation(generation.path), {}};
    } catch (const Error& e) {
      refused.push_back(e.what());
      log_warning("warning: checkpoint " + generation.path + " refused: " + e.what());
    }
  }
  return std::nullopt;
}

[[noreturn]] void throw_none_valid(const std::string& where, const std::vector<std::string>& refused) {
  std::string message = where + ": there are checkpoints, but none verifies:";
  for (const std::string& reason : refused) message += "\n  " + reason;
  throw_bad_data(message + "\n  To start over deliberately, move this directory away or choose another run directory.");
}

}  // namespace

CheckpointStore::CheckpointStore(const std::string& directory, StoreOptions options)
    : directory_(directory), options_(std::move(options)), lock_(directory, options_.lock), staged_(options_.copy) {
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
  for (const FoundGeneration& g : list_generations(directory_))
    next_sequence_ = std::max(next_sequence_, g.sequence + 1);
  std::error_code ignored;
  for (fs::directory_iterator it(directory_, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("step_") && !name.starts_with("latest.json")) continue;
    if (name.find(".tmp-") == std::string::npos) continue;
    log_info("checkpoint: removing " + it->path().string() + ", left by an interrupted save");
    std::error_code failed;
    fs::remove_all(it->path(), failed);
    if (failed) log_warning("warning: cannot remove " + it->path().string() + ": " + failed.message());
  }
}

CheckpointStore::~CheckpointStore() {
  if (writer_.joinable()) writer_.join();
  try {
    if (error_) std::rethrow_exception(error_);
  } catch (const std::exception& e) {
    log_error(std::string("checkpoint not saved: ") + e.what());
  }
}

void CheckpointStore::point(std::string_view name) const {
  if (options_.fault) options_.fault(name);
}

void CheckpointStore::save(int64_t step, const VisitState& state, const nlohmann::json& info) {
  const auto start = Clock::now();
  settle();
  stats_ = {};
  written_ = {};
  stats_.step = step;
  stats_.wait_ms = ms_since(start);
  lock_.check();
  point("save.begin");
  const auto copy_start = Clock::now();
  staged_.clear();
  try {
    state(staged_);
  } catch (const std::bad_alloc&) {
    throw_io(directory_ + ": not enough memory to copy the state of a checkpoint (" + std::to_string(staged_.bytes()) +
             " bytes so far)");
  }
  staged_.finish();
  stats_.copy_ms = ms_since(copy_start);
  stats_.bytes = staged_.bytes();
  point("save.after_copy");
  if (options_.async) {
    writer_ = std::thread([this, step, info] { write(step, info); });
  } else {
    write(step, info);
    settle();
  }
}

// Joins the writer and judges how it fared.
void CheckpointStore::settle() {
  if (writer_.joinable()) writer_.join();
  stats_.path = written_.path;
  stats_.write_ms = written_.write_ms;
  stats_.failed = written_.failed;
  if (!error_) return;
  const std::exception_ptr error = std::exchange(error_, nullptr);
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    if (e.code() != ExitCode::kIo || failures_in_a_row_ > options_.failed_saves_allowed) throw;
    log_warning("warning: checkpoint of step " + std::to_string(stats_.step) + " not saved (" +
                std::to_string(failures_in_a_row_) + " in a row, " + std::to_string(options_.failed_saves_allowed) +
                " allowed): " + e.what());
  }
}

void CheckpointStore::wait(bool must_succeed) {
  settle();
  if (must_succeed && stats_.failed) {
    throw_io(directory_ + ": the checkpoint of step " + std::to_string(stats_.step) +
             " could not be saved; see the log for the reason");
  }
}

// Runs on the writing thread: nothing may leave it but error_ and written_.
void CheckpointStore::write(int64_t step, const nlohmann::json& info) {
  const auto start = Clock::now();
  std::string temporary;
  try {
    temporary =
        directory_ + "/" + generation_name(step) + ".tmp-" + tame(lock_.job()) + "-" + lock_.token().substr(0, 8);
    written_.path = commit(step, info, temporary);
    failures_in_a_row_ = 0;
  } catch (const std::bad_alloc&) {
    written_.failed = true;
    error_ = std::make_exception_ptr(Error(ExitCode::kIo, directory_ + ": out of memory while saving a checkpoint"));
  } catch (const fs::filesystem_error& e) {
    written_.failed = true;
    error_ = std::make_exception_ptr(Error(ExitCode::kIo, e.what()));
  } catch (...) {
    written_.failed = true;
    error_ = std::current_exception();
  }
  if (written_.failed) {
    ++failures_in_a_row_;
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
  } else {
    try {
      point("save.before_prune");
      prune();
      point("save.after_prune");
    } catch (const std::exception& e) {
      // The generation is committed: what could not be tidied is tried again after the next save.
      log_warning(std::string("warning: pruning checkpoints: ") + e.what());
    }
  }
  written_.write_ms = ms_since(start);
}

std::string CheckpointStore::commit(int64_t step, const nlohmann::json& info, const std::string& temporary) {
  fs::remove_all(temporary);
  if (::mkdir(temporary.c_str(), 0755) != 0) throw_io(temporary + ": cannot create: " + std::strerror(errno));
  point("save.after_mkdir");

  Manifest manifest;
  manifest.step = step;
  manifest.sequence = next_sequence_;
  manifest.job = lock_.job();
  manifest.saved_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  manifest.info = info;
  manifest.integers = staged_.integers();
  manifest.reals = staged_.reals();
  manifest.texts = staged_.texts();
  const auto& tensors = staged_.tensors();
  size_t next = 0;
  do {  // at least one file, even without tensors: readers need not know the exception
    std::vector<SafetensorsItem> items;
    const size_t first = next;
    uint64_t bytes = 0;
    while (next < tensors.size() && (next == first || bytes + tensors[next].bytes.size() <= options_.shard_bytes) &&
           next - first < 500'000) {
      const StagedTensor& t = tensors[next++];
      items.push_back({t.stored_name(), to_st_dtype(t.dtype), t.shape, t.bytes, {}});
      bytes += t.bytes.size();
    }
    char name[40];
    std::snprintf(name, sizeof name, "shard_%05zu.safetensors", manifest.files.size());
    point("save.before_shard");
    const WrittenFile written =
        write_safetensors(temporary + "/" + name, std::move(items), {}, [this] { point("save.mid_shard"); });
    point("save.after_shard");
    std::map<std::string_view, std::string_view> hash_of;
    for (const WrittenTensor& t : written.tensors) hash_of[t.name] = t.hash;
    for (size_t i = first; i < next; ++i) {
      const StagedTensor& t = tensors[i];
      manifest.tensors.push_back({t.name, t.rows, t.cols, t.first, t.count, to_st_dtype(t.dtype), manifest.files.size(),
                                  t.stored_name(), std::string(hash_of.at(t.stored_name()))});
    }
    manifest.files.push_back({name, written.bytes, written.hash});
  } while (next < tensors.size());

  point("save.before_manifest");
  const std::string text = manifest_to_text(manifest);
  OutputFile file(temporary + "/" + kManifestName, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  point("save.after_manifest");
  sync_directory(temporary);

  std::string final_path = directory_ + "/" + generation_name(step);
  struct stat ignored {};
  for (int again = 2; ::lstat(final_path.c_str(), &ignored) == 0; ++again) {
    final_path = directory_ + "/" + generation_name(step) + "-" + std::to_string(again);
  }
  point("save.before_rename");
  lock_.check();
  if (::rename(temporary.c_str(), final_path.c_str()) != 0)
    throw_io(final_path + ": cannot rename: " + std::strerror(errno));
  sync_directory(directory_);
  ++next_sequence_;
  point("save.after_rename");
  point("save.before_latest");
  const nlohmann::ordered_json latest{{"generation", fs::path(final_path).filename().string()}, {"step", step}};
  try {
    write_file_atomic(directory_ + "/latest.json", latest.dump() + "\n");
  } catch (const Error& e) {
    // Nothing reads it to load: a committed generation does not become a failed save for it.
    log_warning(std::string("warning: ") + e.what());
  }
  point("save.after_latest");
  return final_path;
}

// Keeps the newest generations until enough of them verify when read back, removes all older ones.
void CheckpointStore::prune() {
  if (options_.keep_last <= 0) return;
  const int64_t keep = std::max<int64_t>(options_.keep_last, 2);
  int64_t good = 0;
  for (const FoundGeneration& generation : list_generations(directory_)) {
    if (good < keep) {
      if (!verified_.contains(generation.name)) {
        try {
          verify_generation(generation.path);
          verified_.insert(generation.name);
        } catch (const Error& e) {
          log_warning("warning: checkpoint " + generation.path +
                      " does not verify and does not count as kept: " + e.what());
        }
      }
      good += verified_.contains(generation.name) ? 1 : 0;
      continue;
    }
    // Renamed first: a half-removed directory must not look like a generation.
    lock_.check();
    const std::string doomed = generation.path + ".tmp-prune";
    if (::rename(generation.path.c_str(), doomed.c_str()) != 0)
      throw_io(generation.path + ": cannot rename: " + std::strerror(errno));
    verified_.erase(generation.name);
    fs::remove_all(doomed);
  }
}

std::optional<LoadReport> CheckpointStore::newest() {
  wait();
  const auto found = list_generations(directory_);
  if (found.empty()) return std::nullopt;
  std::vector<std::string> refused;
  auto report = first_valid(found, refused);
  if (!report) throw_none_valid(directory_, refused);
  return report;
}

std::optional<LoadReport> CheckpointStore::load_newest(const VisitState& state, LoadOptions options) {
  auto report = newest();
  if (!report) return std::nullopt;
  options.verify = false;  // just done
  return load_generation(report->path, state, options);
}

LoadReport find_newest_valid(const std::string& path) {
  std::vector<std::string> refused;
  auto report = first_valid(resolve_checkpoint_path(path), refused);
  if (!report) throw_none_valid(path, refused);
  return *std::move(report);
}

}  // namespace thinwire
