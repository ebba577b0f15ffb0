// Weights as products in fp8 read them: rounded once per version of the weights, both ways round at once.
#pragma once

#include <cstdint>
#include <map>

#include "engine/base/core/check.h"
#include "engine/base/core/view.h"
#include "engine/base/device/device.h"

namespace thinwire {

inline constexpr int kFp8Words = 8, kFp8Factor = 4;  // the factor stands on 16 bytes

// A matrix in fp8, as it lies and turned round (nullptr: not wanted), and the words of its scale (queue_fp8).
struct Fp8Copy {
  std::byte *lying = nullptr, *turned = nullptr;
  uint32_t* words = nullptr;
};

class Fp8Weights {
 public:
  explicit Fp8Weights(Device& device) : device_(device) {}
  ~Fp8Weights() {
    for (const auto& [data, kept] : kept_) device_.release(kept.copy.lying, bytes_of(kept.count));
  }
  Fp8Weights(const Fp8Weights&) = delete;
  Fp8Weights& operator=(const Fp8Weights&) = delete;

  // The copy of `weight`, whose content changes only when `version` does. round(copy) queues the rounding where the
  // copy is of another version. Memory is taken at a weight's first call and stays where it is: recordings point at it.
  template <typename Round>
  const Fp8Copy& of(const View& weight, int64_t version, const Round& round) {
    const auto [place, fresh] = kept_.try_emplace(weight.data);
    Kept& kept = place->second;
    if (fresh) {
      kept.count = weight.count();
      kept.copy.lying = static_cast<std::byte*>(device_.allocate(bytes_of(kept.count)));
      kept.copy.turned = kept.copy.lying + padded(kept.count);
      kept.copy.words = reinterpret_cast<uint32_t*>(kept.copy.turned + padded(kept.count));
    }
    TW_CHECK(kept.count == weight.count(), "a weight of ", kept.count, " elements has ", weight.count());
    if (fresh || kept.version != version) round(kept.copy);
    kept.version = version;
    return kept.copy;
  }

  // Device memory that the copy of a weight of so many elements takes.
  static size_t bytes_of(int64_t count) { return 2 * padded(count) + 512; }

 private:
  static size_t padded(int64_t bytes) { return static_cast<size_t>((bytes + 511) / 512 * 512); }
  struct Kept {
    int64_t count = 0, version = 0;
    Fp8Copy copy;
  };
  Device& device_;
  std::map<const void*, Kept> kept_;
};

}  // namespace thinwire
