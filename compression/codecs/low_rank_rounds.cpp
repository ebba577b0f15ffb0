// Low rank in sums over ranks: factors are what is reduced.
#include <algorithm>

#include "compression/codecs/low_rank.h"
#include "engine/base/core/check.h"

namespace thinwire {
namespace {

LowRankState& mine(CompressionState& state) {
  auto* s = dynamic_cast<LowRankState*>(&state);
  TW_CHECK(s != nullptr, "low_rank was given the state of another codec");
  return *s;
}
const LowRankState& mine(const CompressionState& state) {
  return mine(const_cast<CompressionState&>(state));
}

class LowRankRounds final : public RoundCodec {
 public:
  explicit LowRankRounds(const CodecSpec& spec) : spec_(spec), alternating_(spec.integer("sides") == 1) {}
  std::string name() const override { return low_rank_name(spec_); }
  Traits traits() const override {
    // Alternating, the one factor or the other travels: the longer one is the bound.
    return {.stateful = true, .framed = alternating_, .contractive = true, .matrices = true, .linear = true};
  }
  int rounds() const override { return alternating_ ? 1 : 2; }

  int64_t bound(int r, int64_t count, int, std::span<const MatrixShape> matrices) const override {
    const LowRankLayout layout(spec_, count, matrices);
    if (r == 1) return layout.q_count;
    return layout.raw_count + (alternating_ ? std::max(layout.p_count, layout.q_count) : layout.p_count);
  }
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const override {
    auto state = std::make_unique<LowRankState>(spec_, count, matrices);
    state->raw.resize(static_cast<size_t>(state->layout.raw_count));
    state->own.resize(static_cast<size_t>(alternating_ ? std::max(state->layout.p_count, state->layout.q_count)
                                                       : state->layout.q_count));
    return state;
  }

  Round round(int r, const Msg&, int64_t, const CompressionState& state) const override {
    const LowRankState& s = mine(state);
    const int64_t factor = s.count_of(alternating_ ? travelling(s) : r == 0 ? Factor::kP : Factor::kQ);
    return {Reduction::kSum, DType::f32, factor + (r == 0 ? s.layout.raw_count : 0), false};
  }

  bool pack(int r, const Msg& msg, View x, View payload, CompressionState& state) const override {
    LowRankState& s = mine(state);
    s.layout.check(x.count(), msg.matrices);
    float* to = payload.as<float>();
    if (r == 0) s.travels = alternating_ ? travelling(s) : Factor::kQ;
    const Factor sent = alternating_ || r == 1 ? s.travels : Factor::kP;
    const int64_t n = s.count_of(sent);
    TW_CHECK(payload.count() == n + (r == 0 ? s.layout.raw_count : 0), "low_rank: a payload of ", payload.count());
    if (r == 0) s.begin(msg, other(sent));
    s.multiply(msg, x.as<float>(), sent, to);
    if (sent == s.travels) std::copy_n(to, n, s.own.data());
    if (r == 0) gather_raw(s.layout, x.as<float>(), to + n);
    // Not finite in x is not finite in each of its products.
    return all_finite(to, payload.count());
  }

  void absorb(int r, const Msg& msg, View payload, int64_t slice_first, CompressionState& state) const override {
    LowRankState& s = mine(state);
    TW_CHECK(slice_first == 0, "low_rank absorbs whole payloads");
    const float* from = payload.as<float>();
    const Factor sent = alternating_ || r == 1 ? s.travels : Factor::kP;
    const int64_t n = s.count_of(sent);
    TW_CHECK(payload.count() == n + (r == 0 ? s.layout.raw_count : 0), "low_rank: a payload of ", payload.count());
    std::copy_n(from, n, s.factor(sent).data());
    if (r == 0) std::copy_n(from + n, s.layout.raw_count, s.raw.data());
    if (sent == s.travels)
      s.finish(msg, sent);
    else
      s.orthonormalize_factor(msg, sent);
  }

  int64_t payload_index(int, int64_t, const CompressionState&) const override {
    TW_CHECK(false, "low_rank has no round that could be cut");
  }

  void result(const Msg& msg, int64_t first, View out, bool accumulate, const CompressionState& state) const override {
    const LowRankState& s = mine(state);
    expand_message(s.layout, s.p.data(), s.q.data(), s.raw.data(), first, out.count(), out.as<float>(),
                   accumulate ? Expand::kAdd : Expand::kStore, msg.threads);
  }

  void own_error(const Msg& msg, View x, const CompressionState& state) const override {
    const LowRankState& s = mine(state);
    const bool p_is_own = s.travels == Factor::kP;
    expand_message(s.layout, p_is_own ? s.own.data() : s.p.data(), p_is_own ? s.q.data() : s.own.data(), nullptr, 0,
                   x.count(), x.as<float>(), Expand::kSubtract, msg.threads);
  }

 private:
  static Factor travelling(const LowRankState& s) { return s.messages.read()[0] % 2 == 0 ? Factor::kP : Factor::kQ; }
  CodecSpec spec_;
  bool alternating_;
};

}  // namespace

std::shared_ptr<const RoundCodec> make_low_rank_rounds(const CodecSpec& spec) {
  return std::make_shared<LowRankRounds>(spec);
}

}  // namespace thinwire
