// Arena bookkeeping: one device allocation per tensor (there are few and they are large), counted by category.
#include "engine/base/device/arena.h"

#include <numeric>

namespace thinwire {

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view names[] = {"weights",     "master_weights", "gradients", "optimizer",
                                        "activations", "workspace",      "data",      "residuals"};
  return names[static_cast<size_t>(category)];
}

size_t MemoryPlan::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

Arena::~Arena() {
  for (const auto& [memory, bytes] : pieces_) device_->release(memory, bytes);
}

View Arena::take(MemoryCategory category, DType dtype, std::initializer_list<int64_t> shape) {
  View view(nullptr, dtype, shape);
  const size_t bytes = (view.bytes() + 63) / 64 * 64;
  if (view.bytes() == 0) return view;
  plan_[category] += bytes;
  view.data = device_->allocate(bytes);
  pieces_.emplace_back(view.data, bytes);
  return view;
}

}  // namespace thinwire
