// Finding and reading what stored slices and an asked slice share, see stored_tensors.h.
#include "engine/run/checkpoint/stored_tensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

constexpr size_t kWindow = size_t{4} << 20;   // bytes read at once, at most
constexpr size_t kDirect = size_t{64} << 10;  // runs of this size go straight to their place
constexpr size_t kSparse = 16;                // a window is read when at least 1 byte in 16 of it is needed

}  // namespace

StoredTensors::StoredTensors(std::string dir, const Manifest& manifest, std::function<void(uint64_t)> got_on)
    : dir_(std::move(dir)), manifest_(manifest), got_on_(std::move(got_on)), files_(manifest.files.size()) {
  for (const ManifestTensor& t : manifest.tensors)
    slices_[t.name].push_back({&t, t.place.begin_row(), t.place.end_row(), 0});
  for (auto& [name, list] : slices_) {
    std::sort(list.begin(), list.end(), [](const Stored& a, const Stored& b) { return a.begin_row < b.begin_row; });
    int64_t reach = 0;
    for (Stored& s : list) s.reach = reach = std::max(reach, s.end_row);
  }
}

const ManifestTensor* StoredTensors::find(const std::string& name) const {
  const auto found = slices_.find(name);
  return found == slices_.end() ? nullptr : found->second.front().tensor;
}

const SafetensorsFile& StoredTensors::file(size_t index) {
  auto& file = files_[index];
  if (file) return *file;
  if (open_ == kMostOpen) {
    for (auto& other : files_) other.reset();
    open_ = 0;
  }
  file = std::make_unique<SafetensorsFile>(dir_ + "/" + manifest_.files[index].name);
  ++open_;
  return *file;
}

void StoredTensors::read(const std::string& name, const SlicePlace& place, std::span<std::byte> out) {
  const auto found = slices_.find(name);
  TW_CHECK(found != slices_.end(), name);
  const std::vector<Stored>& list = found->second;
  const SlicePlace& shape = list.front().tensor->place;
  TW_CHECK(place.is_possible() && place.rows == shape.rows && place.cols == shape.cols, name);
  auto at =
      std::partition_point(list.begin(), list.end(), [&](const Stored& s) { return s.reach <= place.begin_row(); });
  int64_t filled = 0;
  for (; at != list.end() && at->begin_row < place.end_row(); ++at) {
    const int64_t shared = shared_count(at->tensor->place, place);
    if (shared == 0) continue;
    read_shared(*at->tensor, place, shared, out);
    filled += shared;
  }
  // Manifests are held to cover their tensors exactly, so this cannot be a hole.
  TW_CHECK(filled == place.count, name, ": ", filled, " of ", place.count, " elements found");
}

std::vector<float> StoredTensors::read_f32(const std::string& name) {
  const ManifestTensor* tensor = find(name);
  if (tensor == nullptr) throw_bad_data(dir_ + ": the checkpoint has no tensor \"" + name + "\"");
  if (tensor->dtype != StDtype::kF32)
    throw_bad_data(dir_ + ": tensor \"" + name + "\" is " + std::string(name_of(tensor->dtype)) + ", F32 is expected");
  const SlicePlace whole = SlicePlace::whole(tensor->place.rows, tensor->place.cols);
  std::vector<float> values(static_cast<size_t>(whole.count));
  read(name, whole, std::as_writable_bytes(std::span(values)));
  return values;
}

void StoredTensors::read_shared(const ManifestTensor& stored, const SlicePlace& place, int64_t shared,
                                std::span<std::byte> out) {
  const SafetensorsFile& in = file(stored.file);
  const SafetensorsEntry& entry = in.at(stored.stored_name);
  const size_t size = bits_of(stored.dtype) / 8;
  if (entry.dtype != stored.dtype || entry.bytes != static_cast<uint64_t>(stored.place.count) * size) {
    throw_bad_data(in.path() + ": tensor \"" + stored.stored_name + "\" has another size than the manifest says");
  }
  // A slice that is needed as a whole is read from its first byte to its last: then its hash can be told, too.
  std::optional<RunningHash> hash;
  if (shared == stored.place.count) hash.emplace();
  const auto fetch = [&](size_t from, std::span<std::byte> to) {
    for (size_t begin = 0; begin < to.size(); begin += kWindow) {
      const std::span<std::byte> piece = to.subspan(begin, std::min(kWindow, to.size() - begin));
      in.read_bytes(entry, from + begin, piece);
      if (hash) hash->add(piece);
      if (got_on_) got_on_(piece.size());
    }
  };
  size_t window_begin = 0, window_end = 0;  // bytes of the stored slice that are in window_
  const SlicePlace& at = stored.place;
  const int64_t last_row = std::min(at.end_row(), place.end_row());
  const size_t needed_end =
      static_cast<size_t>(std::min(at.count, (last_row - at.row) * at.part_cols - at.first)) * size;
  const size_t stride = static_cast<size_t>(at.part_cols) * size;
  for_each_shared_run(stored.place, place, [&](int64_t from_element, int64_t to_element, int64_t count) {
    size_t from = static_cast<size_t>(from_element) * size, to = static_cast<size_t>(to_element) * size;
    const size_t end = from + static_cast<size_t>(count) * size;
    const bool direct = end - from >= kDirect || (!hash && (end - from) * kSparse < stride);
    while (from < end) {
      if (from >= window_begin && from < window_end) {
        const size_t n = std::min(end, window_end) - from;
        std::memcpy(out.data() + to, window_.data() + (from - window_begin), n);
        from += n, to += n;
      } else if (direct) {
        fetch(from, out.subspan(to, end - from));
        from = end;
      } else {
        window_begin = from;
        window_end = std::min(needed_end, from + kWindow);
        window_.resize(std::max(window_.size(), window_end - window_begin));
        fetch(window_begin, {window_.data(), window_end - window_begin});
      }
    }
  });
  if (hash && hash->digest() != stored.hash)
    throw_bad_data(in.path() + ": tensor \"" + stored.stored_name + "\" does not match its hash");
}

}  // namespace thinwire
