// What both forms of low_rank share: where the parts of a message are, its state, the products. Not for others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "compression/codecs/low_rank_kernel.h"
#include "compression/codecs/orthonormalize.h"
#include "compression/coding_state.h"
#include "compression/rule.h"

namespace thinwire {

struct LowRankMatrix {
  int64_t first = 0, rows = 0, cols = 0, rank = 0;
  int64_t p = 0, q = 0;  // first element of its factors among all matrices' p's and q's
};
struct RawPart {
  int64_t first = 0, count = 0;
  int64_t at = 0;  // among all raw elements
};

struct LowRankLayout {
  // TW_CHECKs the list: ascending, disjoint, inside of the message, not empty unless count is 0.
  LowRankLayout(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices);
  // TW_CHECKs that a message is the one that this was made for.
  void check(int64_t message_count, std::span<const MatrixShape> message_matrices) const;

  int64_t count = 0, p_count = 0, q_count = 0, raw_count = 0;
  std::vector<LowRankMatrix> matrices;  // those that shrink
  std::vector<RawPart> raw;
  std::vector<MatrixShape> given;
};

// Which factor of p q^T.
enum class Factor : uint8_t { kP, kQ };

class LowRankState final : public CodingState {
 public:
  LowRankState(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices);
  void commit() override;
  void roll_back() override;
  void visit(StateVisitor& visitor, const std::string& prefix) override;
  int64_t bytes() const override;

  int64_t messages() const { return messages_.read()[0]; }
  // factor = orthonormal(warm factor, or random numbers before the first message).
  void begin(const Msg& msg, Factor which);
  // to [count of the factor] = x q or x^T p.
  void multiply(const Msg& msg, const float* x, Factor result, float* to);
  // In place in p or q. NaN where it was not finite.
  void orthonormalize_factor(const Msg& msg, Factor which);
  // The message is complete: its factor is where the next one starts, if msg.train and all of it is finite.
  void finish(const Msg& msg, Factor next);

  int64_t count_of(Factor which) const { return which == Factor::kP ? layout.p_count : layout.q_count; }
  std::vector<float>& factor(Factor which) { return which == Factor::kP ? p : q; }

  const LowRankLayout layout;
  std::vector<float> p, q;      // of the message that is under way
  std::vector<float> own;       // sums: this rank's share of the last factor
  std::vector<float> raw;       // sums: reduced raw elements
  Factor travels = Factor::kQ;  // sides 1: what this message sends. sides 2: kQ, the last factor

 private:
  std::span<const Basis> bases(Factor which);
  StateVector<float> warm_;
  StateVector<int64_t> messages_;
  std::vector<Basis> bases_;
  std::vector<float> p_rows_, partial_;  // of multiply()
  OrthonormalScratch scratch_;
};

void check_low_rank_spec(const CodecSpec& spec);
std::string low_rank_name(const CodecSpec& spec);
bool all_finite(const float* x, int64_t n);
void gather_raw(const LowRankLayout& layout, const float* x, float* to);
// Elements [first, first + n) of the message: out = or += p q^T and raw, or out = out - p q^T (raw elements: -
// themselves, which is zero, when `raw` is nullptr).
void expand_message(const LowRankLayout& layout, const float* p, const float* q, const float* raw, int64_t first,
                    int64_t n, float* out, Expand how, int threads);

}  // namespace thinwire
