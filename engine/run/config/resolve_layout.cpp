// The resolver's topics about the layout: tensor and pipeline cuts, placement, how messages travel, what is traced.
#include <charconv>
#include <cmath>

#include "engine/base/core/sequence_cut.h"
#include "engine/run/config/resolver.h"
#include "parallel/zero/placement.h"

namespace thinwire {
namespace {

// 0 replicated, 1 pair, 2 node, 3 global: each level holds the ones before it.
int width_of(const std::string& level) {
  return level == "global" ? 3 : level == "node" ? 2 : level == "pair" ? 1 : 0;
}

// "7", "5-20", [5, 20]: a count, or first and last; nullopt if it is neither.
std::optional<nlohmann::json> range_of(const nlohmann::json& value) {
  const auto whole = [](const nlohmann::json& n) {
    return n.is_number_integer() ||
           (n.is_number() && n == std::floor(n.get<double>()) && std::abs(n.get<double>()) < 1e15);
  };
  if (value.is_array()) {
    if (value.size() != 2 || !whole(value[0]) || !whole(value[1])) return std::nullopt;
    return nlohmann::json{value[0].get<int64_t>(), value[1].get<int64_t>()};
  }
  if (!value.is_string()) return value;
  const std::string text = value.get<std::string>();
  int64_t first = 0, last = 0;
  const char* const end = text.data() + text.size();
  auto r = std::from_chars(text.data(), end, first);
  if (r.ec != std::errc()) return std::nullopt;
  if (r.ptr == end) return nlohmann::json(first);
  if (*r.ptr != '-' && *r.ptr != ':') return std::nullopt;
  r = std::from_chars(r.ptr + 1, end, last);
  if (r.ec != std::errc() || r.ptr != end) return std::nullopt;
  return nlohmann::json{first, last};
}

}  // namespace

int64_t data_ranks_on_node(int64_t ranks, int64_t data, int64_t tensor, int64_t on_node) {
  int64_t first_run = 0;
  for (int64_t base = 0; base < ranks; base += data * tensor) {
    for (int64_t t = 0; t < tensor; ++t) {
      int64_t run = 0;
      for (int64_t d = 0; d <= data; ++d) {
        const int64_t rank = base + d * tensor + t;
        if (d == data || (d > 0 && rank / on_node != (rank - tensor) / on_node)) {
          if (first_run == 0) first_run = run;
          if (run != first_run) return 0;
          run = 0;
        }
        ++run;
      }
    }
  }
  return first_run;
}

void Resolver::tensor_cut() {
  if (!known({"model_parallel_size"})) return;
  const int64_t t = integer("model_parallel_size");
  for (const char* key : {"num_attention_heads", "num_kv_heads"}) {
    if (!known({key}) || integer(key) % t == 0) continue;
    // KV heads default to the query heads: one message is enough.
    if (key == std::string("num_kv_heads") && known({"num_attention_heads"}) &&
        integer(key) == integer("num_attention_heads"))
      continue;
    fail({"model_parallel_size", key}, "model_parallel_size " + str(t) + " must divide " + key + " " +
                                           str(integer(key)) + ": a rank holds whole heads");
  }
  // Feed-forward width and vocabulary are cut unevenly where need be, but nobody may go without.
  const auto enough = [&](const char* key, int64_t parts) {
    if (parts < t)
      fail({"model_parallel_size", key}, "model_parallel_size " + str(t) + " leaves ranks without a part of " + key +
                                             " (" + str(parts) + "); give at most as many");
  };
  if (known({"ffn_hidden_size"})) enough("ffn_hidden_size", integer("ffn_hidden_size"));
  if (known({"vocab_size", "make_vocab_size_divisible_by"})) {
    const int64_t multiple = integer("make_vocab_size_divisible_by");
    enough("vocab_size", (integer("vocab_size") + multiple - 1) / multiple * multiple);
  }
  if (t == 1 && known({"sequence_parallel"}) && flag("sequence_parallel"))
    note("sequence_parallel", "has no effect on one tensor-parallel rank");
}

void Resolver::sequence_cut() {
  if (!known({"context_parallel_size", "seq_length"})) return;
  const int64_t ranks = integer("context_parallel_size"), length = integer("seq_length");
  if (SequenceCut{length, 0, static_cast<int>(ranks)}.least() == 0 && ranks > 1)
    fail({"context_parallel_size", "seq_length"},
         "cuts sequences of " + str(length) + " tokens into " + str(2 * ranks) +
             " runs, two for each rank: some would be empty; give at most " + str(std::max<int64_t>(1, length / 2)));
  if (ranks == 1) note_unread({"cp_comm_type"}, "there is one context-parallel rank");
  if (ranks == 1 || !is("cp_comm_type", "a2a") || !known({"num_kv_heads", "model_parallel_size"})) return;
  const int64_t heads = integer("num_kv_heads") / integer("model_parallel_size");
  if (heads % ranks != 0)
    fail({"context_parallel_size", "num_kv_heads"},
         "a2a gives every rank a share of the KV heads: context_parallel_size " + str(ranks) + " must divide " +
             str(heads) + " of them (num_kv_heads / model_parallel_size); or say cp_comm_type all_gather or p2p");
  if (length % (2 * ranks) != 0)
    fail({"seq_length", "context_parallel_size"}, "a2a needs runs of equal length: seq_length " + str(length) +
                                                      " is not a multiple of " + str(2 * ranks) +
                                                      " (2 * context_parallel_size); or say cp_comm_type "
                                                      "all_gather or p2p");
}

void Resolver::token_chunks() {
  const char* key = "sequence_chunk_size";
  if (!known({key})) return;
  if (value(key).is_string()) {  // auto
    if (!known({"head_dim", "num_attention_heads", "num_kv_heads", "ffn_hidden_size", "activation", "seq_length",
                "precision", "model_parallel_size", "context_parallel_size", "device"}))
      return;
    // What a token has of q, k, v, attention and feed-forward part, and their gradients, on one tensor rank.
    const int64_t head = integer("head_dim");
    const int64_t widths = (2 * integer("num_attention_heads") + 2 * integer("num_kv_heads")) * head +
                           (is("activation", "swiglu") ? 3 : 2) * integer("ffn_hidden_size");
    const int64_t token =
        std::max<int64_t>(1, 2 * widths / integer("model_parallel_size")) * (is("precision", "fp32") ? 4 : 2);
    const int64_t room = is("device", "cuda") ? int64_t{1} << 30 : int64_t{64} << 20;
    const int64_t fit = std::max<int64_t>(256, room / token / 64 * 64);
    set(key, fit < integer("seq_length") / integer("context_parallel_size") ? fit : 0);
  }
  const char* offload = "activation_offload";
  if (!known({offload, "device", "seq_length"})) return;
  const bool gpu = is("device", "cuda");
  if (gpu && is(offload, "disk")) fail({offload}, "disk is for CPUs; on a GPU say host, for page-locked host memory");
  if (!gpu && is(offload, "host")) note(offload, "a CPU has its activations in the host's memory already");
  const bool spills = is(offload, gpu ? "host" : "disk");
  if (spills && integer(key) == 0) set(key, integer("seq_length"));
  if (integer(key) == 0) return;
  // Named after what was asked for.
  const auto refuse_with = [&](const char* other, const std::string& message) {
    if (spills)
      fail({offload, key, other}, message);
    else
      fail({key, other}, message);
  };
  if (known({"sequence_parallel", "model_parallel_size"}) && flag("sequence_parallel") &&
      integer("model_parallel_size") > 1)
    refuse_with("sequence_parallel",
                "chunks are tokens in their order, which sequence_parallel cuts over the tensor ranks: "
                "say sequence_parallel false, or none of the two");
  if (known({"context_parallel_size"}) && integer("context_parallel_size") > 1 && !is("cp_comm_type", "all_gather"))
    refuse_with("cp_comm_type", "chunks need cp_comm_type all_gather, not " + text("cp_comm_type"));
  if (known({"pipe_parallel_size"}) && integer("pipe_parallel_size") > 1 && is("schedule", "zb_h1"))
    refuse_with("schedule", "schedule zb_h1 keeps gradients of all tokens for its weight halves: say another schedule");
}

void Resolver::pipeline_cut() {
  if (!known({"pipe_parallel_size"})) return;
  const int64_t stages = integer("pipe_parallel_size");
  if (known({"num_layers"}) && stages > integer("num_layers")) {
    return fail({"pipe_parallel_size", "num_layers"}, str(stages) +
                                                          " pipeline stages need at least as many layers; num_layers "
                                                          "is " +
                                                          str(integer("num_layers")));
  }
  if (const Setting* per = given("num_layers_per_virtual_pipeline_stage"); per != nullptr && known({"num_layers"})) {
    const int64_t each = per->value.get<int64_t>(), layers = integer("num_layers");
    if (layers % (stages * each) != 0) {
      return fail({"num_layers_per_virtual_pipeline_stage"},
                  str(layers) + " layers are not a multiple of pipe_parallel_size " + str(stages) + " * " + str(each) +
                      " layers; virtual_chunks cuts unevenly, too");
    }
    set("virtual_chunks", layers / (stages * each));
  }
  if (!known({"virtual_chunks", "schedule"})) return;
  const int64_t chunks = integer("virtual_chunks");
  // Megatron's flag alone asks for it: there is no other word for the schedule.
  if (chunks > 1 && given("schedule") == nullptr && given("num_layers_per_virtual_pipeline_stage") != nullptr)
    set("schedule", "interleaved");
  const bool interleaved = is("schedule", "interleaved");
  if (chunks > 1 && !interleaved) {
    fail({"virtual_chunks", "num_layers_per_virtual_pipeline_stage", "schedule"},
         str(chunks) + " chunks of layers per stage need schedule interleaved, not " + text("schedule"));
  } else if (known({"num_layers"}) && chunks > 1 && chunks * stages > integer("num_layers")) {
    fail({"virtual_chunks", "pipe_parallel_size"}, str(stages) + " stages of " + str(chunks) +
                                                       " chunks need at least " + str(stages * chunks) +
                                                       " layers; num_layers is " + str(integer("num_layers")));
  }
  if (interleaved && chunks == 1 && stages > 1)
    fail({"schedule"}, "interleaved needs virtual_chunks of at least 2; with one chunk per stage say 1f1b");
  if (stages == 1) note_unread({"pipe_partition_method"}, "there is one pipeline stage");
  if (stages == 1 && given("schedule") != nullptr) note("schedule", "has no effect on one pipeline stage");
}

void Resolver::layout() {
  if (known({"pipe_parallel_size"}) && integer("pipe_parallel_size") == 0) set("pipe_parallel_size", 1);
  tensor_cut();
  pipeline_cut();
  sequence_cut();
  if (known({"pipe_partition_costs"})) {
    const nlohmann::json costs = value("pipe_partition_costs");
    if (costs.size() != 3 || costs.at(0).get<double>() <= 0.0)
      fail({"pipe_partition_costs"}, "must hold three numbers: layer (above 0), embedding, head");
    else if (known({"pipe_partition_method", "link_gbps"}) && !is("pipe_partition_method", "time") &&
             real("link_gbps") <= 0.0)
      note("pipe_partition_costs", "has no effect without pipe_partition_method time, or link_gbps and critical rules");
  }
}

void Resolver::placement() {
  // The usual three placements follow from the ZeRO stage; an explicit level wins.
  if (!known({"zero_optimization.stage"})) return;
  const int64_t stage = integer("zero_optimization.stage");
  const auto derive = [&](const char* key, int64_t from) {
    if (!broken(key) && value(key).is_null()) set(key, stage >= from ? "global" : "replicated");
  };
  derive("placement.weights", 3);
  derive("placement.gradients", 2);
  derive("placement.optimizer", 1);
  const auto nest = [&](const char* inner, const char* outer) {
    if (!known({inner, outer}) || width_of(text(inner)) <= width_of(text(outer))) return;
    fail({inner, outer, "zero_optimization.stage"},
         std::string(inner) + " " + text(inner) + " is wider than " + outer + " " + text(outer) +
             "; widths nest: weights <= gradients <= optimizer, of replicated < pair < node < global");
  };
  nest("placement.weights", "placement.gradients");
  nest("placement.gradients", "placement.optimizer");
  const bool second = known({"placement.secondary"}) && !is("placement.secondary", "replicated");
  if (second && known({"placement.weights"})) {
    if (is("placement.weights", "replicated")) {
      fail({"placement.secondary", "placement.weights"},
           "a secondary copy needs sharded weights (placement.weights or zero_optimization.stage 3)");
    } else if (width_of(text("placement.secondary")) >= width_of(text("placement.weights"))) {
      fail({"placement.secondary", "placement.weights"}, "the secondary copy must be narrower than placement.weights " +
                                                             text("placement.weights") + "; otherwise it is of no use");
    }
  }
  if (known({"hold"}) && !is("hold", "auto") && is("placement.weights", "replicated"))
    note("hold", "has no effect while weights are replicated");
  if (!known({"global_num_gpus", "pipe_parallel_size", "model_parallel_size"})) return;
  const int64_t ranks = integer("global_num_gpus"), tensor = integer("model_parallel_size");
  const int64_t data = ranks / (integer("pipe_parallel_size") * tensor);
  if (data == 0) return;  // batch() has refused it
  const int64_t on_node = ranks_per_node();
  for (const char* key : {"placement.weights", "placement.gradients", "placement.optimizer", "placement.secondary"}) {
    if (is(key, "pair") && data > 1 && data % 2 != 0)
      fail({key}, "a pair needs an even number of data-parallel ranks; there are " + str(data));
  }
  for (const char* key : {"placement.weights", "placement.gradients", "placement.optimizer", "placement.secondary"}) {
    if (!is(key, "node") || on_node == 0 || data_ranks_on_node(ranks, data, tensor, on_node) > 0) continue;
    return fail({"ranks_per_node", key}, std::string(key) + " node: nodes of " + str(on_node) + " ranks do not hold " +
                                             "equally many of the " + str(data) + " ranks of each data-parallel group" +
                                             (tensor > 1 ? " (model_parallel_size " + str(tensor) + ")" : ""));
  }
}

void Resolver::communication() {
  if (known({"communication.chunk_bytes"}) && integer("communication.chunk_bytes") % 64 != 0)
    fail({"communication.chunk_bytes"}, str(integer("communication.chunk_bytes")) +
                                            " is not a multiple of 64: pieces hold whole elements of every type");
  // Pretended nodes say nothing of machines.
  const bool pretended = known({"ranks_per_node"}) && integer("ranks_per_node") > 0;
  if (is("checksum", "auto") && options_.machines > 0)
    set("checksum", options_.machines == 1 ? nlohmann::json(false)
                    : pretended            ? nlohmann::json(true)
                                           : nlohmann::json("between_nodes"));
  const bool ranks = known({"global_num_gpus"}) && integer("global_num_gpus") > 1;
  for (const char* key : {"communication.all_reduce", "communication.reduce_scatter", "communication.all_gather"})
    if (ranks && is(key, "two_level") && ranks_per_node() == 1) note(key, "with one rank per node two_level is auto");
}

void Resolver::trace_range() {
  if (!known({"trace_steps"})) return;
  const auto range = range_of(value("trace_steps"));
  const char* const how = "must be a number of steps, or first and last: 20, [100, 110] or \"100-110\"";
  if (!range) return fail({"trace_steps"}, how);
  if (range->is_array() ? range->at(0).get<int64_t>() < 1 : range->get<int64_t>() < 1)
    return fail({"trace_steps"}, std::string(how) + "; steps count from 1");
  if (range->is_array() && range->at(1).get<int64_t>() < range->at(0).get<int64_t>())
    return fail({"trace_steps"}, "ends at step " + str(range->at(1).get<int64_t>()) + " before it starts at " +
                                     str(range->at(0).get<int64_t>()));
  set("trace_steps", *range);
  if (given("trace_steps") != nullptr && known({"trace"}) && !flag("trace"))
    note("trace_steps", "has no effect without trace");
  else if (known({"trace", "train_iters"}) && flag("trace") && range->is_array() &&
           range->at(0).get<int64_t>() > integer("train_iters"))
    note("trace_steps", "nothing is traced: train_iters is " + str(integer("train_iters")));
}

}  // namespace thinwire
