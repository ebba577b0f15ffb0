// Makes the coders of a site from its rule, and keeps the states of a channel's slots.
#include "parallel/channel/channel_compression.h"

#include "compression/codec_table.h"
#include "compression/residual.h"
#include "parallel/collective/pieces.h"

namespace thinwire {

namespace {

std::shared_ptr<Coder> coder_of(const MadeCodec& made, const CodecSpec& spec, const ResidualSpec& residual,
                                const std::shared_ptr<const Coder>& in_place_of) {
  return std::make_shared<Coder>(made.codec, spec, residual, in_place_of != nullptr ? in_place_of->granule() : 1);
}

// Between two stages of a pipeline.
bool is_edge(Site site) {
  return site == Site::kPpForward || site == Site::kPpBackward;
}

bool alike(const std::shared_ptr<const Coder>& a, const std::shared_ptr<const Coder>& b) {
  return a == nullptr || b == nullptr ? a == b : a->name() == b->name();
}

// main: the one whose place it takes, or nullptr.
std::shared_ptr<SiteCompression> make_one(Site site, const SiteRule& rule, const SiteCompression* main) {
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
  // On an edge of the pipeline nothing is summed, elsewhere all that rounds are for.
  const bool in_rounds = compression->rounds != nullptr && !is_edge(site);
  if (in_rounds) compression->rounds_on_device = make_device_rounds(rule.codec);
  compression->on_device = in_rounds ? compression->rounds_on_device != nullptr
                                     : compression->first_on_device != nullptr &&
                                           (compression->sums == nullptr || compression->sums_on_device != nullptr);
  return compression;
}

CodecSpec in_bf16(const CodecSpec& spec) {
  if (codec_row(spec.codec).lossless || spec.codec == "cast") return spec;
  CodecSpec cast = codec_spec("cast");
  cast.checksum = spec.checksum;
  return cast;
}

std::shared_ptr<SiteCompression> make_with_ways(Site site, const SiteRule& rule, const SiteCompression* main) {
  const std::shared_ptr<SiteCompression> compression = make_one(site, rule, main);
  const auto way = [&](const SiteRule& other) {
    std::shared_ptr<SiteCompression> made;
    if (other == rule) return made;
    made = make_one(site, other, compression.get());
    if (alike(compression->first, made->first) && alike(compression->sums, made->sums)) return made = nullptr;
    compression->on_device = compression->on_device && made->on_device;
    return made;
  };
  SiteRule light = rule, bf16 = rule;
  light.codec = cheaper_codec(rule.codec), light.sum_codec = cheaper_codec(rule.sum_codec);
  bf16.codec = in_bf16(rule.codec), bf16.sum_codec = in_bf16(rule.sum_codec);
  // The residual of sums in rounds is no coder's: it waits for them. Nor is there a state for what rounds do not code,
  // sums on their way back: it would be made in the middle of a run, where no memory plan and no resume knows of it.
  if (compression->rounds != nullptr && !is_edge(site)) bf16.residual = bf16.sum_residual = {};
  compression->light = way(light), compression->bf16 = way(bf16);
  return compression;
}

}  // namespace

std::shared_ptr<SiteCompression> make_site_compression(Site site, const SiteRule& rule) {
  if (rule.codec.codec == "identity" && !rule.has_sum_codec && !rule.codec.checksum) return nullptr;
  const auto made_at = [&](int64_t step, const SiteCompression* main) {
    SiteRule now = rule;
    now.codec = codec_at(rule.codec, step), now.sum_codec = codec_at(rule.sum_codec, step);
    return make_with_ways(site, now, main);
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

const SiteCompression& coded_by(const SiteCompression& compression, CodingWay way) {
  const SiteCompression* const other = way == CodingWay::kLight  ? compression.light.get()
                                       : way == CodingWay::kBf16 ? compression.bf16.get()
                                                                 : nullptr;
  return other != nullptr ? *other : compression;
}

namespace {

SiteCompression compression_further(const SiteCompression& compression) {
  SiteCompression further = compression;
  further.first = compression.sums;
  further.first_on_device = compression.sums_on_device;
  further.rounds = nullptr;
  for (auto* way : {&further.light, &further.bf16})
    if (*way != nullptr) *way = std::make_shared<SiteCompression>(compression_further(**way));
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
    for (CompressionState* state : {slot.first.get(), slot.sums.get(), slot.rounds.get(), slot.round_residual.get()}) {
      if (state == nullptr) continue;
      applied ? state->commit() : state->roll_back();
    }
  }
}

void ChannelStates::visit(StateVisitor& visitor) {
  for (auto& [number, slot] : slots_) {
    const std::string prefix = "coding/" + name_ + "/" + std::to_string(number) + "/";
    if (slot.first) slot.first->visit(visitor, prefix + "first/");
    if (slot.sums) slot.sums->visit(visitor, prefix + "sums/");
    if (slot.rounds) slot.rounds->visit(visitor, prefix + "rounds/");
    if (slot.round_residual) slot.round_residual->visit(visitor, prefix);
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
    visit(slot.round_residual, "residual", false);
  }
  return done;
}

int64_t ChannelStates::bytes() const {
  int64_t total = 0;
  for (const auto& [number, slot] : slots_) {
    for (const CompressionState* state :
         {slot.first.get(), slot.sums.get(), slot.rounds.get(), slot.round_residual.get()})
      total += state != nullptr ? state->bytes() : 0;
  }
  return total;
}

}  // namespace thinwire
