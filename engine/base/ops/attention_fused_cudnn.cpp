// cuDNN's fused attention through its front-end headers. The one file that includes them: they take half a minute.
// attention_calls.h says which calls an op becomes.
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <chrono>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/ops/attention_calls.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cuda_state.h"

namespace thinwire {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV, kMask };

Tensor_attributes tensor(const char* name, Uid uid, std::vector<int64_t> dim, std::vector<int64_t> stride) {
  return Tensor_attributes().set_name(name).set_uid(uid).set_dim(std::move(dim)).set_stride(std::move(stride));
}

std::vector<int64_t> with_unit(const AttentionCall::Strides& s) {
  return {s[0], s[1], s[2], 1};
}

// sm: of a GPU that need not be there; 0: the one at hand. (Nodes copy it when they are added.)
std::shared_ptr<fe::graph::Graph> make_graph(const AttentionCall& c, int sm = 0) {
  auto graph = std::make_shared<fe::graph::Graph>();
  if (sm > 0) graph->set_sm_version(sm);
  graph->set_io_data_type(c.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const std::vector<int64_t> q_dim = {c.batch, c.q_heads, c.q_len, c.head_dim},
                             kv_dim = {c.batch, c.kv_heads, c.kv_len, c.head_dim},
                             lse_dim = {c.batch, c.q_heads, c.q_len, 1},
                             lse_stride = {c.q_heads * c.q_len, c.q_len, 1, 1};
  auto q = graph->tensor(tensor("q", kQ, q_dim, with_unit(c.q)));
  auto k = graph->tensor(tensor("k", kK, kv_dim, with_unit(c.k)));
  auto v = graph->tensor(tensor("v", kV, kv_dim, with_unit(c.v)));
  // cuDNN's own random numbers depend on its tiles; ours on the sample, the head, the query and the key.
  const auto number = [](float value) { return std::make_shared<Tensor_attributes>(value); };
  const float rest = attention_dropout_scale(c).rest;
  const int64_t square = c.q_len * c.kv_len;
  std::shared_ptr<Tensor_attributes> mask;
  if (c.dropout > 0.0f)
    mask = graph->tensor(
        tensor("mask", kMask, {c.batch, c.q_heads, c.q_len, c.kv_len}, {c.q_heads * square, square, c.kv_len, 1}));
  const auto masked = [&](auto attributes, const char* name) {
    attributes.set_name(name).set_attn_scale(c.scale);
    const auto corner = c.kv_len > c.q_len ? fe::DiagonalAlignment_t::BOTTOM_RIGHT : fe::DiagonalAlignment_t::TOP_LEFT;
    if (c.causal) attributes.set_diagonal_alignment(corner).set_diagonal_band_right_bound(0);
    return attributes;
  };
  const auto writes = [&](const auto& result, Uid uid, std::vector<int64_t> dim, const AttentionCall::Strides& op,
                          const AttentionCall::Strides& part) {
    result->set_output(true).set_uid(uid).set_dim(std::move(dim)).set_stride(with_unit(c.part ? part : op));
  };
  const AttentionCall::Strides q_part = packed_strides(c.q_len, c.q_heads, c.head_dim),
                               kv_part = packed_strides(c.kv_len, c.kv_heads, c.head_dim);
  if (!c.backward) {
    auto attributes = masked(fe::graph::SDPA_attributes(), "attention").set_generate_stats(c.statistics);
    // Parts without a diagonal, too, on the kernels of those that have one.
    if (c.part) attributes.set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    if (mask) attributes.set_dropout(mask, number(rest));
    auto [o, lse] = graph->sdpa(q, k, v, attributes);
    writes(o, kO, q_dim, c.o, q_part);
    if (c.statistics)
      lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT).set_dim(lse_dim).set_stride(lse_stride);
    return graph;
  }
  auto o = graph->tensor(tensor("o", kO, q_dim, with_unit(c.o)));
  auto d_o = graph->tensor(tensor("do", kDO, q_dim, with_unit(c.o)));
  auto lse = graph->tensor(tensor("lse", kLse, lse_dim, lse_stride).set_data_type(fe::DataType_t::FLOAT));
  auto attributes =
      masked(fe::graph::SDPA_backward_attributes(), "attention_backward").set_deterministic_algorithm(c.deterministic);
  if (mask) attributes.set_dropout(mask, number(rest), number(1.0f / rest));
  auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, d_o, lse, attributes);
  writes(dq, kDQ, q_dim, c.q, q_part);
  writes(dk, kDK, kv_dim, c.k, kv_part);
  writes(dv, kDV, kv_dim, c.v, kv_part);
  return graph;
}

void* at(const View& view, int64_t element) {
  return static_cast<char*>(view.data) + static_cast<size_t>(element) * size_of(view.dtype);
}

std::string version_text(size_t v) {
  return "cuDNN " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

// Throws where the GPU is at fault or has too little memory, which the library says in a text alone; else returns.
void throw_fault_of_gpu(fe::error_t fault, const char* call, int line) {
  throw_gpu_fault(call, __FILE__, line);
  const std::string said = fault.get_message();
  for (const char* words : {"DEVICE_ALLOCATION_FAILED", "out of memory"})
    if (said.find(words) != std::string::npos) cuda_failed(cudaErrorMemoryAllocation, call, __FILE__, line);
}

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(CudaState& state, cudnnHandle_t handle) : state_(state), handle_(handle) {}
  ~CudnnAttention() override { (void)cudnnDestroy(handle_); }

  bool forward(Exec& exec, const AttentionForward& op) override {
    AttentionCalls calls;
    if (!attention_calls(op, kAttentionWorkspace, calls) || (calls.call.part && !parts_)) return false;
    const Plan& plan = plan_of(calls.call);
    if (!plan.graph) return false;
    for (const AttentionCalls::Start& start : calls.starts) {
      std::unordered_map<int64_t, void*> pointers = common(op, start);
      if (op.lse) pointers[kLse] = at(op.lse, start.lse);
      const std::byte* written = execute(exec, plan, op, calls, start, pointers);
      if (calls.call.part) attention_merge_cuda(exec, op, calls, start, written);
    }
    return true;
  }

  bool backward(Exec& exec, const AttentionBackward& op) override {
    AttentionCalls calls;
    if (!attention_calls(op, exec.deterministic, kAttentionWorkspace, calls) || (calls.call.part && !parts_))
      return false;
    const Plan& plan = plan_of(calls.call);
    if (!plan.graph) return false;
    for (const AttentionCalls::Start& start : calls.starts) {
      std::unordered_map<int64_t, void*> pointers = common(op, start);
      pointers[kLse] = at(op.lse, start.lse);
      pointers[kDO] = at(op.dout, start.o);
      pointers[kDQ] = at(op.dq, start.q);
      pointers[kDK] = at(op.dk, start.k);
      pointers[kDV] = at(op.dv, start.v);
      const std::byte* written = execute(exec, plan, op, calls, start, pointers);
      if (calls.call.part) attention_add_cuda(exec, op, calls, start, written);
    }
    return true;
  }

 private:
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;  // nullptr: the library does not take the shape
    size_t workspace = 0;
  };

  template <typename Op>
  static std::unordered_map<int64_t, void*> common(const Op& op, const AttentionCalls::Start& start) {
    return {{kQ, at(op.q, start.q)}, {kK, at(op.k, start.k)}, {kV, at(op.v, start.v)}, {kO, at(op.out, start.o)}};
  }

  const Plan& plan_of(const AttentionCall& call) {
    const auto found = plans_.find(call);
    if (found != plans_.end()) return found->second;
    const auto begin = std::chrono::steady_clock::now();
    Plan plan{make_graph(call), 0};
    fe::error_t fault = plan.graph->validate();
    if (fault.is_good()) fault = plan.graph->build_operation_graph(handle_);
    if (fault.is_good()) fault = plan.graph->create_execution_plans({fe::HeurMode_t::A});
    if (fault.is_good()) fault = plan.graph->check_support();
    if (fault.is_good()) fault = plan.graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    int64_t bytes = 0;
    if (fault.is_good()) fault = plan.graph->get_workspace_size(bytes);
    plan.workspace = static_cast<size_t>(bytes);
    const std::string what = "attention of length " + std::to_string(call.q_len) +
                             (call.part ? std::string(" over ") + (call.causal ? "the last of " : "all of ") +
                                              std::to_string(call.kv_len) + " keys"
                                        : std::string()) +
                             ", " + std::to_string(call.q_heads) + "/" + std::to_string(call.kv_heads) +
                             " heads of size " + std::to_string(call.head_dim) + ", batch " +
                             std::to_string(call.batch) + (call.dropout > 0.0f ? ", dropout" : "") +
                             (!call.backward       ? ", forward"
                              : call.deterministic ? ", deterministic backward"
                                                   : ", backward");
    if (fault.is_bad()) {
      // No reason to fall back: this rank alone would then run other kernels.
      throw_fault_of_gpu(fault, "cuDNN's plan", __LINE__);
      attention_falls_back(what, fault.get_message());
      plan = {};
    } else {
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      log_info(what + ": plan in " + std::to_string(took.count()) + " ms, workspace " + std::to_string(bytes) +
               " bytes, priced at " + std::to_string(call.backward ? attention_workspace(call) : 0));
    }
    return plans_.emplace(call, std::move(plan)).first->second;
  }

  // Where a part has been written.
  template <typename Op>
  const std::byte* execute(Exec& exec, const Plan& plan, const Op& op, const AttentionCalls& calls,
                           const AttentionCalls::Start& start, std::unordered_map<int64_t, void*>& pointers) {
    const cudaStream_t stream = stream_of(exec);
    const size_t mask = (attention_mask_bytes(calls.call) + 511) / 512 * 512;
    const AttentionPart part = attention_part(calls.call);
    const size_t bytes = mask + part.bytes + plan.workspace;
    std::byte* const scratch = bytes > 0 ? state_.attention_scratch().take(bytes, stream) : nullptr;
    if (mask > 0) {
      pointers[kMask] = scratch;
      attention_mask_cuda(exec, op.dropout, op.shape, calls, start, scratch);
    }
    std::byte* const written = scratch + mask;
    if (calls.call.part && calls.call.backward) {
      pointers[kDQ] = written + part.q, pointers[kDK] = written + part.k, pointers[kDV] = written + part.v;
    } else if (calls.call.part) {
      pointers[kO] = written + part.q;
      if (calls.call.statistics) pointers[kLse] = written + part.lse;
    }
    if (const cudnnStatus_t status = cudnnSetStream(handle_, stream); status != CUDNN_STATUS_SUCCESS) {
      throw_gpu_fault("cudnnSetStream", __FILE__, __LINE__);
      throw Error(ExitCode::kInternal, std::string("cuDNN: cudnnSetStream: ") + cudnnGetErrorString(status));
    }
    fe::error_t fault = plan.graph->execute(handle_, pointers, written + part.bytes);
    if (fault.is_bad()) {
      throw_fault_of_gpu(fault, "cuDNN's attention", __LINE__);
      throw Error(ExitCode::kInternal, "cuDNN: attention failed: " + fault.get_message());
    }
    return written;
  }

  CudaState& state_;
  cudnnHandle_t handle_;
  const bool parts_ = attention_takes_parts();
  std::map<AttentionCall, Plan> plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(CudaState& state) {
  if (attention_choice() == AttentionChoice::kOwn) return nullptr;
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
    throw_gpu_fault("cudnnCreate", __FILE__, __LINE__);
    if (status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
      cuda_failed(cudaErrorMemoryAllocation, "cudnnCreate", __FILE__, __LINE__);
    attention_falls_back("attention", std::string("cuDNN does not start: ") + cudnnGetErrorString(status));
    return nullptr;
  }
  return std::make_unique<CudnnAttention>(state, handle);
}

std::string fused_attention_name() {
  return version_text(cudnnGetVersion());
}

std::string attention_support_fault(int sm, const std::string& device_json, const AttentionQuestion& q) {
  const auto properties = std::make_shared<fe::DeviceProperties>();
  const std::vector<uint8_t> bytes(device_json.begin(), device_json.end());
  if (fe::error_t fault = properties->deserialize(bytes); fault.is_bad()) return fault.get_message();
  AttentionBackward op =
      packed_attention(q.dtype, q.batch, q.length, q.groups, q.heads_per_group, q.head_dim, q.heads_per_group > 1);
  if (q.keys > 0) take_part(op, q.keys, q.causal ? q.keys - q.length : q.keys);
  AttentionCalls calls;
  if (!attention_calls(op, q.deterministic, kAttentionWorkspace, calls)) return "not for the library";
  AttentionCall& c = calls.call;
  c.backward = q.backward, c.statistics = true, c.dropout = q.dropout;
  const std::shared_ptr<fe::graph::Graph> graph = make_graph(c, sm);
  graph->set_device_properties(properties);
  fe::error_t fault = graph->validate();
  if (fault.is_good()) fault = graph->build_operation_graph(nullptr);
  if (fault.is_good()) fault = graph->create_execution_plans({fe::HeurMode_t::A});
  if (fault.is_good()) fault = graph->check_support();
  return fault.is_bad() ? "cuDNN: " + fault.get_message() : std::string();
}

std::string device_properties_json(int ordinal) {
  fe::DeviceProperties properties;
  std::vector<uint8_t> bytes;
  if (properties.set_device_id(ordinal).build().is_bad() || properties.serialize(bytes).is_bad()) return {};
  return {bytes.begin(), bytes.end()};
}

}  // namespace thinwire
