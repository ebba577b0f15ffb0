// Arenas: all memory of a run is sized, named by category and taken before step 1.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/core/view.h"
#include "engine/base/device/device.h"

namespace thinwire {

enum class MemoryCategory {
  kWeights,
  kMasterWeights,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kData,
  kResiduals,  // and what else codecs keep between messages
  kCount
};
std::string_view name_of(MemoryCategory category);

// Bytes per category.
struct MemoryPlan {
  std::array<size_t, static_cast<size_t>(MemoryCategory::kCount)> bytes{};
  size_t host = 0;  // of the host, beside a device's own memory, which all else is; not in the total
  size_t total() const;
  size_t& operator[](MemoryCategory c) { return bytes[static_cast<size_t>(c)]; }
  size_t operator[](MemoryCategory c) const { return bytes[static_cast<size_t>(c)]; }
};

// Hands out views of device memory that live as long as the arena. On a rehearsal device the same set-up code prices a
// run.
class Arena {
 public:
  explicit Arena(Device* device) : device_(device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, aligned to 4096 bytes for large tensors and 64 otherwise. Zero elements give an empty view.
  View take(MemoryCategory category, DType dtype, std::initializer_list<int64_t> shape);
  // Memory that somebody else takes for as long.
  void count(MemoryCategory category, int64_t bytes) { plan_[category] += static_cast<size_t>(bytes); }
  void count_host(int64_t bytes) { plan_.host += static_cast<size_t>(bytes); }
  const MemoryPlan& plan() const { return plan_; }

 private:
  Device* device_;
  std::vector<std::pair<void*, size_t>> pieces_;
  MemoryPlan plan_;
};

}  // namespace thinwire
