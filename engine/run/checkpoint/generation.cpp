// Listing, verifying and loading generations, see generation.h.
#include "engine/run/checkpoint/generation.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

namespace fs = std::filesystem;

// step_000123 or step_000123-2; anything else (temporary directories above all) is not a generation.
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

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void verify_file(const std::string& path, const ManifestFile& expected) {
  struct Descriptor {
    int fd;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  } file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw_bad_data(path + ": cannot open: " + std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode)) throw_bad_data(path + ": not a regular file");
  if (static_cast<uint64_t>(info.st_size) != expected.bytes) {
    throw_bad_data(path + ": " + std::to_string(info.st_size) + " bytes, the manifest says " +
                   std::to_string(expected.bytes));
  }
  RunningHash hash;
  std::vector<std::byte> buffer(std::min<uint64_t>(expected.bytes, uint64_t{1} << 20));
  uint64_t done = 0;
  while (done < expected.bytes) {
    const ssize_t n = ::read(file.fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_bad_data(path + ": cannot read: " + std::strerror(errno));
    if (n == 0) break;
    hash.add({buffer.data(), static_cast<size_t>(n)});
    done += static_cast<uint64_t>(n);
  }
  if (hash.digest() != expected.hash) {
    throw_bad_data(path + ": content hash " + hash.digest() + ", the manifest says " + expected.hash);
  }
}

// The files of a generation opened once, and the stored slices of each tensor in order.
class StoredTensors {
 public:
  StoredTensors(const std::string& dir, const Manifest& manifest) {
    for (const ManifestFile& file : manifest.files) files_.emplace_back(dir + "/" + file.name);
    for (const ManifestTensor& t : manifest.tensors) slices_[t.name].push_back(&t);
    for (auto& [name, list] : slices_) {
      std::sort(list.begin(), list.end(),
                [](const ManifestTensor* a, const ManifestTensor* b) { return a->first < b->first; });
    }
  }

  const std::vector<const ManifestTensor*>* find(const std::string& name) const {
    const auto found = slices_.find(name);
    return found == slices_.end() ? nullptr : &found->second;
  }

  // Elements [first, first + count) of a stored slice's tensor; whole slices are held against their hash once more.
  void read(const ManifestTensor& t, int64_t first, std::span<std::byte> out) const {
    const SafetensorsFile& file = files_[t.file];
    const SafetensorsEntry& entry = file.at(t.stored_name);
    const size_t size = bits_of(t.dtype) / 8;
    if (entry.bytes != static_cast<uint64_t>(t.count) * size) {
      throw_bad_data(file.path() + ": tensor \"" + t.stored_name + "\" has another size than the manifest says");
    }
    file.read_bytes(entry, static_cast<uint64_t>(first - t.first) * size, out);
    if (out.size() == entry.bytes && hash_bytes(out) != t.hash) {
      throw_bad_data(file.path() + ": tensor \"" + t.stored_name + "\" does not match its hash");
    }
  }

  const std::map<std::string, std::vector<const ManifestTensor*>>& all() const { return slices_; }
  const std::string& file_of(const ManifestTensor& t) const { return files_[t.file].path(); }

  // Fills `out` with elements [first, first + count) from all slices; throws naming the first element nobody stored.
  void assemble(const std::string& name, const std::vector<const ManifestTensor*>& list, int64_t first, int64_t count,
                size_t size, std::byte* out) const {
    int64_t next = first;
    const int64_t end = first + count;
    for (const ManifestTensor* t : list) {
      const int64_t begin = std::max(next, t->first), stop = std::min(end, t->first + t->count);
      if (t->first > next) break;  // a hole: reported below
      if (begin >= stop) continue;
      read(*t, begin, {out + static_cast<size_t>(begin - first) * size, static_cast<size_t>(stop - begin) * size});
      next = stop;
    }
    if (next < end) {
      throw_bad_data("checkpoint tensor \"" + name + "\": elements from " + std::to_string(next) +
                     " on are stored nowhere (asked for " + std::to_string(first) + " to " + std::to_string(end) + ")");
    }
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<const ManifestTensor*>> slices_;
};

class FillState : public StateVisitor {
 public:
  FillState(const std::string& dir, const Manifest& manifest, const LoadOptions& options)
      : dir_(dir), manifest_(manifest), options_(options), stored_(dir, manifest) {}

  void tensor(const GlobalSlice& slice) override {
    if (!wanted(slice.name)) return;
    const auto* list = stored_.find(slice.name);
    if (list == nullptr) missing("tensor", slice.name);
    asked_.insert(slice.name);
    const ManifestTensor& any = *list->front();
    const auto shape = [](int64_t rows, int64_t cols) { return std::to_string(rows) + " x " + std::to_string(cols); };
    for (const ManifestTensor* t : *list) {
      if (t->rows != slice.rows || t->cols != slice.cols) {
        throw_bad_data(dir_ + ": tensor \"" + slice.name + "\" is " + shape(t->rows, t->cols) +
                       " in the checkpoint and " + shape(slice.rows, slice.cols) +
                       " in this model; the model keys must be those of the checkpoint");
      }
      if (t->dtype != to_st_dtype(slice.local.dtype)) {
        throw_bad_data(dir_ + ": tensor \"" + slice.name + "\" is " + std::string(name_of(any.dtype)) +
                       " in the checkpoint and " + std::string(name_of(to_st_dtype(slice.local.dtype))) + " here");
      }
    }
    auto* out = static_cast<std::byte*>(slice.local.data);
    const size_t size = size_of(slice.local.dtype);
    if (!options_.copy) {
      stored_.assemble(slice.name, *list, slice.first, slice.local.count(), size, out);
    } else {
      scratch_.resize(slice.local.bytes());
      stored_.assemble(slice.name, *list, slice.first, slice.local.count(), size, scratch_.data());
      options_.copy(out, scratch_.data(), scratch_.size());
    }
  }
  void integer(const std::string& name, int64_t& value) override { scalar("integer", manifest_.integers, name, value); }
  void real(const std::string& name, double& value) override { scalar("real", manifest_.reals, name, value); }
  void text(const std::string& name, std::string& value) override { scalar("text", manifest_.texts, name, value); }

  std::vector<std::string> unused() const {
    std::vector<std::string> list;
    const auto look = [&](const auto& stored) {
      for (const auto& [name, value] : stored) {
        if (wanted(name) && !asked_.contains(name)) list.push_back(name);
      }
    };
    look(stored_.all());
    look(manifest_.integers);
    look(manifest_.reals);
    look(manifest_.texts);
    return list;
  }

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
    asked_.insert(name);
    value = found->second;
  }

  const std::string& dir_;
  const Manifest& manifest_;
  const LoadOptions& options_;
  StoredTensors stored_;
  std::set<std::string> asked_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::vector<FoundGeneration> list_generations(const std::string& directory) {
  std::vector<FoundGeneration> found;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto step = step_of(name);
    if (!step || !is_directory(it->path().string())) continue;
    FoundGeneration generation{it->path().string(), name, *step, -1};
    try {
      generation.sequence = read_manifest(generation.path).sequence;
    } catch (const Error&) {
      // stays -1: whoever verifies it learns why
    }
    found.push_back(std::move(generation));
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw_bad_data(directory + ": cannot list: " + error.message());
  std::sort(found.begin(), found.end(), [](const FoundGeneration& a, const FoundGeneration& b) {
    const bool unreadable_a = a.sequence < 0, unreadable_b = b.sequence < 0;
    if (unreadable_a != unreadable_b) return unreadable_a;
    return a.sequence != b.sequence ? a.sequence > b.sequence : a.step != b.step ? a.step > b.step : a.name > b.name;
  });
  return found;
}

Manifest verify_generation(const std::string& generation_dir) {
  Manifest manifest = read_manifest(generation_dir);
  for (const ManifestFile& file : manifest.files) verify_file(generation_dir + "/" + file.name, file);
  std::vector<SafetensorsFile> files;
  size_t stored = 0;
  for (const ManifestFile& file : manifest.files) {
    files.emplace_back(generation_dir + "/" + file.name);
    stored += files.back().entries().size();
  }
  std::set<std::pair<size_t, std::string>> named;
  for (const ManifestTensor& t : manifest.tensors) {
    const SafetensorsEntry& entry = files[t.file].at(t.stored_name);
    if (entry.dtype != t.dtype || entry.count() != t.count) {
      throw_bad_data(files[t.file].path() + ": tensor \"" + t.stored_name +
                     "\" has another type or size than the manifest says");
    }
    named.emplace(t.file, t.stored_name);
  }
  if (named.size() != stored)
    throw_bad_data(generation_dir + ": its files hold tensors that the manifest does not list");
  return manifest;
}

std::vector<FoundGeneration> resolve_checkpoint_path(const std::string& path) {
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  if (!is_directory(plain)) throw_bad_data(path + ": no such directory");
  struct stat info {};
  const std::string name = fs::path(plain).filename().string();
  if (::stat((plain + "/" + kManifestName).c_str(), &info) == 0 || step_of(name)) {
    return {{plain, name, step_of(name).value_or(0), 0}};
  }
  for (const std::string& directory : {plain, plain + "/checkpoints"}) {
    if (auto found = list_generations(directory); !found.empty()) return found;
  }
  throw_bad_data(path + ": no checkpoint here (neither manifest.json nor step_* nor checkpoints/step_*)");
}

LoadReport load_generation(const std::string& generation_dir, const VisitState& state, const LoadOptions& options) {
  LoadReport report{
      generation_dir, options.verify ? verify_generation(generation_dir) : read_manifest(generation_dir), {}};
  FillState filler(report.path, report.manifest, options);
  state(filler);
  report.unused = filler.unused();
  return report;
}

TensorReader open_tensors(const std::string& generation_dir, const Manifest& manifest) {
  const auto kept = std::make_shared<const Manifest>(manifest);
  const auto stored = std::make_shared<const StoredTensors>(generation_dir, *kept);
  return [generation_dir, kept, stored](const std::string& name) {
    const auto* list = stored->find(name);
    if (list == nullptr) throw_bad_data(generation_dir + ": the checkpoint has no tensor \"" + name + "\"");
    const ManifestTensor& t = *list->front();
    if (t.dtype != StDtype::kF32) {
      throw_bad_data(generation_dir + ": tensor \"" + name + "\" is " + std::string(name_of(t.dtype)) +
                     ", F32 is expected");
    }
    std::vector<float> values(static_cast<size_t>(t.rows * t.cols));
    stored->assemble(name, *list, 0, t.rows * t.cols, sizeof(float), reinterpret_cast<std::byte*>(values.data()));
    return values;
  };
}

}  // namespace thinwire
