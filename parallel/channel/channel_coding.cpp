// Makes the coders of a site from its rule, and keeps the states of a channel's slots.
#include "parallel/channel/channel_coding.h"

#include <algorithm>

#include "compression/codec_table.h"
#include "compression/residual.h"

namespace thinwire {

namespace {

std::shared_ptr<Coder> coder_of(const MadeCodec& made, const CodecSpec& spec, const ResidualSpec& residual,
                                const std::shared_ptr<const Coder>& in_place_of) {
  return std::make_shared<Coder>(made.codec, spec, residual, in_place_of != nullptr ? in_place_of->granule() : 1);
}

bool alike(const std::shared_ptr<const Coder>& a, const std::shared_ptr<const Coder>& b) {
  return a == nullptr || b == nullptr ? a == b : a->name() == b->name();
}

// main: the variant whose place it takes, or nullptr.
std::shared_ptr<SiteCoding> make_variant(Site site, const SiteRule& rule, const SiteCoding* main) {
  auto coding = std::make_shared<SiteCoding>();
  coding->site = site;
  coding->rule = rule;
  const MadeCodec first = make_codec(rule.codec);
  coding->rounds = first.rounds;
  if (first.codec != nullptr)
    coding->first = coder_of(first, rule.codec, rule.residual, main != nullptr ? main->first : nullptr);
  // Sums go back the way they came unless the rule says otherwise. Without a residual of their own: the error of a
  // sum's coding belongs to nobody's contribution.
  const CodecSpec& spec = rule.has_sum_codec ? rule.sum_codec : rule.codec;
  const MadeCodec sums = make_codec(spec);
  if (sums.codec != nullptr && first.rounds == nullptr && spec.codec != "identity")
    coding->sums = coder_of(sums, spec, rule.sum_residual, main != nullptr ? main->sums : nullptr);
  SiteRule cheaper = rule;
  cheaper.codec = cheaper_codec(rule.codec);
  cheaper.sum_codec = cheaper_codec(rule.sum_codec);
  if (cheaper == rule) return coding;
  std::shared_ptr<SiteCoding> next = make_variant(site, cheaper, coding.get());
  if (!alike(coding->first, next->first) || !alike(coding->sums, next->sums)) coding->cheaper = std::move(next);
  return coding;
}

}  // namespace

std::shared_ptr<SiteCoding> make_site_coding(Site site, const SiteRule& rule) {
  if (rule.codec.codec == "identity" && !rule.has_sum_codec) return nullptr;
  return make_variant(site, rule, nullptr);
}

const SiteCoding& variant_of(const SiteCoding& coding, int variant) {
  const SiteCoding* it = &coding;
  for (; variant > 0 && it->cheaper != nullptr; --variant) it = it->cheaper.get();
  return *it;
}

int variants(const SiteCoding& coding) {
  return 1 + (coding.cheaper != nullptr ? variants(*coding.cheaper) : 0);
}

namespace {

SiteCoding coding_further(const SiteCoding& coding) {
  SiteCoding further = coding;
  further.first = coding.sums;
  further.rounds = nullptr;
  if (coding.cheaper != nullptr) further.cheaper = std::make_shared<SiteCoding>(coding_further(*coding.cheaper));
  return further;
}

}  // namespace

std::shared_ptr<SiteCoding> further_coding(const std::shared_ptr<SiteCoding>& coding) {
  if (coding == nullptr || !coding->rule.has_sum_codec) return coding;
  return std::make_shared<SiteCoding>(coding_further(*coding));
}

SlotStates states_of(const SiteCoding& coding, std::span<const MatrixShape> matrices, ChannelUse use) {
  const bool summed = use == ChannelUse::kScatter || use == ChannelUse::kAllReduce;
  SlotStates states;
  if (coding.rounds != nullptr && summed) {
    // Without a matrix a matrix codec sends the elements as they are.
    states.rounds = !coding.rounds->traits().matrices || !matrices.empty();
    return states;
  }
  const bool second = use == ChannelUse::kAllReduce || coding.rule.algorithm == RuleAlgorithm::kTwoLevel;
  states.first = coding.first != nullptr && coding.first->traits().stateful;
  states.sums = summed && second && coding.sums != nullptr && coding.sums->traits().stateful;
  return states;
}

int64_t state_bytes(const SiteCoding& coding, std::span<const MatrixShape> matrices, int64_t count, ChannelUse use) {
  if (count == 0) return 0;
  const SlotStates states = states_of(coding, matrices, use);
  int64_t bytes = 0;
  if (states.rounds) {
    bytes += coding.rounds->make_state(count, matrices)->bytes();
    const bool kept = coding.rule.residual.kind != ResidualKind::kNone;
    if (kept)
      bytes += residual_bytes({.kind = ResidualKind::kErrorFeedback, .on_skip = coding.rule.residual.on_skip}, count);
  }
  if (states.first) bytes += coding.first->state_bytes(count, matrices);
  if (states.sums) bytes += coding.sums->state_bytes(count, matrices);
  return bytes;
}

namespace {

// A matrix codec: whether factors and what travels beside them are fewer numbers than the message.
bool thinner(const RoundCodec& rounds, const MessageKey& key, int64_t count) {
  if (key.matrices.empty()) return false;
  int64_t numbers = 0;
  for (int r = 0; r < rounds.rounds(); ++r) numbers += rounds.bound(r, count, key.matrices);
  return numbers < count;
}

}  // namespace

bool is_coded(const SiteCoding& coding, int64_t step, const MessageKey& key, int64_t count, DType dtype, bool summed) {
  if (!key.coded || count == 0 || step < coding.rule.warmup_steps) return false;
  if (count * static_cast<int64_t>(size_of(dtype)) < coding.rule.min_bytes) return false;
  if (summed && coding.rounds != nullptr)
    return !coding.rounds->traits().matrices || thinner(*coding.rounds, key, count);
  return coding.first != nullptr && coding.first->shrinks(count, dtype);
}

void SitePrice::add(int64_t sent, int64_t plain, bool is_exact) {
  if (sent == 0) return;
  bytes += sent;
  plain_bytes += plain;
  ++operations;
  exact = exact && is_exact;
}

void ChannelStates::settle(bool applied) {
  for (auto& [number, slot] : slots_) {
    for (CodingState* state : {slot.first.get(), slot.sums.get(), slot.rounds.get()}) {
      if (state == nullptr) continue;
      applied ? state->commit() : state->roll_back();
    }
    if (slot.round_residual) applied ? slot.round_residual->commit() : slot.round_residual->roll_back();
  }
}

void ChannelStates::visit(StateVisitor& visitor) {
  for (auto& [number, slot] : slots_) {
    const std::string prefix = "coding/" + name_ + "/" + std::to_string(number) + "/";
    if (slot.first) slot.first->visit(visitor, prefix + "first/");
    if (slot.sums) slot.sums->visit(visitor, prefix + "sums/");
    if (slot.rounds) slot.rounds->visit(visitor, prefix + "rounds/");
    if (slot.round_residual) {
      const int64_t n = slot.round_residual->count();
      visitor.tensor(
          GlobalSlice::whole(prefix + "residual", 1, n, View(slot.round_residual->settled(), DType::f32, {n})));
    }
  }
}

int64_t ChannelStates::bytes() const {
  int64_t total = 0;
  for (const auto& [number, slot] : slots_) {
    for (const CodingState* state : {slot.first.get(), slot.sums.get(), slot.rounds.get()})
      total += state != nullptr ? state->bytes() : 0;
    if (slot.round_residual) total += slot.round_residual->bytes();
  }
  return total;
}

}  // namespace thinwire
