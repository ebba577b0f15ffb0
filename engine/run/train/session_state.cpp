// Decides which state of a checkpoint this run takes over: moments, momentum, residuals and warm starts.
#include <algorithm>
#include <span>
#include <utility>

#include "data/batch_ramp.h"
#include "engine/base/core/log.h"
#include "engine/run/checkpoint/agreement.h"
#include "engine/run/checkpoint/stored_tensors.h"
#include "engine/run/config/resolved_json.h"
#include "engine/run/train/run_session.h"

namespace thinwire {
namespace {

constexpr const char* kSkippedSamples = "progress/skipped_samples";

bool stores(const Manifest& manifest, std::string_view prefix) {
  return std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                     [&](const auto& t) { return t.name.starts_with(prefix); });
}

// Whether a checkpoint holds every tensor that is visited, with the same size and dtype.
class StoredLookup final : public StateVisitor {
 public:
  explicit StoredLookup(const StoredTensors& stored) : stored_(stored) {}
  void tensor(const GlobalSlice& slice) override {
    const ManifestTensor* const found = stored_.find(slice.name);
    all_ = all_ && found != nullptr && found->place.rows * found->place.cols == slice.rows * slice.cols &&
           found->dtype == to_st_dtype(slice.local.dtype);
  }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  void text(const std::string&, std::string&) override {}
  bool all_found() const { return all_; }

 private:
  const StoredTensors& stored_;
  bool all_ = true;
};

}  // namespace

void refuse_uncounted_moments(const VerifiedCheckpoint& found) {
  const Manifest& manifest = found.manifest;
  if (manifest.integers.contains("adam_m/updates") || manifest.integers.contains("adam_v/updates")) return;
  if (!stores(manifest, "adam_m/")) return;
  throw_bad_config(found.path +
                   ": this checkpoint is of an older format: it lacks \"adam_m/updates\", the number of steps that "
                   "Adam's moments have seen. Go on without its moments, in another run_dir: load=" +
                   found.path + " no_load_optim=true; or resume it with the build that wrote it");
}

void complete_progress(const Manifest& manifest, const DataConfig& data, TrainProgress& progress) {
  if (manifest.integers.contains(kSkippedSamples)) return;
  // Of steps that took other batches than now, the mean.
  progress.skipped_samples =
      data.done_iters > 0 ? progress.consumed_samples / data.done_iters * progress.skipped
                          : std::max<int64_t>(0, progress.consumed_samples - samples_after(data, progress.updates));
}

bool RunSession::go_on_from(const VerifiedCheckpoint& found, const RunState& state, bool with_optimizer) {
  refuse_other_model(found);
  warn_of_other_order(found);
  LoadOptions options = load_options();
  bool replica_loaded = false;
  if (with_optimizer) {
    take_momentum(found.manifest, options);
    if (config_.run.optim.kind == OptimizerKind::kAdamW) refuse_uncounted_moments(found);
    replica_loaded = take_compression_state(found, state.replica, options);
  } else {
    // The scaler is the optimizer's, as in NeoX and Megatron.
    options.unwanted_prefixes = {"adam_m/", "adam_v/",  "sgd_momentum/", "loss_scaler/",
                                 "coding/", "replica/", "revision/",     "spike/"};
  }
  const nlohmann::json none, config = found.manifest.info.value("config", none);
  const std::string now = config_.values.at("precision"),
                    was = config.is_object() ? config.value("precision", now) : now;
  if (was != now) {
    options.unwanted_prefixes.push_back("loss_scaler/");  // the scale of another precision, which may be none
    log_warning("warning: the checkpoint was written under precision " + was + ", now it is " + now);
  }
  if (!found.manifest.integers.contains(kSkippedSamples)) options.unwanted_prefixes.push_back(kSkippedSamples);
  load_checkpoint(found, state.visit(false), options, job_.control());
  complete_progress(found.manifest, config_.run.data, state.progress);
  // The schedule is part of the optimizer's state, as in NeoX and Megatron: it begins anew, and so do warm-ups and
  // ramps of the rules, whose states were left behind, too.
  if (!with_optimizer) state.progress.updates = 0, state.progress.skipped_samples = state.progress.consumed_samples;
  if (with_optimizer) adopt_residuals(found, state.replica);
  return replica_loaded;
}

// Momentum may be switched on or off in the middle of a run. One that was not stored starts at zero, as the buffers do.
void RunSession::take_momentum(const Manifest& manifest, LoadOptions& options) const {
  const OptimConfig& optim = config_.run.optim;
  const bool wanted = optim.kind == OptimizerKind::kSgd && optim.momentum != 0.0;
  if (wanted == stores(manifest, "sgd_momentum/")) return;
  options.unwanted_prefixes.push_back("sgd_momentum/");
  log_warning(wanted ? "warning: momentum starts at zero: the checkpoint was written with optimizer.params.momentum 0"
                     : "warning: the checkpoint's momentum is left behind: optimizer.params.momentum is 0 now");
}

// Residuals and warm starts are loaded only from a checkpoint of the same layout and rules. Where the number of data
// ranks alone differs, adopt_residuals() follows; otherwise they start at zero, and the log says so. Returns whether
// the checkpoint holds this rank's weights as a compressed parameter all-gather left them.
bool RunSession::take_compression_state(const VerifiedCheckpoint& found, Replica& replica, LoadOptions& options) {
  const Manifest& manifest = found.manifest;
  const StoredTensors stored(found.path, manifest);
  bool replica_loaded = replica.has_replica_state();
  if (replica_loaded) {
    StoredLookup lookup(stored);
    replica.visit_synced(lookup, false);
    replica_loaded = lookup.all_found();
  }
  if (!replica_loaded) options.unwanted_prefixes.push_back("replica/");
  // Missing where timing had decided nothing yet or no longer did, and in older formats: trials begin anew.
  if (manifest.texts.count("revision/list") == 0)
    options.unwanted_prefixes.push_back("revision/");
  else if (config_.run.compression.adapt && manifest.texts.count("revision/trials") == 0)
    options.unwanted_prefixes.push_back("revision/trials");
  if (manifest.texts.count("spike/losses") == 0) options.unwanted_prefixes.push_back("spike/");
  // Names and sizes alone prove nothing: under other ranks or rules the same rank and slot can be of other elements.
  bool fits = other_layout(manifest.info).empty() && same_rules(manifest.info) && same_tokens(manifest.info) &&
              manifest.info.value("cut", cut_) == cut_;  // older checkpoints have no cut
  if (replica.mesh() != nullptr) {
    StoredLookup lookup(stored);
    replica.mesh()->visit_states(lookup);
    fits = fits && lookup.all_found();
  }
  fits = job_.control().agree_max(fits ? 0 : 1) == 0;
  if (fits && replica.mesh() != nullptr) return replica_loaded;
  options.unwanted_prefixes.push_back("coding/");
  if (other_data_ranks(manifest.info) > 0 && replica.mesh() != nullptr) return replica_loaded;
  if (stores(manifest, "coding/") || (replica.mesh() != nullptr && replica.mesh()->state_bytes() > 0)) {
    log_warning(
        "residuals and warm starts of the compression start at zero: the checkpoint was written by another layout "
        "or other rules");
  }
  return replica_loaded;
}

// The number of data ranks that wrote a checkpoint, where it differs from this run in nothing else; otherwise 0.
int64_t RunSession::other_data_ranks(const nlohmann::json& info) const {
  nlohmann::json here = checkpoint_info().at("layout");
  if (!info.contains("layout") || !same_rules(info) || info.value("cut", cut_) != cut_) return 0;
  const int64_t data = info.at("layout").value("data", int64_t{0});
  if (data == here.at("data")) return 0;
  here["data"] = data;
  return here == info.at("layout") ? data : 0;
}

void RunSession::adopt_residuals(const VerifiedCheckpoint& found, Replica& replica) {
  const int64_t before = other_data_ranks(found.manifest.info);
  if (before == 0 || replica.mesh() == nullptr) return;
  AdoptedStates done;
  on_all_ranks(job_.control(), kMeetEvery, [&](const GotOn& got_on) {
    StoredTensors stored(found.path, found.manifest, got_on);
    OldResiduals old;
    old.ranks = static_cast<int>(before);
    old.count = [&](const std::string& name) {
      const ManifestTensor* const tensor = stored.find(name);
      const bool is_known = tensor != nullptr && (tensor->dtype == StDtype::kF32 || tensor->dtype == StDtype::kBF16);
      return is_known ? tensor->place.rows * tensor->place.cols : -1;
    };
    old.read = [&](const std::string& name, int64_t first, std::span<float> out) {
      const ManifestTensor& tensor = *stored.find(name);
      const auto n = static_cast<int64_t>(out.size());
      SlicePlace place = SlicePlace::whole(tensor.place.rows, tensor.place.cols);
      place.first = first, place.count = n;
      if (tensor.dtype == StDtype::kF32) return stored.read(name, place, std::as_writable_bytes(out));
      std::vector<Bf16> halves(out.size());
      stored.read(name, place, std::as_writable_bytes(std::span(halves)));
      std::transform(halves.begin(), halves.end(), out.begin(), [](Bf16 h) { return to_float(h); });
    };
    done = replica.mesh()->adopt_residuals(old);
  });
  const bool adopts = job_.control().agree_max(done.residuals > 0 ? 1 : 0) != 0;
  const bool leaves = job_.control().agree_max(done.others > 0 ? 1 : 0) != 0 ||
                      (!adopts && stores(found.manifest, "coding/"));  // one data rank has no state to take them
  const std::string ranks = std::to_string(before) + " data ranks wrote the checkpoint, now there are " +
                            std::to_string(config_.run.layout.data);
  if (adopts) log_info("residuals of dp.gradient are dealt out anew, their sums stay: " + ranks);
  if (leaves) {
    log_warning((adopts ? "other residuals and warm starts" : "residuals and warm starts") +
                (" of the compression start at zero: " + ranks));
  }
}

namespace {

// A parameter that changes over the run: [[place, value], ...].
bool is_ramp(const nlohmann::json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(), [](const auto& pair) { return pair.is_array() && pair.size() == 2; });
}

// Older versions did not write these keys: the values erased here are the only ones that they knew.
void erase_defaults(nlohmann::json& rules) {
  if (!rules.is_structured()) return;
  // Places may change in the middle of a run, as warm-ups may: shares of train_iters do with it.
  if (is_ramp(rules)) {
    for (nlohmann::json& pair : rules) {
      const nlohmann::json value = pair.back();
      pair = value;
    }
    return;
  }
  if (rules.is_object()) rules.erase("warmup_steps");  // may change in the middle of a run
  for (const auto& [key, value] : {std::pair("residual_dtype", "fp32"), std::pair("magnitude", "mean")})
    if (rules.is_object() && rules.value(key, nlohmann::json()) == value) rules.erase(key);
  for (nlohmann::json& each : rules) erase_defaults(each);
}

}  // namespace

// Whether the compression rules are the same, apart from what may change in the middle of a run. With them the way in
// which an embedding of two stages is summed: it says of which elements a rank's contribution is coded.
bool RunSession::same_rules(const nlohmann::json& info) const {
  const bool of_two_stages = config_.run.model.tied_head && config_.run.layout.pipeline > 1;
  const auto rules_in = [of_two_stages](const nlohmann::json& config) {
    nlohmann::json rules = coding_rules(config);
    erase_defaults(rules);
    const std::string sync = of_two_stages ? config.value("embedding_sync", std::string("fused")) : std::string();
    return std::pair<nlohmann::json, std::string>(std::move(rules), sync);
  };
  return info.contains("config") && rules_in(info.at("config")) == rules_in(resolved_json(config_));
}

// Whether residuals of messages between stages, which have a row for each token of a rank, are of the same tokens.
// info: of a checkpoint with the same rules.
bool RunSession::same_tokens(const nlohmann::json& info) const {
  const RunConfig& run = config_.run;
  const auto keeps = [&](Site site) {
    return std::ranges::any_of(run.compression.at(site),
                               [](const SiteRule& rule) { return rule.residual.kind != ResidualKind::kNone; });
  };
  if (run.layout.pipeline == 1 || (!keeps(Site::kPpForward) && !keeps(Site::kPpBackward))) return true;
  return info.at("config").value("context_parallel_size", run.layout.context) == run.layout.context;
}

std::string RunSession::other_layout(const nlohmann::json& info) const {
  const nlohmann::json here = checkpoint_info().at("layout");
  if (!info.contains("layout") || info.at("layout") == here) return "";
  return "; it was saved by another layout: " + info.at("layout").dump() + ", now " + here.dump();
}

}  // namespace thinwire
