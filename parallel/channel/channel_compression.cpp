// Makes the coders of a site from its rule, and holds the states of a channel's slots.
#include "parallel/channel/channel_compression.h"

#include "compression/codec_table.h"
#include "compression/residual.h"
#include "parallel/collective/pieces.h"

namespace thinwire {

namespace {

// replaced: the coder whose place this one takes, or nullptr.
std::shared_ptr<Coder> coder_of(const MadeCodec& made, const CodecSpec& spec, const ResidualSpec& residual,
                                const std::shared_ptr<const Coder>& replaced) {
  return std::make_shared<Coder>(made.codec, spec, residual, replaced != nullptr ? replaced->granule() : 1);
}

bool is_pipeline(Site site) {
  return site == Site::kPpForward || site == Site::kPpBackward;
}

bool codes_alike(const std::shared_ptr<const Coder>& a, const std::shared_ptr<const Coder>& b) {
  return a == nullptr || b == nullptr ? a == b : a->name() == b->name();
}

// Without `light`, `bf16` and `later`. replaced: the compression whose place this one takes, or nullptr.
std::shared_ptr<SiteCompression> make_one(Site site, const SiteRule& rule, const SiteCompression* replaced) {
  auto compression = std::make_shared<SiteCompression>();
  compression->site = site;
  compression->rule = rule;
  compression->checks = rule.codec.checksum || rule.sum_codec.checksum;
  const MadeCodec first = make_codec(rule.codec);
  compression->rounds = first.rounds;
  if (first.codec != nullptr)
    compression->first = coder_of(first, rule.codec, rule.residual, replaced != nullptr ? replaced->first : nullptr);
  // Sums are coded as contributions are, unless the rule has a codec for sums, but without the residual: the coding
  // error of a sum belongs to no rank's contribution.
  const CodecSpec& spec = rule.has_sum_codec ? rule.sum_codec : rule.codec;
  const MadeCodec sums = make_codec(spec);
  if (sums.codec != nullptr && first.rounds == nullptr && spec.codec != "identity")
    compression->sums = coder_of(sums, spec, rule.sum_residual, replaced != nullptr ? replaced->sums : nullptr);
  const auto on_device = [](const std::shared_ptr<const Coder>& coder) {
    return coder != nullptr ? DeviceCoder::make(*coder) : nullptr;
  };
  compression->first_on_device = on_device(compression->first);
  compression->sums_on_device = on_device(compression->sums);
  // Rounds code what is summed: nothing between pipeline stages, at other sites every message of such a rule.
  const bool in_rounds = compression->rounds != nullptr && !is_pipeline(site);
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

// With `light` and `bf16`.
std::shared_ptr<SiteCompression> make_with_ways(Site site, const SiteRule& rule, const SiteCompression* replaced) {
  const std::shared_ptr<SiteCompression> compression = make_one(site, rule, replaced);
  const auto way = [&](const SiteRule& other) {
    std::shared_ptr<SiteCompression> made;
    if (other == rule) return made;
    made = make_one(site, other, compression.get());
    if (codes_alike(compression->first, made->first) && codes_alike(compression->sums, made->sums))
      return made = nullptr;
    compression->on_device = compression->on_device && made->on_device;
    return made;
  };
  SiteRule light = rule, bf16 = rule;
  light.codec = cheaper_codec(rule.codec), light.sum_codec = cheaper_codec(rule.sum_codec);
  bf16.codec = in_bf16(rule.codec), bf16.sum_codec = in_bf16(rule.sum_codec);
  // Under bf16 in place of rounds no residual: that of the rounds stays as it is until rounds code again, and a new
  // coder's (of contributions or sums) would be made in the middle of a run, unknown to memory plan and resume.
  if (compression->rounds != nullptr && !is_pipeline(site)) bf16.residual = bf16.sum_residual = {};
  compression->light = way(light), compression->bf16 = way(bf16);
  return compression;
}

}  // namespace

std::shared_ptr<SiteCompression> make_site_compression(Site site, const SiteRule& rule) {
  if (rule.codec.codec == "identity" && !rule.has_sum_codec && !rule.codec.checksum) return nullptr;
  const auto make_at = [&](int64_t step, const SiteCompression* replaced) {
    SiteRule now = rule;
    now.codec = codec_at(rule.codec, step), now.sum_codec = codec_at(rule.sum_codec, step);
    return make_with_ways(site, now, replaced);
  };
  const std::shared_ptr<SiteCompression> compression = make_at(0, nullptr);
  std::set<int64_t> steps = ramp_places(rule.codec);
  steps.merge(ramp_places(rule.sum_codec));
  for (const int64_t step : steps) {
    compression->later.push_back({step, make_at(step, compression.get())});
    compression->on_device = compression->on_device && compression->later.back().second->on_device;
  }
  return compression;
}

const SiteCompression& compression_at(const SiteCompression& compression, int64_t step) {
  const SiteCompression* now = &compression;
  for (const auto& [from, later] : compression.later)
    if (from <= step) now = later.get();
  return *now;
}

const SiteCompression& coded_by(const SiteCompression& compression, CodingWay way) {
  const SiteCompression* const other = way == CodingWay::kLight  ? compression.light.get()
                                       : way == CodingWay::kBf16 ? compression.bf16.get()
                                                                 : nullptr;
  return other != nullptr ? *other : compression;
}

namespace {

SiteCompression further_compression(const SiteCompression& compression) {
  SiteCompression further = compression;
  further.first = compression.sums;
  further.first_on_device = compression.sums_on_device;
  further.rounds = nullptr;
  for (auto* way : {&further.light, &further.bf16})
    if (*way != nullptr) *way = std::make_shared<SiteCompression>(further_compression(**way));
  for (auto& [step, later] : further.later) later = std::make_shared<SiteCompression>(further_compression(*later));
  return further;
}

}  // namespace

SiteCompressions further_compressions(const SiteCompressions& compressions) {
  SiteCompressions further = compressions;
  for (std::shared_ptr<const SiteCompression>& each : further)
    if (each != nullptr && each->rule.has_sum_codec)
      each = std::make_shared<SiteCompression>(further_compression(*each));
  return further;
}

SlotStates states_of(const SiteCompression& compression, std::span<const MatrixShape> matrices, ChannelUse use) {
  const bool summed = use == ChannelUse::kScatter || use == ChannelUse::kAllReduce;
  SlotStates states;
  if (compression.rounds != nullptr && summed) {
    // A codec of matrices sends elements of no matrix as they are.
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
    const ResidualSpec& residual = compression.rule.residual;
    if (residual.kind != ResidualKind::kNone)
      bytes += residual_bytes({.kind = ResidualKind::kErrorFeedback, .on_skip = residual.on_skip}, count);
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

// Fills those values of a state that are named `residual`; counts them, and all others.
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
  // The dots around the data rank in the name.
  const size_t before_data = name_.find('.', name_.rfind("/rank")), after_data = name_.find('.', before_data + 1);
  for (auto& entry : slots_) {
    Slot& slot = entry.second;
    const auto fill = [&](const char* what, bool of_sums, View residual) {
      const auto stored_name = [&](int rank) {
        return "coding/" + name_.substr(0, before_data + 1) + std::to_string(rank) + name_.substr(after_data) + "/" +
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
          const int sender = rank % ranks == owner ? (owner + 1) % ranks : rank % ranks;  // not the owner
          if ((of_sums ? owner : sender) != slot.me) continue;
          const std::span<float> part = std::span(share).first(static_cast<size_t>(n));
          old.read(stored_name(rank), first, part);
          for (size_t i = 0; i < part.size(); ++i) sum[static_cast<size_t>(first) + i] += part[i];
        }
      }
      const View all(sum.data(), DType::f32, {residual.count()});
      if (device_ == nullptr) return convert(all, residual), true;
      std::vector<char> on_host(residual.bytes());
      convert(all, View(on_host.data(), residual.dtype, {residual.count()}));
      device_->copy_at_rest(residual.data, on_host.data(), on_host.size());
      return true;
    };
    const auto visit = [&](const std::unique_ptr<CompressionState>& state, const char* what, bool of_sums) {
      const std::function<bool(View)> fill_one = [&](View residual) { return fill(what, of_sums, residual); };
      AdoptingVisitor visitor(fill_one, done);
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
