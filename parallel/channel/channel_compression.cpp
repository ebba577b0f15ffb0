// Makes the coders of a site from its rule, and keeps the states of a channel's slots.
#include "parallel/channel/channel_compression.h"

#include "compression/codec_table.h"
#include "compression/residual.h"
#include "parallel/collective/pieces.h"

namespace thinwire {

namespace {

std::shared_ptr<Coder> coder_of(const MadeCodec& made, CodecSpec spec, const ResidualSpec& residual,
                                const std::shared_ptr<const Coder>& in_place_of) {
  spec.checksum = false;  // messages carry it, coded or not (SiteCompression::checks)
  return std::make_shared<Coder>(made.codec, spec, residual, in_place_of != nullptr ? in_place_of->granule() : 1);
}

bool alike(const std::shared_ptr<const Coder>& a, const std::shared_ptr<const Coder>& b) {
  return a == nullptr || b == nullptr ? a == b : a->name() == b->name();
}

// main: the variant whose place it takes, or nullptr.
std::shared_ptr<SiteCompression> make_variant(Site site, const SiteRule& rule, const SiteCompression* main) {
  auto compression = std::make_shared<SiteCompression>();
  compression->site = site;
  compression->rule = rule;
  compression->checks = rule.codec.checksum || rule.sum_codec.checksum;
  const MadeCodec first = make_codec(rule.codec);
  compression->rounds = first.rounds;
  if (first.codec != nullptr)
    compression->first = coder_of(first, rule.codec, rule.residual, main != nullptr ? main->first : nullptr);
  // Sums go back the way they came unless the rule says otherwise. Without a residual of their own: the error of a
  // sum's compression belongs to nobody's contribution.
  const CodecSpec& spec = rule.has_sum_codec ? rule.sum_codec : rule.codec;
  const MadeCodec sums = make_codec(spec);
  if (sums.codec != nullptr && first.rounds == nullptr && spec.codec != "identity")
    compression->sums = coder_of(sums, spec, rule.sum_residual, main != nullptr ? main->sums : nullptr);
  const auto on_device = [](const std::shared_ptr<const Coder>& coder) {
    return coder != nullptr ? DeviceCoder::make(*coder) : nullptr;
  };
  compression->first_on_device = on_device(compression->first);
  compression->sums_on_device = on_device(compression->sums);
  compression->on_device = compression->rounds == nullptr && compression->first_on_device != nullptr &&
                           (compression->sums == nullptr || compression->sums_on_device != nullptr);
  SiteRule cheaper = rule;
  cheaper.codec = cheaper_codec(rule.codec);
  cheaper.sum_codec = cheaper_codec(rule.sum_codec);
  if (cheaper == rule) return compression;
  std::shared_ptr<SiteCompression> next = make_variant(site, cheaper, compression.get());
  if (alike(compression->first, next->first) && alike(compression->sums, next->sums)) return compression;
  compression->on_device = compression->on_device && next->on_device;
  compression->cheaper = std::move(next);
  return compression;
}

}  // namespace

std::shared_ptr<SiteCompression> make_site_compression(Site site, const SiteRule& rule) {
  if (rule.codec.codec == "identity" && !rule.has_sum_codec && !rule.codec.checksum) return nullptr;
  const auto made_at = [&](int64_t step, const SiteCompression* main) {
    SiteRule now = rule;
    now.codec = codec_at(rule.codec, step), now.sum_codec = codec_at(rule.sum_codec, step);
    return make_variant(site, now, main);
  };
  const std::shared_ptr<SiteCompression> compression = made_at(0, nullptr);
  std::set<int64_t> places = ramp_places(rule.codec);
  places.merge(ramp_places(rule.sum_codec));
  for (const int64_t place : places) {
    compression->later.push_back({place, made_at(place, compression.get())});
    compression->on_device = compression->on_device && compression->later.back().second->on_device;
  }
  return compression;
}

const SiteCompression& compression_at(const SiteCompression& compression, int64_t step) {
  const SiteCompression* now = &compression;
  for (const auto& [place, later] : compression.later)
    if (place <= step) now = later.get();
  return *now;
}

const SiteCompression& variant_of(const SiteCompression& compression, int variant) {
  const SiteCompression* it = &compression;
  for (; variant > 0 && it->cheaper != nullptr; --variant) it = it->cheaper.get();
  return *it;
}

int variants(const SiteCompression& compression) {
  return 1 + (compression.cheaper != nullptr ? variants(*compression.cheaper) : 0);
}

namespace {

SiteCompression compression_further(const SiteCompression& compression) {
  SiteCompression further = compression;
  further.first = compression.sums;
  further.first_on_device = compression.sums_on_device;
  further.rounds = nullptr;
  if (compression.cheaper != nullptr)
    further.cheaper = std::make_shared<SiteCompression>(compression_further(*compression.cheaper));
  for (auto& [place, later] : further.later) later = std::make_shared<SiteCompression>(compression_further(*later));
  return further;
}

}  // namespace

SiteCompressions further_compressions(const SiteCompressions& compressions) {
  SiteCompressions further = compressions;
  for (std::shared_ptr<const SiteCompression>& each : further)
    if (each != nullptr && each->rule.has_sum_codec)
      each = std::make_shared<SiteCompression>(compression_further(*each));
  return further;
}

SlotStates states_of(const SiteCompression& compression, std::span<const MatrixShape> matrices, ChannelUse use) {
  const bool summed = use == ChannelUse::kScatter || use == ChannelUse::kAllReduce;
  SlotStates states;
  if (compression.rounds != nullptr && summed) {
    // Without a matrix a matrix codec sends the elements as they are.
    states.rounds = !compression.rounds->traits().matrices || !matrices.empty();
    return states;
  }
  const bool second = use == ChannelUse::kAllReduce || compression.rule.algorithm == RuleAlgorithm::kTwoLevel;
  states.first = compression.first != nullptr && compression.first->traits().stateful;
  states.sums = summed && second && compression.sums != nullptr && compression.sums->traits().stateful;
  return states;
}

int64_t state_bytes(const SiteCompression& compression, std::span<const MatrixShape> matrices, int64_t count,
                    ChannelUse use) {
  if (count == 0) return 0;
  const SlotStates states = states_of(compression, matrices, use);
  int64_t bytes = 0;
  if (states.rounds) {
    bytes += compression.rounds->make_state(count, matrices)->bytes();
    const bool kept = compression.rule.residual.kind != ResidualKind::kNone;
    if (kept)
      bytes +=
          residual_bytes({.kind = ResidualKind::kErrorFeedback, .on_skip = compression.rule.residual.on_skip}, count);
  }
  if (states.first) bytes += compression.first->state_bytes(count, matrices);
  if (states.sums) bytes += compression.sums->state_bytes(count, matrices);
  return bytes;
}

void SitePrice::add(int64_t sent, int64_t plain, bool is_exact) {
  if (sent == 0) return;
  bytes += sent;
  largest = std::max(largest, sent);
  plain_bytes += plain;
  ++operations;
  exact = exact && is_exact;
}

void ChannelStates::settle(bool applied) {
  for (auto& [number, slot] : slots_) {
    for (CompressionState* state : {slot.first.get(), slot.sums.get(), slot.rounds.get()}) {
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

namespace {

// Fills what is called `residual` of a state, and counts what it cannot fill.
class AdoptingVisitor final : public StateVisitor {
 public:
  AdoptingVisitor(const std::function<bool(View)>& fill, AdoptedStates& done) : fill_(fill), done_(done) {}
  void tensor(const GlobalSlice& slice) override { ++(fills(slice) ? done_.residuals : done_.others); }
  void integer(const std::string&, int64_t&) override { ++done_.others; }
  void real(const std::string&, double&) override { ++done_.others; }
  void text(const std::string&, std::string&) override { ++done_.others; }

 private:
  bool fills(const GlobalSlice& slice) const { return slice.name == "residual" && fill_(slice.local); }

  const std::function<bool(View)>& fill_;
  AdoptedStates& done_;
};

}  // namespace

AdoptedStates ChannelStates::adopt(const OldResiduals& old) {
  AdoptedStates done;
  const size_t data = name_.find('.', name_.rfind("/rank")), tensor = name_.find('.', data + 1);
  for (auto& entry : slots_) {
    Slot& slot = entry.second;
    const auto fill = [&](const char* what, bool of_sums, View residual) {
      const auto stored_name = [&](int rank) {
        return "coding/" + name_.substr(0, data + 1) + std::to_string(rank) + name_.substr(tensor) + "/" +
               std::to_string(entry.first) + "/" + what;
      };
      if (!over_data_ || slot.owners.empty()) return false;
      for (int rank = 0; rank < old.ranks; ++rank)
        if (old.count(stored_name(rank)) != residual.count()) return false;
      const int ranks = static_cast<int>(slot.owners.size()) - 1;
      std::vector<float> sum(static_cast<size_t>(residual.count())), share(sum.size());
      for (int owner = 0; owner < ranks; ++owner) {
        const int64_t first = slot.owners[static_cast<size_t>(owner)],
                      n = slot.owners[static_cast<size_t>(owner) + 1] - first;
        for (int rank = 0; rank < old.ranks && n > 0; ++rank) {
          const int sender = rank % ranks == owner ? (owner + 1) % ranks : rank % ranks;
          if ((of_sums ? owner : sender) != slot.me) continue;
          const std::span<float> part = std::span(share).first(static_cast<size_t>(n));
          old.read(stored_name(rank), first, part);
          for (size_t i = 0; i < part.size(); ++i) sum[static_cast<size_t>(first) + i] += part[i];
        }
      }
      const View all(sum.data(), DType::f32, {residual.count()});
      if (device_ == nullptr) return convert(all, residual), true;
      std::vector<char> there(residual.bytes());
      convert(all, View(there.data(), residual.dtype, {residual.count()}));
      device_->copy_at_rest(residual.data, there.data(), there.size());
      return true;
    };
    const auto visit = [&](const std::unique_ptr<CompressionState>& state, const char* what, bool of_sums) {
      const std::function<bool(View)> filling = [&](View residual) { return fill(what, of_sums, residual); };
      AdoptingVisitor visitor(filling, done);
      if (state) state->visit(visitor, "");
    };
    visit(slot.first, "first/residual", false);
    visit(slot.sums, "sums/residual", true);
    visit(slot.rounds, "", false);
    if (slot.round_residual == nullptr) continue;
    const int64_t n = slot.round_residual->count();
    ++(fill("residual", false, View(slot.round_residual->settled(), DType::f32, {n})) ? done.residuals : done.others);
  }
  return done;
}

int64_t ChannelStates::bytes() const {
  int64_t total = 0;
  for (const auto& [number, slot] : slots_) {
    for (const CompressionState* state : {slot.first.get(), slot.sums.get(), slot.rounds.get()})
      total += state != nullptr ? state->bytes() : 0;
    if (slot.round_residual) total += slot.round_residual->bytes();
  }
  return total;
}

}  // namespace thinwire
