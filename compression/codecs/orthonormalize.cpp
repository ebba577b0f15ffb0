// CholeskyQR in passes: Gram matrices of all bases, small factors, application; each stage is one loop over threads.
#include "compression/codecs/orthonormalize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "compression/codecs/low_rank_kernel.h"
#include "engine/base/core/check.h"
#include "engine/base/core/philox.h"
#include "engine/base/ops/parallel_for.h"

namespace thinwire {
namespace {

constexpr int64_t kGramRows = 4;      // of LowRankKernels::gram_rows
constexpr int64_t kApplyBlock = 256;  // elements
constexpr int64_t kStackVectors = 256;
constexpr int64_t kParallelWork = 1 << 15;  // multiplications below which waking threads does not pay

// Cuts of several bases' work into parts that depend on their shapes alone; body(basis, part).
template <typename Parts, typename Body>
void for_parts(std::span<const Basis> bases, int threads, const Parts& parts, const Body& body) {
  int64_t total = 0, work = 0;
  for (const Basis& b : bases) total += parts(b), work += b.length * b.vectors * b.vectors;
  parallel_blocks(work < kParallelWork ? 1 : threads, total, 1, [&](int64_t first, int64_t) {
    size_t i = 0;
    while (first >= parts(bases[i])) first -= parts(bases[i]), ++i;
    body(i, first);
  });
}

// A direction that does not depend on data, so that every rank comes upon the same one.
void random_direction(const Basis& b, int64_t vector, int attempt) {
  float* to = b.data + vector * b.length;
  for (int64_t e = 0; e < b.length; e += 4) {
    const PhiloxBlock words = philox({kDirections, static_cast<uint32_t>(b.length)},
                                     {static_cast<uint32_t>(e), static_cast<uint32_t>(e >> 32),
                                      static_cast<uint32_t>(vector), static_cast<uint32_t>(attempt)});
    // Odd multiples of 2^-24: never zero.
    for (int64_t k = 0; k < 4 && e + k < b.length; ++k)
      to[e + k] = static_cast<float>(static_cast<int32_t>(words[static_cast<size_t>(k)]) >> 8) * 0x1p-23f + 0x1p-24f;
  }
}

enum class Pass : uint8_t { kAgain, kLast, kDone, kNonFinite };

}  // namespace

bool orthonormalize(std::span<const Basis> bases, int threads, OrthonormalScratch& scratch) {
  const LowRankKernels& kernels = TW_PICK_KERNELS(low_rank_kernels);
  // Per basis: gram and t, [r, r] each.
  std::vector<size_t> at(bases.size() + 1, 0), flag_at(bases.size() + 1, 0);
  for (size_t i = 0; i < bases.size(); ++i) {
    const Basis& b = bases[i];
    TW_CHECK(b.vectors >= 1 && b.vectors <= b.length, b.vectors, " vectors of length ", b.length);
    at[i + 1] = at[i] + 2 * static_cast<size_t>(b.vectors * b.vectors);
    flag_at[i + 1] = flag_at[i] + static_cast<size_t>(b.vectors);
  }
  if (scratch.numbers.size() < at.back()) scratch.numbers.resize(at.back());
  if (scratch.flags.size() < flag_at.back()) scratch.flags.resize(flag_at.back());
  const auto gram = [&](size_t i) { return scratch.numbers.data() + at[i]; };
  const auto small = [&](size_t i) { return gram(i) + bases[i].vectors * bases[i].vectors; };
  const auto dependent = [&](size_t i) { return scratch.flags.data() + flag_at[i]; };
  std::vector<Pass> pass(bases.size(), Pass::kAgain);

  for (int round = 0; round < kOrthonormalPasses; ++round) {
    if (std::ranges::none_of(pass, [](Pass p) { return p == Pass::kAgain; })) break;
    for_parts(
        bases, threads, [](const Basis& b) { return (b.vectors + kGramRows - 1) / kGramRows; },
        [&](size_t i, int64_t part) {
          if (pass[i] != Pass::kAgain) return;
          kernels.gram_rows(bases[i].data, bases[i].length, bases[i].vectors, part * kGramRows, gram(i));
        });
    for_parts(
        bases, threads, [](const Basis&) { return int64_t{1}; },
        [&](size_t i, int64_t) {
          if (pass[i] != Pass::kAgain) return;
          const int64_t r = bases[i].vectors;
          double trace = 0.0;
          for (int64_t k = 0; k < r; ++k) trace += gram(i)[k * r + k];
          if (!std::isfinite(trace)) {
            pass[i] = Pass::kNonFinite;
            return;
          }
          const double loss = kernels.invert_gram(gram(i), r, kDependentRest, small(i), dependent(i));
          const bool complete = std::find(dependent(i), dependent(i) + r, 1) == dependent(i) + r;
          if (complete && loss <= kFineAtOnce) pass[i] = Pass::kLast;
        });
    for_parts(
        bases, threads, [](const Basis& b) { return (b.length + kApplyBlock - 1) / kApplyBlock; },
        [&](size_t i, int64_t part) {
          if (pass[i] != Pass::kAgain && pass[i] != Pass::kLast) return;
          const Basis& b = bases[i];
          std::array<double, kStackVectors * 16> on_stack;
          std::vector<double> on_heap(b.vectors > kStackVectors ? static_cast<size_t>(b.vectors) * 16 : 0);
          kernels.apply(b.data, b.length, b.vectors, small(i), part * kApplyBlock,
                        std::min(b.length, (part + 1) * kApplyBlock),
                        on_heap.empty() ? on_stack.data() : on_heap.data());
        });
    for (size_t i = 0; i < bases.size(); ++i) {
      if (pass[i] == Pass::kLast) pass[i] = Pass::kDone;
      if (pass[i] != Pass::kAgain || round + 1 == kOrthonormalPasses) continue;  // no pass would norm it
      for (int64_t k = 0; k < bases[i].vectors; ++k) {
        if (dependent(i)[k]) random_direction(bases[i], k, round);
      }
    }
  }
  bool finite = true;
  for (size_t i = 0; i < bases.size(); ++i) {
    if (pass[i] != Pass::kNonFinite) continue;
    finite = false;
    std::fill_n(bases[i].data, bases[i].length * bases[i].vectors, std::numeric_limits<float>::quiet_NaN());
  }
  return finite;
}

}  // namespace thinwire
