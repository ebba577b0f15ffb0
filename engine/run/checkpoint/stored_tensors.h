// The tensors of a checkpoint as one finds them on disk: any slice is put together from the stored slices that meet it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/run/checkpoint/manifest.h"
#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {

// Files are opened when something in them is asked for. Not thread-safe. `manifest` must outlive it.
class StoredTensors {
 public:
  // got_on: told of the bytes that were read, every few MiB.
  StoredTensors(std::string dir, const Manifest& manifest, std::function<void(uint64_t bytes)> got_on = {});

  // Any slice of the tensor (all have its shape and type), nullptr if there is none.
  const ManifestTensor* find(const std::string& name) const;

  // Fills `out` with the asked elements of the tensor, which must be there and of that shape; out.size() is place.count
  // elements. Stored slices that are read as a whole are held against their hash. Throws Error(kBadData).
  void read(const std::string& name, const SlicePlace& place, std::span<std::byte> out);
  // The whole tensor, which must be stored as F32. Throws Error(kBadData), also where there is none.
  std::vector<float> read_f32(const std::string& name);

 private:
  // The slices of one tensor by their first row; `reach` is the largest end row of this slice and all before it, so
  // that those which meet some rows lie between two binary searches (and mostly touch them).
  struct Stored {
    const ManifestTensor* tensor;
    int64_t begin_row, end_row, reach;
  };
  const SafetensorsFile& file(size_t index);
  void read_shared(const ManifestTensor& stored, const SlicePlace& place, int64_t shared, std::span<std::byte> out);

  std::string dir_;
  const Manifest& manifest_;
  std::function<void(uint64_t)> got_on_;
  // A checkpoint of a thousand ranks has more files than a process may hold open.
  static constexpr size_t kMostOpen = 256;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  size_t open_ = 0;
  std::unordered_map<std::string_view, std::vector<Stored>> slices_;
  std::vector<std::byte> window_;
};

}  // namespace thinwire
