// The refusals, by topic: residuals, codecs at sites, selections, algorithms; parameters are left to the codecs.
#include "engine/run/config/rule_check.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "engine/base/core/error.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/config/rule_fields.h"
#include "parallel/zero/flat_layout.h"

namespace thinwire {
namespace {

bool is_pipeline(Site s) {
  return s == Site::kPpForward || s == Site::kPpBackward;
}
bool is_tensor(Site s) {
  return s == Site::kTpForward || s == Site::kTpBackward;
}
bool holds_tensors(Site s) {
  return s == Site::kDpGradient || s == Site::kZeroParameter || s == Site::kOuter;
}
bool has_sparse_sums(Site s) {
  return s == Site::kDpGradient || s == Site::kEmbedding || s == Site::kOuter;
}
bool is_sequence(Site site) {
  return site == Site::kSequenceForward || site == Site::kSequenceBackward;
}

class Check {
 public:
  Check(Site site, const SiteRule& rule, const RuleContext& context) : site_(site), rule_(rule), context_(context) {}

  std::vector<RuleFault> run() {
    compression(rule_.codec, rule_.residual, "");
    if (rule_.has_sum_codec) {
      if (is_pipeline(site_))
        fail({"sum.codec"}, at() + " is sent from one stage to one other: there is no sum on its way back");
      else if (site_ == Site::kZeroParameter || is_sequence(site_))
        fail({"sum.codec"}, at() + " carries no sums: everything is coded once, where it comes from");
      else
        sums();
    }
    if (!rule_.has_sum_codec) sums_like_the_first();
    if (rule_.codec.codec == "low_rank" && rule_.codec.integer("sides") == 1 && is_pipeline(site_))
      fail({"sides"}, "one factor a message is for sums over ranks: a stage that receives one keeps no other; say 2");
    selection();
    algorithm();
    if (rule_.codec.codec == "sketch" && site_ == Site::kDpGradient && context_.data > 1 &&
        32.0 * rule_.codec.real("density") * static_cast<double>(context_.data) > 31.0)
      note({"density"}, "the union of what " + std::to_string(context_.data) +
                            " ranks keep may be everything; a message whose index and union would be more bytes than "
                            "itself goes dense, and dense_messages in metrics.jsonl counts them");
    if (context_.train_iters > 0 && rule_.warmup_steps >= context_.train_iters && rule_.codec.codec != "identity")
      note({"warmup_steps"}, "the rule never starts: train_iters is " + std::to_string(context_.train_iters));
    return std::move(faults_);
  }

 private:
  std::string at() const { return std::string(name_of(site_)); }
  std::string of_the_run() const {
    return context_.train_iters > 0 ? "; shares are of train_iters, " + std::to_string(context_.train_iters) : "";
  }
  void fail(std::vector<std::string> fields, const std::string& message) {
    faults_.push_back({std::move(fields), message, false});
  }
  void note(std::vector<std::string> fields, const std::string& message) {
    faults_.push_back({std::move(fields), message, true});
  }

  void compression(const CodecSpec& c, const ResidualSpec& r, const std::string& p) {
    if (residual(c, r, p)) codec_at_site(c, r, p);
    parameters(c, r, p);
  }

  // The second compression, of what is summed already.
  void sums() {
    const std::string &first = rule_.codec.codec, &second = rule_.sum_codec.codec;
    if (codec_row(second).rounds) {
      return fail({"sum.codec"}, second +
                                     " adds up over ranks in rounds of its own: it cannot code a sum on its way back; "
                                     "block_int can");
    }
    compression(rule_.sum_codec, rule_.sum_residual, "sum.");
    if (codec_row(first).rounds)
      note({"sum.codec"}, "has no effect: what codec " + first + " sends is summed coded, so nothing is coded again");
    else if (first == "identity" && rule_.algorithm != RuleAlgorithm::kDirect)
      fail({"sum.codec", "codec"}, "codec identity leaves all hops as they are, those of sums, too; say another codec");
    else if (first == "identity" && second != "identity")
      note({"sum.codec"}, "is for sums that a placement adds up further alone, since codec is identity");
  }

  // What a residual gives back of contributions, nobody gives back of sums that are coded alike.
  void sums_like_the_first() {
    const CodecRow& row = codec_row(rule_.codec.codec);
    const bool partial = row.name == "one_bit" || (row.selects && !row.rounds && row.name != "random_k");
    const bool coded_again = context_.sums_return || rule_.algorithm == RuleAlgorithm::kTwoLevel;
    if (partial && coded_again && site_ == Site::kDpGradient && context_.data > 1 &&
        rule_.residual.kind != ResidualKind::kNone)
      note({"codec"}, row.name +
                          " codes sums, too, and without a residual, so that what they lose is lost for good; say "
                          "sum: {residual: error_feedback}, or sum identity");
  }

  // False when refused: what else could be said about the codec would be about the same mistake.
  bool residual(const CodecSpec& c, const ResidualSpec& r, const std::string& p) {
    if (r.kind == ResidualKind::kNone) {
      if (c.codec == "one_bit")
        note({p + "codec"}, "one_bit without residual error_feedback does not converge");
      else if (((codec_row(c.codec).selects && c.codec != "random_k") || c.codec == "low_rank") &&
               site_ == Site::kDpGradient)
        note({p + "codec"}, c.codec + " without residual error_feedback loses for good what it does not send");
      return true;
    }
    const std::string kind = word_of(r.kind);
    const auto refuse = [&](const std::string& why) {
      fail({p + "residual", p + "codec"}, "residual " + kind + " " + why);
      return false;
    };
    if (is_tensor(site_) || is_sequence(site_))
      return refuse("cannot be at " + at() +
                    ": what a layer sends must come out the same when it is computed again (recompute), and a residual "
                    "moves on; say none");
    if (codec_row(c.codec).lossless)
      return refuse("around codec " + c.codec + ", which loses nothing: there is no error to keep; say none");
    if (r.kind == ResidualKind::kValueDifference && site_ != Site::kZeroParameter)
      return refuse("is for zero.parameter alone: only weights have a copy at the receivers to take a difference to");
    if (r.kind == ResidualKind::kLazy && !is_pipeline(site_))
      return refuse("is for pp.forward and pp.backward, from one micro-batch to the next; here say error_feedback");
    if (site_ == Site::kZeroParameter && r.kind != ResidualKind::kValueDifference)
      return refuse(
          "cannot be at zero.parameter: the error of old weights is none of the new ones, and the master "
          "weights are exact anyway; say none or value_difference");
    if (r.kind == ResidualKind::kValueDifference && !context_.weights_persist)
      return refuse(
          "needs weights that stay: placement.weights shards them, so gathered ones lie where another layer's were and "
          "there is nothing to add a difference to; say weights replicated, or residual none");
    // Elsewhere codec_at_site refuses the sketch itself.
    if (c.codec == "sketch" && has_sparse_sums(site_) && r.kind != ResidualKind::kErrorFeedback)
      return refuse("cannot be around codec sketch; say error_feedback or none");
    if (c.codec == "low_rank" && r.kind == ResidualKind::kEma)
      return refuse("cannot be around codec low_rank; say " +
                    std::string(is_pipeline(site_) ? "lazy" : "error_feedback") + " or none");
    if (r.dtype != ResidualDtype::kFp32 && codec_row(c.codec).rounds && !is_pipeline(site_)) {
      fail({p + "residual_dtype", p + "codec"},
           "around codec " + c.codec + " a residual is kept in fp32: its rounds overwrite it in place");
      return false;
    }
    return true;
  }

  void codec_at_site(const CodecSpec& c, const ResidualSpec& r, const std::string& p) {
    const std::string& name = c.codec;
    const bool stochastic = name == "block_int" && c.text("rounding") == "stochastic";
    if (name == "low_rank" && (is_tensor(site_) || site_ == Site::kZeroParameter || is_sequence(site_)))
      fail({p + "codec"}, "low_rank cannot be at " + at() +
                              (site_ == Site::kZeroParameter
                                   ? ": weights, and their differences, are of full rank"
                                   : ": activations are of full rank, and its warm start could not be replayed under "
                                     "recompute") +
                              "; block_int can");
    if (name == "sketch" && !has_sparse_sums(site_))
      fail({p + "codec"},
           "sketch cannot be at " + at() +
               ": it adds up sparse contributions of several ranks, which only gradients are; block_int can");
    if ((name == "random_k" || stochastic) && (site_ == Site::kTpForward || site_ == Site::kSequenceForward))
      fail({p + (name == "random_k" ? "codec" : "rounding")},
           (name == "random_k" ? name : "rounding stochastic") + " cannot be at " + at() +
               ": what a layer sends must come out the same when it is computed or gathered again (recompute, sequence "
               "parallelism), and chance moves on; " +
               (name == "random_k" ? "top_k can" : "say nearest"));
    if (stochastic && site_ == Site::kZeroParameter && !context_.weights_persist)
      note({p + "rounding"},
           "placement.weights shards them, and every gather draws anew: forward and backward pass see weights that "
           "differ by the rounding; nearest gives both the same");
    const bool partial = codec_row(name).selects || name == "one_bit";
    if (partial && name != "sketch" && site_ == Site::kZeroParameter && r.kind != ResidualKind::kValueDifference)
      fail({p + "codec"},
           name + " at zero.parameter needs residual value_difference: weights that are not sent would be " +
               (name == "one_bit" ? "replaced by their signs" : "zero"));
    if (c.hadamard && codec_row(name).rounds)
      fail({p + "hadamard", p + "codec"},
           "hadamard cannot be in front of codec " + name + ": " +
               (name == "low_rank" ? "it would mix the columns of matrices" : "it would fill what is to be sparse"));
  }

  // What codecs and coders themselves refuse; the field to blame is the one that their message names.
  void parameters(const CodecSpec& c, const ResidualSpec& r, const std::string& p) {
    for (const auto& [name, ramp] : c.ramps)
      if (!std::is_sorted(ramp.begin(), ramp.end(), [](const auto& a, const auto& b) { return a.first < b.first; }))
        return fail({p + name}, "the places of a ramp ascend" + of_the_run());
    const bool said = std::any_of(faults_.begin(), faults_.end(), [](const RuleFault& f) { return !f.note; });
    std::set<int64_t> places = ramp_places(c);
    places.insert(0);
    try {
      std::set<int64_t> granules;
      for (const int64_t place : places) {
        const CodecSpec now = codec_at(c, place);
        if (now.codec == "zfp" && now.real("rate") < 2.625)  // 10 bits a block
          note({p + "rate"},
               "leaves one bit at most beside the exponent of four values, so that nearly all decode to zero; say 4");
        const MadeCodec made = make_codec(now);
        if (!said && made.codec != nullptr) granules.insert(Coder(made.codec, now, r).granule());
      }
      if (granules.size() > 1)
        fail({p + c.ramps.begin()->first},
             "a ramp must not change where messages are cut; take a block that suits all");
    } catch (const Error& e) {
      const std::string what = e.what();
      std::vector<std::pair<size_t, std::string>> named;  // by where the message names them
      for (const KeySpec& field : rule_fields()) {
        if (!field.name.starts_with(p)) continue;
        if (!field_matters(rule_, field.name) && rule_value(rule_, field.name) == rule_value(SiteRule(), field.name))
          continue;
        const std::string name = field.name.substr(p.size());
        if (name == "codec" || name.find('.') != std::string::npos) continue;
        if (const size_t at = place_of(name, what); at != std::string::npos) named.push_back({at, field.name});
      }
      std::sort(named.begin(), named.end());
      std::vector<std::string> fields;
      for (const auto& [at, field] : named) fields.push_back(field);
      fields.push_back(p + "codec");
      fail(std::move(fields), what);
    }
  }

  // Of a whole word; npos: not in the text.
  static size_t place_of(const std::string& word, const std::string& text) {
    const auto letter = [](char ch) { return std::isalnum(static_cast<unsigned char>(ch)) != 0 || ch == '_'; };
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      const size_t end = at + word.size();
      if ((at == 0 || !letter(text[at - 1])) && (end == text.size() || !letter(text[end]))) return at;
    }
    return std::string::npos;
  }

  void selection() {
    const SelectSpec& s = rule_.select;
    for (int stage : s.stages)
      if (stage >= context_.stages)
        fail({"select.stages"}, "stage " + std::to_string(stage) + " does not exist: pipe_parallel_size is " +
                                    std::to_string(context_.stages) + ", stages count from 0");
    for (int layer : s.layers)
      if (layer >= context_.layers)
        fail({"select.layers"}, "layer " + std::to_string(layer) + " does not exist: num_layers is " +
                                    std::to_string(context_.layers) + ", layers count from 0");
    if (s.micro_batches != MicroBatches::kAll) {
      const std::string kind = word_of(s.micro_batches);
      const bool gradients = site_ == Site::kDpGradient && s.micro_batches == MicroBatches::kCritical;
      if (gradients && !context_.timed)
        fail({"select.micro_batches"},
             "critical at dp.gradient needs stated times: give link_gbps and pipe_partition_costs (of a layer, "
             "embedding and head; measured ones would not decide the same in every run)");
      else if (!is_pipeline(site_) && !gradients)
        fail({"select.micro_batches"}, kind + " is for pp.forward and pp.backward, critical for dp.gradient, too: " +
                                           at() + " has no message on the plan of that kind; say all");
      else if (s.micro_batches == MicroBatches::kEpilogue && site_ == Site::kPpForward)
        fail({"select.micro_batches"},
             "epilogue means gradients sent by stages that have no forward left, so there are none "
             "at pp.forward; say critical or all");
    }
    if (is_pipeline(site_) || is_sequence(site_)) {
      const std::string what = is_pipeline(site_) ? "messages between stages are activations of no one tensor"
                                                  : "messages of attention belong to no tensor";
      if (!s.tensor_classes.empty()) fail({"select.tensor_classes"}, what + "; leave it out");
      if (!s.layers.empty() && is_pipeline(site_))
        fail({"select.layers"}, what + "; say select.stages, which names senders");
    }
    if (site_ == Site::kEmbedding && !s.stages.empty())
      fail({"select.stages"}, "first and last stage sum the embedding together, so both code it; leave it out");
    if ((is_tensor(site_) || site_ == Site::kZeroParameter) && !s.tensor_classes.empty())
      fail({"select.tensor_classes"},
           (is_tensor(site_) ? "all messages of a layer at " + at() + " are coded alike"
                             : "weights are gathered unit by unit, all tensors of a block together") +
               "; say select.layers");
    if (site_ == Site::kZeroParameter && context_.tensor > 1 && !codes_within(rule_.codec, kQuantum))
      fail({"codec", "block"},
           "codec " + rule_.codec.codec +
               " codes a tensor together with its neighbours, and tensor-parallel ranks hold some tensors whole among "
               "neighbours that differ: their copies would drift apart; take block_int or lloyd_max with a block that "
               "divides 4096");
    nothing_left();
  }

  // Selections that no message or matrix is in.
  void nothing_left() {
    const SelectSpec& s = rule_.select;
    const auto only = [&](std::initializer_list<TensorClass> classes) {
      return !s.tensor_classes.empty() &&
             std::all_of(s.tensor_classes.begin(), s.tensor_classes.end(),
                         [&](TensorClass c) { return std::find(classes.begin(), classes.end(), c) != classes.end(); });
    };
    if (site_ == Site::kEmbedding) {
      if (!s.tensor_classes.empty() && std::find(s.tensor_classes.begin(), s.tensor_classes.end(),
                                                 TensorClass::kEmbedding) == s.tensor_classes.end())
        fail({"select.tensor_classes"}, "leaves nothing: the site embedding carries class embedding alone");
      if (!s.layers.empty()) fail({"select.layers"}, "leaves nothing: layers are blocks, and the embedding is none");
      return;
    }
    if (holds_tensors(site_) && !s.layers.empty() && only({TensorClass::kEmbedding, TensorClass::kHead}))
      fail({"select.layers", "select.tensor_classes"},
           "leaves nothing: layers are blocks, and no block has tensors of class embedding or head");
    else if (rule_.codec.codec == "low_rank" && holds_tensors(site_) && only({TensorClass::kNorm, TensorClass::kBias}))
      fail({"select.tensor_classes", "codec"},
           "leaves nothing: low_rank codes matrices, and norms and biases are vectors");
  }

  void algorithm() {
    const RuleAlgorithm a = rule_.algorithm;
    if (a == RuleAlgorithm::kDirect || rule_.codec.codec == "identity") return;
    const std::string name = word_of(a);
    if (is_pipeline(site_))
      return fail({"algorithm"}, name + " is a shape of collectives; " + at() + " is sent from one stage to one other");
    if (codec_row(rule_.codec.codec).rounds)
      return fail({"algorithm", "codec"},
                  "codec " + rule_.codec.codec +
                      " adds up its payloads by plain reductions (communication.all_reduce says "
                      "how); leave algorithm out");
    if (a == RuleAlgorithm::kRing) {
      if (site_ == Site::kZeroParameter || is_sequence(site_))
        fail({"algorithm"}, "ring codes partial sums again at every hop; " + at() + " carries no sums");
      return;
    }
    if (is_sequence(site_))
      return fail({"algorithm"}, "two_level is for sums and gathers; sequence exchanges pieces one to one");
    if (context_.ranks_per_node == 0)
      return fail({"algorithm"},
                  "two_level needs to know which ranks share a node, to say what travels where: give "
                  "ranks_per_node");
    if (!holds_tensors(site_) || context_.data == 1) return;
    if (context_.data_on_node == 0)
      return fail({"algorithm"}, "two_level: nodes of " + std::to_string(context_.ranks_per_node) +
                                     " ranks do not hold equally many of the " + std::to_string(context_.data) +
                                     " ranks of each data-parallel group");
    if (context_.data_on_node == 1 || context_.data_on_node == context_.data)
      note({"algorithm"}, context_.data_on_node == 1 ? "two_level is direct: no two ranks of a group share a node"
                                                     : "two_level is direct: each group is inside of one node");
  }

  Site site_;
  const SiteRule& rule_;
  const RuleContext& context_;
  std::vector<RuleFault> faults_;
};

}  // namespace

std::vector<RuleFault> check_rule(Site site, const SiteRule& rule, const RuleContext& context) {
  return Check(site, rule, context).run();
}

std::string absent(Site site, const RuleContext& context) {
  if (is_pipeline(site) && context.stages == 1) return "there is one pipeline stage";
  if (is_tensor(site) && context.tensor == 1) return "there is one tensor-parallel rank";
  if ((site == Site::kDpGradient || site == Site::kZeroParameter) && context.data == 1)
    return "there is one data-parallel rank";
  if (site == Site::kEmbedding && context.stages == 1)
    return "there is one pipeline stage, so the embedding's gradient is dp.gradient's";
  if (is_sequence(site) && context.context == 1) return "there is one context-parallel rank";
  if (site == Site::kOuter) return "nothing is sent there in this version";
  return "";
}

}  // namespace thinwire
