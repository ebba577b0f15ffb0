// Saving behind the step and committing, see checkpoint_store.h.
#include "engine/run/checkpoint/checkpoint_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <system_error>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/log.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/agreement.h"
#include "engine/run/checkpoint/output_file.h"
#include "engine/run/checkpoint/verify_files.h"
#include "parallel/sites/control.h"

namespace thinwire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kSeeSeconds = 5;                        // until other nodes must see what rank 0 wrote
constexpr double kLeaveSeconds = 30;                     // a store that is destroyed waits so long for other ranks
constexpr std::chrono::milliseconds kBeat{100};          // between two checks whether the writer makes progress
constexpr char kStillWriting[] = "rank 0 still writes";  // no outcome reads like this

std::string checkpoint_name(int64_t step) {
  return printed("step_%06lld", static_cast<long long>(step));
}

// For file names: letters, digits, '-' and '_' only.
std::string tame(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  }
  return text.substr(0, 40);
}

[[noreturn]] void throw_none_valid(const std::string& where, const std::vector<std::string>& refused) {
  std::string message = where + ": there are checkpoints, but none verifies:";
  for (const std::string& reason : refused) message += "\n  " + reason;
  throw_bad_data(message + "\n  To start over deliberately, move this directory away or choose another run directory.");
}

// The newest that verifies, of those that `list` finds on rank 0, newest first; `what` is where they were looked for.
// nullopt: there are none at all.
std::optional<VerifiedCheckpoint> first_valid(Control& control, const std::string& what,
                                              const std::function<std::vector<FoundCheckpoint>()>& list) {
  std::string paths;  // each ends in a zero byte
  on_rank_0(control, [&] {
    for (const FoundCheckpoint& checkpoint : list()) paths.append(checkpoint.path).push_back('\0');
  });
  paths = control.share(paths);
  std::vector<std::string> refused;
  for (size_t at = 0, end = 0; at < paths.size(); at = end + 1) {
    end = paths.find('\0', at);
    const std::string path = paths.substr(at, end - at);
    try {
      return VerifiedCheckpoint{path, verify_checkpoint(path, control)};
    } catch (const Error& e) {
      if (e.code() != ExitCode::kBadData) throw;  // not the checkpoint's fault
      refused.push_back(e.what());
      if (control.rank() == 0) log_warning("warning: checkpoint " + path + " refused: " + e.what());
    }
  }
  if (!refused.empty()) on_all_ranks(control, [&] { throw_none_valid(what, refused); });
  return std::nullopt;
}

}  // namespace

CheckpointStore::CheckpointStore(const std::string& directory, StoreOptions options, Control& control)
    : directory_(directory),
      options_(std::move(options)),
      control_(control),
      rank_(control.rank()),
      ranks_(control.size()),
      staged_(options_.copy) {
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
  on_rank_0(control_, [&] {
    lock_.emplace(directory_, options_.lock);
    for (const FoundCheckpoint& g : list_checkpoints(directory_))
      next_sequence_ = std::max(next_sequence_, g.sequence + 1);
    remove_leftovers();
  });
  if (ranks_ > 1) require_shared_directory();
}

void CheckpointStore::remove_leftovers() {
  std::error_code ignored;
  for (fs::directory_iterator it(directory_, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("step_") && !name.starts_with("latest.json") && !name.starts_with("lease.json")) continue;
    if (name.find(".tmp-") == std::string::npos) continue;
    log_info("checkpoint: removing " + it->path().string() + ", left by a process that was killed");
    std::error_code failed;
    fs::remove_all(it->path(), failed);
    if (failed) log_warning("warning: cannot remove " + it->path().string() + ": " + failed.message());
  }
}

// The lease that rank 0 has just written must be there for everybody: else ranks would fill directories of their own.
void CheckpointStore::require_shared_directory() {
  const std::string token = control_.share(lock_ ? lock_->token() : "");
  on_all_ranks(control_, [&] {
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                             std::min(options_.peer_seconds, kSeeSeconds)));
    for (int pause_ms = 1; !lease_has_token(directory_, token); pause_ms = std::min(2 * pause_ms, 250)) {
      if (Clock::now() > deadline) {
        throw_io(
            directory_ + ": rank " + std::to_string(rank_) +
            " does not see there what rank 0 wrote; all ranks write their part of a checkpoint into one directory, "
            "so it must be on a file system that all nodes share");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
  });
}

CheckpointStore::~CheckpointStore() {
  if (writer_.joinable()) {
    // After an error elsewhere other ranks may be gone: their parts are waited for only briefly.
    if (parts_) parts_->hurry(std::min(options_.peer_seconds, kLeaveSeconds));
    writer_.join();
  }
  if (pending_ != Pending::kNone && outcome_.code != 0) log_error("checkpoint not saved: " + outcome_.message);
}

void CheckpointStore::point(std::string_view name) {
  ++signs_;
  if (options_.fault) options_.fault(name);
}

void CheckpointStore::save(int64_t step, const VisitState& state, const nlohmann::json& info) {
  settle();
  stats_ = {};
  stats_.step = step;
  on_all_ranks(control_, [&] {
    if (lock_) lock_->check();
    point("save.begin");
    staged_.clear();
    try {
      state(staged_);
    } catch (const std::bad_alloc&) {
      throw_io(directory_ + ": not enough memory to copy the state of a checkpoint (" +
               std::to_string(staged_.bytes()) + " bytes so far)");
    }
    point("save.after_copy");
  });
  if (rank_ == 0) outcome_ = attempt([&] { return make_temporary(step); });
  outcome_ = Outcome::from_text(control_.share(outcome_.to_text()));
  if (outcome_.code != 0) {
    pending_ = Pending::kFailed;
  } else {
    temporary_ = directory_ + "/" + outcome_.path;
    pending_ = Pending::kWriting;
    written_ = false;
    parts_.reset();
    if (rank_ == 0 && ranks_ > 1) parts_.emplace();
    if (options_.async || ranks_ > 1) {
      try {
        writer_ = std::thread([this, step, info] { write(step, info); });
      } catch (const std::system_error&) {  // no more threads: the step waits
        write(step, info);
      }
    } else {
      write(step, info);
    }
  }
  if (!options_.async) settle();
}

// Runs `action`; what it throws becomes an outcome.
CheckpointStore::Outcome CheckpointStore::attempt(const std::function<std::string()>& action) const {
  std::string path;
  Failure failure = failure_of([&] { path = action(); }, directory_ + ": out of memory while saving a checkpoint");
  return {std::move(failure), std::move(path)};
}

std::string CheckpointStore::Outcome::to_text() const {
  return std::to_string(code) + "\n" + path + "\n" + message;
}

CheckpointStore::Outcome CheckpointStore::Outcome::from_text(const std::string& text) {
  const size_t a = text.find('\n'), b = text.find('\n', a + 1);
  TW_CHECK(b != std::string::npos, text);
  return {{std::stoi(text), text.substr(b + 1)}, text.substr(a + 1, b - a - 1)};
}

// Rank 0 makes it while all ranks wait for its name, so that every writer finds it.
std::string CheckpointStore::make_temporary(int64_t step) {
  const std::string name = checkpoint_name(step) + ".tmp-" + tame(lock_->job()) + "-" + lock_->token().substr(0, 8);
  temporary_ = directory_ + "/" + name;
  fs::remove_all(temporary_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) throw_io(temporary_ + ": cannot create: " + std::strerror(errno));
  try {
    point("save.after_mkdir");
  } catch (...) {
    fs::remove_all(temporary_);
    throw;
  }
  return name;
}

// True: the writing thread has ended. False: it has made progress since `seen`. A writer that hangs blocks this call.
bool CheckpointStore::written_or_got_on(uint64_t& seen) {
  std::unique_lock guard(mutex_);
  while (!written_news_.wait_for(guard, kBeat, [this] { return written_; })) {
    if (signs_ != seen) return seen = signs_, false;
  }
  return true;
}

// Waits for the writers of all ranks; returns the outcome of the save, the same on all ranks. Writing, and rank 0's
// verification of older checkpoints, may take longer than the watchdog's timeout: so the waiting ranks exchange a
// message whenever a writer has made progress, and only then.
CheckpointStore::Outcome CheckpointStore::join() {
  const auto join_writer = [this] {
    if (writer_.joinable()) writer_.join();
  };
  if (ranks_ == 1) {
    join_writer();
    return outcome_;
  }
  uint64_t seen = signs_;
  for (bool parts_written = false; !parts_written;)
    parts_written = control_.agree_max(rank_ == 0 || written_or_got_on(seen) ? 0 : 1) == 0;
  if (rank_ != 0) {
    join_writer();
    control_.collect(outcome_.code == 0 ? "" : std::to_string(outcome_.code) + " " + outcome_.message);
  } else {
    // The other writers do not depend on rank 0's. Once they have ended, rank 0 need not wait for files that never
    // come.
    parts_->all_ended(control_.collect(""));
    while (!written_or_got_on(seen)) control_.share(kStillWriting);
    join_writer();
    std::error_code ignored;
    if (outcome_.code != 0) fs::remove_all(temporary_, ignored);  // again: others may still have been writing
  }
  std::string text;
  do {
    text = control_.share(outcome_.to_text());
  } while (text == kStillWriting);
  return Outcome::from_text(text);
}

// Finishes the pending save, if any, and throws or logs when it failed.
void CheckpointStore::settle() {
  if (pending_ == Pending::kNone) return;
  if (pending_ == Pending::kWriting) outcome_ = join();
  pending_ = Pending::kNone;
  stats_.failed = outcome_.code != 0;
  if (!stats_.failed) {
    stats_.path = outcome_.path;
    failures_in_a_row_ = 0;
    return;
  }
  ++failures_in_a_row_;
  if (outcome_.code != static_cast<int>(ExitCode::kIo) || failures_in_a_row_ > options_.failed_saves_allowed)
    throw AgreedError(static_cast<ExitCode>(outcome_.code), outcome_.message);
  if (rank_ != 0) return;
  log_warning("warning: checkpoint of step " + std::to_string(stats_.step) + " not saved (" +
              std::to_string(failures_in_a_row_) + " in a row, " + std::to_string(options_.failed_saves_allowed) +
              " allowed): " + outcome_.message);
}

void CheckpointStore::wait(bool must_succeed) {
  settle();
  if (must_succeed && stats_.failed) {
    throw AgreedError(ExitCode::kIo, directory_ + ": the checkpoint of step " + std::to_string(stats_.step) +
                                         " could not be saved; see the log for the reason");
  }
}

// Runs on the writing thread: it does not communicate, and its only result is outcome_.
void CheckpointStore::write(int64_t step, const nlohmann::json& info) {
  outcome_ = attempt([&] { return rank_ == 0 ? commit(step, info) : write_part(step); });
  if (outcome_.code != 0 && rank_ != 0) {
    write_failed(temporary_, rank_, outcome_.code, outcome_.message);
  } else if (outcome_.code != 0) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  // Also where the disk was full: keep_last, given to a run that has filled it, makes room for the next save.
  if (rank_ == 0 && (outcome_.code == 0 || outcome_.code == static_cast<int>(ExitCode::kIo))) {
    try {
      point("save.before_prune");
      prune();
      point("save.after_prune");
    } catch (const std::exception& e) {
      // It changes no outcome: what could not be tidied is tried again after the next save.
      log_warning(std::string("warning: pruning checkpoints: ") + e.what());
    }
  }
  {
    const std::lock_guard guard(mutex_);
    written_ = true;
  }
  written_news_.notify_all();
}

std::string CheckpointStore::write_part(int64_t step) {
  const auto reach = [this](std::string_view name) { point(name); };
  point("save.after_mkdir");
  Manifest part;
  part.step = step;
  part.ranks = ranks_;
  write_shards(temporary_, shard_stem(rank_, ranks_), staged_, options_.shard_bytes, reach, part);
  read_back(part);
  point("save.before_manifest");
  write_done(temporary_, rank_, part);
  point("save.after_manifest");
  return {};
}

// Where older checkpoints go for this one, what was written is read once before it counts: by the rank that wrote it.
void CheckpointStore::read_back(const Manifest& part) {
  if (options_.keep_last <= 0) return;
  try {
    verify_files(temporary_, part, 0, 1, [this](uint64_t) { ++signs_; });
  } catch (const Error& e) {
    if (e.code() != ExitCode::kBadData) throw;
    throw_io(std::string("what was written does not read back: ") + e.what());
  }
}

std::string CheckpointStore::commit(int64_t step, const nlohmann::json& info) {
  const auto reach = [this](std::string_view name) { point(name); };
  Manifest manifest;
  manifest.step = step;
  manifest.sequence = next_sequence_;
  manifest.job = lock_->job();
  manifest.saved_at = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  manifest.ranks = ranks_;
  manifest.info = info;
  manifest.integers = staged_.integers();
  manifest.reals = staged_.reals();
  manifest.texts = staged_.texts();
  write_shards(temporary_, shard_stem(0, ranks_), staged_, options_.shard_bytes, reach, manifest);
  read_back(manifest);
  if (parts_) parts_->gather(temporary_, ranks_, options_.peer_seconds, manifest);
  const std::string fault = find_slice_fault(manifest);
  TW_CHECK(fault.empty(), directory_, ": the ranks' slices do not make whole tensors: ", fault);

  point("save.before_manifest");
  const std::string text = manifest_to_text(manifest);
  OutputFile file(temporary_ + "/" + kManifestName, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  point("save.after_manifest");
  sync_directory(temporary_);

  std::string final_path = directory_ + "/" + checkpoint_name(step);
  struct stat ignored {};
  for (int again = 2; ::lstat(final_path.c_str(), &ignored) == 0; ++again) {
    final_path = directory_ + "/" + checkpoint_name(step) + "-" + std::to_string(again);
  }
  point("save.before_rename");
  lock_->check();
  rename_file(temporary_, final_path);
  ++next_sequence_;  // first: the number is used, whatever fails from here on
  sync_directory(directory_);
  if (options_.keep_last > 0) verified_.insert(fs::path(final_path).filename().string());
  point("save.after_rename");
  point("save.before_latest");
  const nlohmann::ordered_json latest{{"generation", fs::path(final_path).filename().string()}, {"step", step}};
  try {
    write_file_atomic(directory_ + "/latest.json", latest.dump() + "\n");
  } catch (const Error& e) {
    // Nothing reads it to load: a committed checkpoint does not become a failed save for it.
    log_warning(std::string("warning: ") + e.what());
  }
  point("save.after_latest");
  return final_path;
}

// Keeps the newest checkpoints until enough of them verify, removes all older ones. Those of this store and the one
// that was loaded have been read, by all ranks together; older ones, of an earlier job, are read here.
void CheckpointStore::prune() {
  if (options_.keep_last <= 0) return;
  const int64_t keep = std::max<int64_t>(options_.keep_last, 2);
  int64_t good = 0;
  for (const FoundCheckpoint& checkpoint : list_checkpoints(directory_)) {
    if (good < keep) {
      if (!verified_.contains(checkpoint.name)) {
        try {
          verify_checkpoint(checkpoint.path, one_rank(), [this](uint64_t) { ++signs_; });
          verified_.insert(checkpoint.name);
        } catch (const Error& e) {
          if (e.code() != ExitCode::kBadData) throw;  // not the checkpoint's fault
          log_warning("warning: checkpoint " + checkpoint.path +
                      " does not verify and does not count as kept: " + e.what());
        }
      }
      good += verified_.contains(checkpoint.name) ? 1 : 0;
      continue;
    }
    // Renamed first: a half-removed directory must not look like a checkpoint.
    lock_->check();
    const std::string doomed = checkpoint.path + ".tmp-prune";
    rename_file(checkpoint.path, doomed);
    verified_.erase(checkpoint.name);
    fs::remove_all(doomed);
  }
}

std::optional<VerifiedCheckpoint> CheckpointStore::newest() {
  wait();
  auto report = first_valid(control_, directory_, [this] { return list_checkpoints(directory_); });
  if (report) verified_.insert(fs::path(report->path).filename().string());
  return report;
}

VerifiedCheckpoint find_newest_valid(const std::string& path, Control& control) {
  return first_valid(control, path, [&] { return resolve_checkpoint_path(path); }).value();
}

}  // namespace thinwire
