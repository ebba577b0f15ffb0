// Opens, hashes and holds against the manifest, see verify_files.h.
#include "engine/run/checkpoint/verify_files.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "engine/base/core/error.h"
#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

VerifyFiles::VerifyFiles(std::string checkpoint_dir, const Manifest& manifest, int rank, int ranks)
    : dir_(std::move(checkpoint_dir)),
      manifest_(manifest),
      next_(static_cast<size_t>(rank)),
      stride_(static_cast<size_t>(ranks)),
      tensors_(manifest.files.size()) {
  // Once: a thousand ranks write as many files, and hundreds of thousands of tensors' slices.
  for (const ManifestTensor& t : manifest.tensors) tensors_[t.file].push_back(&t);
}

void VerifyFiles::advance(uint64_t bytes) {
  while (!done()) {
    if (!file_) open();
    const uint64_t left = manifest_.files[next_].bytes - read_;
    if (left == 0) {
      finish();
      continue;
    }
    if (bytes == 0) return;
    const std::span<std::byte> piece(buffer_.data(), std::min<uint64_t>({left, bytes, buffer_.size()}));
    if (read_at(file_, path_, read_, piece) < piece.size())
      throw_bad_data(path_ + ": it became shorter while it was read");
    hash_->add(piece);
    read_ += piece.size(), bytes -= piece.size();
  }
}

void VerifyFiles::open() {
  const ManifestFile& expected = manifest_.files[next_];
  path_ = dir_ + "/" + expected.name;
  file_ = open_regular(path_);
  if (const uint64_t size = file_.size(); size != expected.bytes) {
    throw_bad_data(path_ + ": " + std::to_string(size) + " bytes, the manifest says " + std::to_string(expected.bytes));
  }
  read_ = 0;
  hash_.emplace();
  buffer_.resize(kBufferBytes);
}

void VerifyFiles::finish() {
  file_.close();
  const std::string found = hash_->digest(), &expected = manifest_.files[next_].hash;
  if (found != expected) throw_bad_data(path_ + ": content hash " + found + ", the manifest says " + expected);
  const SafetensorsFile file(path_);
  std::set<std::string_view> named;
  for (const ManifestTensor* t : tensors_[next_]) {
    const SafetensorsEntry& entry = file.at(t->stored_name);
    if (entry.dtype != t->dtype || entry.count() != t->place.count)
      throw_bad_data(path_ + ": tensor \"" + t->stored_name + "\" has another type or size than the manifest says");
    if (!named.insert(t->stored_name).second)
      throw_bad_data(path_ + ": the manifest lists tensor \"" + t->stored_name + "\" twice");
  }
  if (named.size() != file.entries().size()) throw_bad_data(path_ + ": holds tensors that the manifest does not list");
  next_ += stride_;
}

}  // namespace thinwire
