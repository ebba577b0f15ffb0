// Codec low_rank (PowerSGD, Vogels et al. 2019): matrices travel as products of two thin factors, the rest as it is.
//
// A matrix x [rows, cols] of a message gets r = min(rows, cols, rank). One step of power iteration from the factor q
// that the message before left (warm start; the first one from Philox numbers that all ranks share):
//   q = orthonormal(q);  p = orthonormal(sum over ranks of x q);  q = sum over ranks of x^T p;  decoded sum = p q^T
// with `sides` 2. With `sides` 1 only one factor travels per message: even ones p = sum x orthonormal(q), odd ones
// q = sum x^T orthonormal(p), where the factor that does not travel is the one that the message before left on all
// ranks. Raw travel elements outside of any matrix, and matrices for which
//   rate * r * (sides 2: rows + cols, sides 1: max(rows, cols)) < rows * cols      with rate = min_compression_rate >=
//   1
// does not hold (so that rank >= min(rows, cols) is raw, and exact). Everything on the wire is fp32, whatever the dtype
// of the message (defect: released code disagreed with itself about the dtype of p and q).
//
// Payload, little-endian fp32, tightly packed:
//   round 0: p of every low-rank matrix, r vectors of `rows` elements each; then the raw elements in order
//   round 1: q of every low-rank matrix, r vectors of `cols` elements each
// sides 1: one round, the factor that travels and then the raw elements. Bytes = 4 (sum r (rows + cols) + raw).
//
// The state is the warm factor and the number of messages so far; both change with Msg::train only, provisionally, and
// not by a message that came out non-finite. They do not depend on the loss scale: multiplying x by a power of two
// multiplies the decoded message by it, bit for bit. Non-finite input, and input whose products overflow, raise the
// flag and decode to NaN. Bits depend neither on threads nor on the instruction set.
//
// Msg::matrices lists the matrices in ascending order without overlap, the same ones at every message of a state; a
// message of count > 0 without any is our fault (TW_CHECK: give it one matrix [1, count], or no codec).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "compression/codec_table.h"
#include "compression/codecs/low_rank_kernel.h"
#include "compression/codecs/orthonormalize.h"

namespace thinwire {

// What decides bits, here and on a GPU (low_rank_cuda.cu).
inline constexpr int64_t kRightRows = 4096;           // rows of a partial sum of x^T p
inline constexpr uint32_t kFirstFactor = 0x6c6f7772;  // tag in the counter of random numbers

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
inline Factor other(Factor f) {
  return f == Factor::kP ? Factor::kQ : Factor::kP;
}

// What a message leaves for the next one: the factor that it starts from, and how many there were, counted in Counter.
template <typename Place, typename Counter>
class WarmFactor : public CompressionState {
 public:
  WarmFactor(const CodecSpec& spec, const LowRankLayout& layout, const Place& place = {}, const Counter& counter = {})
      : warm(spec.integer("sides") == 2 ? layout.q_count : std::max(layout.p_count, layout.q_count), OnSkip::kRestore,
             place),
        messages(1, OnSkip::kRestore, counter) {}
  void commit() override { warm.commit(), messages.commit(); }
  void roll_back() override { warm.roll_back(), messages.roll_back(); }
  // In checkpoints both are tensors (Mesh::visit_states), wherever they lie.
  void visit(StateVisitor& visitor, const std::string& prefix) override {
    if constexpr (std::is_same_v<Counter, HostPlace>)
      visitor.integer(prefix + "messages", *messages.settled());
    else
      visitor.tensor(GlobalSlice::whole(prefix + "messages", 1, 1, View(messages.settled(), DType::i64, {1})));
    const int64_t n = warm.count();
    if (n > 0) visitor.tensor(GlobalSlice::whole(prefix + "warm", 1, n, View(warm.settled(), DType::f32, {n})));
  }
  int64_t bytes() const override { return warm.bytes() + messages.bytes(); }

  StateVector<float, Place> warm;
  StateVector<int64_t, Counter> messages;
};

class LowRankState final : public WarmFactor<HostPlace, HostPlace> {
 public:
  LowRankState(const CodecSpec& spec, int64_t count, std::span<const MatrixShape> matrices);
  int64_t bytes() const override;

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
  std::vector<Basis> bases_;
  std::vector<float> p_rows_, partial_;  // of multiply()
  OrthonormalScratch scratch_;
};

std::string low_rank_name(const CodecSpec& spec);
bool all_finite(const float* x, int64_t n);
void gather_raw(const LowRankLayout& layout, const float* x, float* to);
// Elements [first, first + n) of the message: out = or += p q^T and raw, or out = out - p q^T (raw elements: -
// themselves, which is zero, when `raw` is nullptr).
void expand_message(const LowRankLayout& layout, const float* p, const float* q, const float* raw, int64_t first,
                    int64_t n, float* out, Expand how, int threads);

// Sums over ranks; 2 rounds, or 1 with sides 1. What a rank contributed is p q_w^T with its own q_w = x_w^T p (sides 1,
// even: p_w q^T), so that the errors of all ranks add up to sum(x) - result.
std::shared_ptr<const RoundCodec> make_low_rank_rounds(const CodecSpec& spec);

}  // namespace thinwire
