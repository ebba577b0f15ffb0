// Opens, hashes and holds against the manifest, see verify_files.h.
#include "engine/run/checkpoint/verify_files.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/run/checkpoint/output_file.h"
#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {
namespace {

void verify_bytes(const std::string& path, const ManifestFile& expected, const GotOn& got_on) {
  const Descriptor file = open_regular(path);
  if (const uint64_t size = file.size(); size != expected.bytes)
    throw_bad_data(path + ": " + std::to_string(size) + " bytes, the manifest says " + std::to_string(expected.bytes));
  RunningHash hash;
  std::vector<std::byte> buffer(std::min<uint64_t>(expected.bytes, 1 << 20));
  for (uint64_t at = 0; at < expected.bytes; at += buffer.size()) {
    const std::span<std::byte> piece(buffer.data(), std::min<uint64_t>(expected.bytes - at, buffer.size()));
    if (read_at(file, path, at, piece) < piece.size()) throw_bad_data(path + ": it became shorter while it was read");
    hash.add(piece);
    got_on(piece.size());
  }
  if (const std::string found = hash.digest(); found != expected.hash)
    throw_bad_data(path + ": content hash " + found + ", the manifest says " + expected.hash);
}

void verify_tensors(const std::string& path, const std::vector<const ManifestTensor*>& tensors) {
  const SafetensorsFile file(path);
  std::set<std::string_view> named;
  for (const ManifestTensor* t : tensors) {
    const SafetensorsEntry& entry = file.at(t->stored_name);
    if (entry.dtype != t->dtype || entry.count() != t->place.count)
      throw_bad_data(path + ": tensor \"" + t->stored_name + "\" has another type or size than the manifest says");
    if (!named.insert(t->stored_name).second)
      throw_bad_data(path + ": the manifest lists tensor \"" + t->stored_name + "\" twice");
  }
  if (named.size() != file.entries().size()) throw_bad_data(path + ": holds tensors that the manifest does not list");
}

}  // namespace

void verify_files(const std::string& checkpoint_dir, const Manifest& manifest, int rank, int ranks,
                  const GotOn& got_on) {
  // Once: a thousand ranks write as many files, and hundreds of thousands of tensors' slices.
  std::vector<std::vector<const ManifestTensor*>> tensors(manifest.files.size());  // by file
  for (const ManifestTensor& t : manifest.tensors) tensors[t.file].push_back(&t);
  for (size_t i = static_cast<size_t>(rank); i < manifest.files.size(); i += static_cast<size_t>(ranks)) {
    const std::string path = checkpoint_dir + "/" + manifest.files[i].name;
    verify_bytes(path, manifest.files[i], got_on);
    verify_tensors(path, tensors[i]);
  }
}

}  // namespace thinwire
