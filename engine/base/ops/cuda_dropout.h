// Dropout factors in kernels: the same Philox words as on CPU, keyed by sample and element (dropout_plan.h).
#pragma once

#include "engine/base/ops/cuda_vector.h"
#include "engine/base/ops/dropout_plan.h"

namespace thinwire {

struct Words {
  uint32_t w[4];
};

// philox() of core/philox.h, for kernels.
TW_DEVICE Words philox_words(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  TW_UNROLL
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The words of elements [4 * block, 4 * block + 4) of a sample (an id, not an index).
TW_DEVICE Words dropout_words(const DropoutPlan& plan, uint64_t sample, uint64_t block) {
  return philox_words(
      plan.key0, plan.key1, static_cast<uint32_t>(block), static_cast<uint32_t>(sample),
      (static_cast<uint32_t>(sample >> 32) & 0xffffu) << 16 | (static_cast<uint32_t>(block >> 32) & 0xffffu), plan.tag);
}

TW_DEVICE float keep_factor_of_word(const DropoutPlan& plan, uint32_t word) {
  return word >= plan.threshold ? plan.scale : 0.0f;
}

// 0 or 1 / (1 - p) for one element of a sample.
TW_DEVICE float keep_factor(const DropoutPlan& plan, uint64_t sample, uint64_t element) {
  const Words words = dropout_words(plan, sample, element >> 2);
  const unsigned k = static_cast<unsigned>(element) & 3u;
  const uint32_t low = k & 1u ? words.w[1] : words.w[0], high = k & 1u ? words.w[3] : words.w[2];
  return keep_factor_of_word(plan, k & 2u ? high : low);
}

// Factors of flat elements [first, first + N) of the tensor at hand. N > 1: whole groups of one sample that start at a
// multiple of N in it (groups_allowed).
template <int N>
TW_DEVICE void keep_factors(const DropoutPlan& plan, int64_t first, float (&factors)[N]) {
  const int64_t at = plan.first + first;
  const int64_t sample = quotient(at, plan.per_sample), own = at - sample * plan.per_sample;
  const int64_t element = own + (own < plan.split ? plan.front : plan.back);
  const auto id = static_cast<uint64_t>(plan.sample_ids[sample]);
  if constexpr (N == 1) {
    factors[0] = keep_factor(plan, id, static_cast<uint64_t>(element));
  } else {
    static_assert(N % 4 == 0);
    TW_UNROLL
    for (int b = 0; b < N / 4; ++b) {
      const Words words = dropout_words(plan, id, static_cast<uint64_t>((element >> 2) + b));
      TW_UNROLL
      for (int k = 0; k < 4; ++k) factors[4 * b + k] = keep_factor_of_word(plan, words.w[k]);
    }
  }
}

// Host side: whether groups of `width` elements that start at multiples of it never cross from sample to sample, or
// from run to run.
inline bool groups_allowed(const DropoutPlan& plan, int64_t width) {
  const bool cut = plan.split < plan.per_sample;
  return !plan.active || (plan.first % width == 0 && plan.per_sample % width == 0 && plan.front % width == 0 &&
                          (!cut || (plan.split % width == 0 && plan.back % width == 0)));
}

}  // namespace thinwire
