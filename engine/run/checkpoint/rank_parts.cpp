// Shard files, notes of completion and rank 0's poll, see rank_parts.h.
#include "engine/run/checkpoint/rank_parts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kTensorsPerFile = 500'000;
constexpr char kDone[] = ".done.json";
constexpr char kFailed[] = ".failed";
// All writers have ended, yet a note is not seen: another node's view of a shared directory may be this old.
constexpr double kViewSeconds = 30;

std::string note_path(const std::string& dir, int rank, const char* suffix) {
  return dir + "/rank" + std::to_string(rank) + suffix;
}

// The number in rank<k><suffix>.
std::optional<int> rank_of(const std::string& name, std::string_view suffix) {
  if (!name.starts_with("rank") || !name.ends_with(suffix)) return std::nullopt;
  int rank = 0;
  const char* end = name.data() + name.size() - suffix.size();
  const auto [at, error] = std::from_chars(name.data() + 4, end, rank);
  return error == std::errc() && at == end && rank > 0 ? std::optional(rank) : std::nullopt;
}

void write_note(const std::string& dir, int rank, const char* suffix, const std::string& text) {
  const std::string path = note_path(dir, rank, suffix), hidden = path + ".part";
  OutputFile file(hidden, text.size());
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  rename_file(hidden, path);
}

[[noreturn]] void throw_failure(int rank, const std::string& note) {
  int code = 0;
  const auto [at, error] = std::from_chars(note.data(), note.data() + note.size(), code);
  if (error != std::errc() || code == 0) throw_io("rank " + std::to_string(rank) + " could not write its part");
  throw Error(static_cast<ExitCode>(code),
              "rank " + std::to_string(rank) + ":" + std::string(at, note.data() + note.size()));
}

void require_file(const std::string& dir, const ManifestFile& file, int rank) {
  const std::string path = dir + "/" + file.name;
  struct stat info {};
  const bool seen = ::stat(path.c_str(), &info) == 0;
  if (seen && static_cast<uint64_t>(info.st_size) == file.bytes) return;
  throw_io(path + ": rank " + std::to_string(rank) + " wrote " + std::to_string(file.bytes) + " bytes, rank 0 sees " +
           (seen ? std::to_string(info.st_size) + " bytes" : "no such file") +
           "; checkpoints need one directory that all ranks share");
}

}  // namespace

std::string shard_stem(int rank, int ranks) {
  return ranks == 1 ? "shard_" : "rank" + std::to_string(rank) + "-";
}

void write_shards(const std::string& dir, const std::string& stem, const StagedState& state, uint64_t shard_bytes,
                  const std::function<void(std::string_view)>& point, Manifest& manifest) {
  const auto tensors = state.tensors();
  size_t next = 0;
  do {  // readers need not know the exception of a checkpoint without files
    std::vector<SafetensorsItem> items;
    const size_t first = next;
    uint64_t bytes = 0;
    while (next < tensors.size() && (next == first || bytes + tensors[next].bytes.size() <= shard_bytes) &&
           next - first < kTensorsPerFile) {
      const StagedTensor& t = tensors[next++];
      items.push_back({stored_name_of(t.name, t.place), to_st_dtype(t.dtype), t.shape, t.bytes, {}});
      bytes += t.bytes.size();
    }
    const std::string name = stem + printed("%05zu", manifest.files.size()) + ".safetensors";
    point("save.before_shard");
    const WrittenFile written =
        write_safetensors(dir + "/" + name, std::move(items), {}, [&] { point("save.mid_shard"); });
    point("save.after_shard");
    for (size_t i = first; i < next; ++i) {
      const StagedTensor& t = tensors[i];
      const std::string stored = stored_name_of(t.name, t.place);
      manifest.tensors.push_back(
          {t.name, t.place, to_st_dtype(t.dtype), manifest.files.size(), stored, written.hash_of.at(stored)});
    }
    manifest.files.push_back({name, written.bytes, written.hash});
  } while (next < tensors.size());
}

void write_done(const std::string& dir, int rank, const Manifest& part) {
  write_note(dir, rank, kDone, manifest_to_text(part));
}

void write_failed(const std::string& dir, int rank, int code, const std::string& message) noexcept {
  try {
    write_note(dir, rank, kFailed, std::to_string(code) + " " + message);
  } catch (const std::exception&) {
    // Rank 0 hears it from this rank's calling thread.
  }
}

void RankParts::all_ended(std::vector<std::string> failures) {
  const std::lock_guard guard(mutex_);
  ended_ = true;
  failures_ = std::move(failures);
  news_.notify_all();
}

void RankParts::hurry(double seconds) {
  const std::lock_guard guard(mutex_);
  hurry_seconds_ = seconds;
  news_.notify_all();
}

// One listing finds what all ranks have left since the last: cheaper than asking for each, and never out of a cache of
// names that were not there before.
bool RankParts::poll(const std::string& dir, int ranks, int64_t step, std::vector<Manifest>& parts,
                     std::vector<bool>& have) {
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto rank = rank_of(name, kFailed); rank && *rank < ranks) {
      std::string note;
      try {
        note = read_file(it->path().string(), 1 << 20);
      } catch (const Error&) {
      }
      throw_failure(*rank, note);
    }
    const auto rank = rank_of(name, kDone);
    if (!rank || *rank >= ranks || have[*rank]) continue;
    const std::string path = it->path().string();
    Manifest part = part_from_text(path, read_file(path));
    if (part.step != step || part.ranks != ranks) throw_bad_data(path + ": of another save");
    for (const ManifestFile& file : part.files) {
      if (!file.name.starts_with(shard_stem(*rank, ranks))) throw_bad_data(path + ": lists file " + file.name);
    }
    parts[*rank] = std::move(part);
    have[*rank] = true;
  }
  if (error) throw_io(dir + ": cannot list: " + error.message());
  return std::count(have.begin(), have.end(), true) == ranks;
}

void RankParts::gather(const std::string& dir, int ranks, double seconds, Manifest& manifest) {
  std::vector<Manifest> parts(ranks);
  std::vector<bool> have(ranks, false);
  have[0] = true;
  const auto after = [](double s) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
  };
  const auto start = Clock::now();
  auto deadline = after(seconds);
  bool heard_end = false, heard_hurry = false;
  for (double pause = 0.001;; pause = std::min(pause * 1.5, 0.25)) {
    if (poll(dir, ranks, manifest.step, parts, have)) break;
    std::unique_lock guard(mutex_);
    if (ended_) {
      for (int r = 1; r < ranks; ++r) {
        if (!have[r] && !failures_[r].empty()) throw_failure(r, failures_[r]);
      }
      if (!heard_end) deadline = std::min(deadline, after(kViewSeconds));
      heard_end = true;
    }
    if (hurry_seconds_ >= 0 && !heard_hurry) {
      heard_hurry = true;
      deadline = std::min(deadline, after(hurry_seconds_));
    }
    if (Clock::now() >= deadline) {
      std::vector<int> missing;
      for (int r = 1; r < ranks; ++r) {
        if (!have[r]) missing.push_back(r);
      }
      const std::string waited = printed("%.1f", std::chrono::duration<double>(Clock::now() - start).count());
      throw_io(
          dir + ": after " + waited + " s there is still no part of this checkpoint from rank(s) " + some_of(missing) +
          (heard_end ? ", which wrote it: rank 0 does not see their files; checkpoints need one directory that all "
                       "ranks share"
                     : ": stopped or gone, too slow, or their directory is not the one that rank 0 sees"));
    }
    news_.wait_for(guard, std::chrono::duration<double>(pause));
  }
  for (int r = 1; r < ranks; ++r) {
    for (const ManifestFile& file : parts[r].files) require_file(dir, file, r);
    const size_t offset = manifest.files.size();
    for (ManifestTensor& t : parts[r].tensors) {
      t.file += offset;
      manifest.tensors.push_back(std::move(t));
    }
    manifest.files.insert(manifest.files.end(), parts[r].files.begin(), parts[r].files.end());
    if (::unlink(note_path(dir, r, kDone).c_str()) != 0)
      throw_io(note_path(dir, r, kDone) + ": cannot remove: " + std::strerror(errno));
  }
}

}  // namespace thinwire
