// cuDNN's fused attention through its front-end headers. The one file that includes them: they take half a minute.
//
// Our q, k and v lie interleaved by KV group: [token][group][q heads | k | v][d]. cuDNN knows one stride for all heads,
// so with one q head per group the groups are its heads, in one call for the batch. With several, the groups of one
// sample take the place of its batch - q heads of a group over the one k and v they share - in a call per sample.
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <array>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/base/ops/attention_fused.h"
#include "engine/base/ops/cuda_state.h"

namespace thinwire {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kLse, kDO, kDQ, kDK, kDV };

// Strides of batch, head and token in elements; d itself is contiguous.
using Strides = std::array<int64_t, 3>;

// One call of the library. Equality of all members means that the same plan serves.
struct Call {
  int64_t batch = 0, length = 0, q_heads = 0, kv_heads = 0, head_dim = 0;
  Strides q{}, k{}, v{}, o{};
  DType dtype = DType::bf16;
  float scale = 1.0f;
  bool backward = false, statistics = true, deterministic = true;
  auto operator<=>(const Call&) const = default;
};

Tensor_attributes tensor(const char* name, Uid uid, std::vector<int64_t> dim, std::vector<int64_t> stride) {
  return Tensor_attributes().set_name(name).set_uid(uid).set_dim(std::move(dim)).set_stride(std::move(stride));
}

std::vector<int64_t> with_unit(const Strides& s) {
  return {s[0], s[1], s[2], 1};
}

// sm: of a GPU that need not be there; 0: the one at hand. (Nodes copy it when they are added.)
std::shared_ptr<fe::graph::Graph> make_graph(const Call& c, int sm = 0) {
  auto graph = std::make_shared<fe::graph::Graph>();
  if (sm > 0) graph->set_sm_version(sm);
  graph->set_io_data_type(c.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const std::vector<int64_t> q_dim = {c.batch, c.q_heads, c.length, c.head_dim},
                             kv_dim = {c.batch, c.kv_heads, c.length, c.head_dim},
                             lse_dim = {c.batch, c.q_heads, c.length, 1},
                             lse_stride = {c.q_heads * c.length, c.length, 1, 1};
  auto q = graph->tensor(tensor("q", kQ, q_dim, with_unit(c.q)));
  auto k = graph->tensor(tensor("k", kK, kv_dim, with_unit(c.k)));
  auto v = graph->tensor(tensor("v", kV, kv_dim, with_unit(c.v)));
  if (!c.backward) {
    auto [o, lse] = graph->sdpa(q, k, v,
                                fe::graph::SDPA_attributes()
                                    .set_name("attention")
                                    .set_generate_stats(c.statistics)
                                    .set_attn_scale(c.scale)
                                    .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                    .set_diagonal_band_right_bound(0));
    o->set_output(true).set_uid(kO).set_dim(q_dim).set_stride(with_unit(c.o));
    if (c.statistics)
      lse->set_output(true).set_uid(kLse).set_data_type(fe::DataType_t::FLOAT).set_dim(lse_dim).set_stride(lse_stride);
    return graph;
  }
  auto o = graph->tensor(tensor("o", kO, q_dim, with_unit(c.o)));
  auto d_o = graph->tensor(tensor("do", kDO, q_dim, with_unit(c.o)));
  auto lse = graph->tensor(tensor("lse", kLse, lse_dim, lse_stride).set_data_type(fe::DataType_t::FLOAT));
  auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, d_o, lse,
                                           fe::graph::SDPA_backward_attributes()
                                               .set_name("attention_backward")
                                               .set_attn_scale(c.scale)
                                               .set_deterministic_algorithm(c.deterministic)
                                               .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                               .set_diagonal_band_right_bound(0));
  dq->set_output(true).set_uid(kDQ).set_dim(q_dim).set_stride(with_unit(c.q));
  dk->set_output(true).set_uid(kDK).set_dim(kv_dim).set_stride(with_unit(c.k));
  dv->set_output(true).set_uid(kDV).set_dim(kv_dim).set_stride(with_unit(c.v));
  return graph;
}

// How an op is cut into calls: `count` of them, whose pointers advance by these numbers of elements.
struct Cut {
  Call call;
  int64_t count = 1, q_step = 0, k_step = 0, v_step = 0, o_step = 0, lse_step = 0;
};

bool aligned(const View& view, int64_t offset) {
  return (reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(offset) * size_of(view.dtype)) % 16 == 0;
}

bool multiples_of_8(const HeadLayout& at) {
  return at.offset % 8 == 0 && at.batch % 8 == 0 && at.token % 8 == 0 && at.group % 8 == 0 && at.head % 8 == 0;
}

// Both ops have the same members for what matters here. False: not for the library.
template <typename Op>
bool cut_op(const Op& op, Cut& cut) {
  const AttentionShape& s = op.shape;
  if (op.q.dtype != DType::bf16 && op.q.dtype != DType::f16) return false;
  if (s.part() || op.first_keys || op.window >= 0 || op.dropout.p > 0.0f || s.q_len != s.kv_len || s.q_len < 2 ||
      s.head_dim % 8 != 0 || s.batch == 0)
    return false;
  if (!multiples_of_8(op.q_at) || !multiples_of_8(op.k_at) || !multiples_of_8(op.v_at)) return false;
  for (const View& v : {op.q, op.k, op.v, op.out}) {
    if (!aligned(v, 0)) return false;
  }
  const int64_t width = s.heads() * s.head_dim;
  Call& c = cut.call;
  c.length = s.q_len, c.head_dim = s.head_dim, c.dtype = op.q.dtype, c.scale = op.scale;
  if (s.heads_per_group == 1) {
    c.batch = s.batch, c.q_heads = c.kv_heads = s.groups;
    c.q = {op.q_at.batch, op.q_at.group, op.q_at.token};
    c.k = {op.k_at.batch, op.k_at.group, op.k_at.token};
    c.v = {op.v_at.batch, op.v_at.group, op.v_at.token};
    c.o = {s.q_len * width, s.head_dim, width};
    return true;
  }
  c.batch = s.groups, c.q_heads = s.heads_per_group, c.kv_heads = 1;
  c.q = {op.q_at.group, op.q_at.head, op.q_at.token};
  // (A head stride of nothing is refused, and with one head never used.)
  c.k = {op.k_at.group, op.k_at.group, op.k_at.token};
  c.v = {op.v_at.group, op.v_at.group, op.v_at.token};
  c.o = {s.heads_per_group * s.head_dim, s.head_dim, width};
  cut.count = s.batch;
  cut.q_step = op.q_at.batch, cut.k_step = op.k_at.batch, cut.v_step = op.v_at.batch, cut.o_step = s.q_len * width;
  cut.lse_step = s.heads() * s.q_len;
  return true;
}

void* at(const View& view, int64_t element) {
  return static_cast<char*>(view.data) + static_cast<size_t>(element) * size_of(view.dtype);
}

std::string version_text(size_t v) {
  return "cuDNN " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
}

class CudnnAttention final : public FusedAttention {
 public:
  CudnnAttention(CudaState& state, cudnnHandle_t handle) : state_(state), handle_(handle) {}
  ~CudnnAttention() override { (void)cudnnDestroy(handle_); }

  bool forward(Exec& exec, const AttentionForward& op) override {
    Cut cut;
    if (!cut_op(op, cut)) return false;
    cut.call.statistics = static_cast<bool>(op.lse);
    const Plan& plan = plan_of(cut.call);
    if (!plan.graph) return false;
    for (int64_t i = 0; i < cut.count; ++i) {
      std::unordered_map<int64_t, void*> pointers = common(op, cut, i);
      if (op.lse) pointers[kLse] = at(op.lse, i * cut.lse_step);
      execute(exec, plan, pointers);
    }
    return true;
  }

  bool backward(Exec& exec, const AttentionBackward& op) override {
    Cut cut;
    if (!cut_op(op, cut) || !aligned(op.dq, 0) || !aligned(op.dk, 0) || !aligned(op.dv, 0) || !aligned(op.dout, 0))
      return false;
    cut.call.backward = true;
    cut.call.deterministic = exec.deterministic;
    const Plan& plan = plan_of(cut.call);
    if (!plan.graph) return false;
    for (int64_t i = 0; i < cut.count; ++i) {
      std::unordered_map<int64_t, void*> pointers = common(op, cut, i);
      pointers[kLse] = at(op.lse, i * cut.lse_step);
      pointers[kDO] = at(op.dout, i * cut.o_step);
      pointers[kDQ] = at(op.dq, op.q_at.offset + i * cut.q_step);
      pointers[kDK] = at(op.dk, op.k_at.offset + i * cut.k_step);
      pointers[kDV] = at(op.dv, op.v_at.offset + i * cut.v_step);
      execute(exec, plan, pointers);
    }
    return true;
  }

 private:
  struct Plan {
    std::shared_ptr<fe::graph::Graph> graph;  // nullptr: the library does not take the shape
    size_t workspace = 0;
  };

  template <typename Op>
  static std::unordered_map<int64_t, void*> common(const Op& op, const Cut& cut, int64_t i) {
    return {{kQ, at(op.q, op.q_at.offset + i * cut.q_step)},
            {kK, at(op.k, op.k_at.offset + i * cut.k_step)},
            {kV, at(op.v, op.v_at.offset + i * cut.v_step)},
            {kO, at(op.out, i * cut.o_step)}};
  }

  const Plan& plan_of(const Call& call) {
    const auto found = plans_.find(call);
    if (found != plans_.end()) return found->second;
    Plan plan{make_graph(call), 0};
    fe::error_t fault = plan.graph->validate();
    if (fault.is_good()) fault = plan.graph->build_operation_graph(handle_);
    if (fault.is_good()) fault = plan.graph->create_execution_plans({fe::HeurMode_t::A});
    if (fault.is_good()) fault = plan.graph->check_support();
    if (fault.is_good()) fault = plan.graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    int64_t bytes = 0;
    if (fault.is_good()) fault = plan.graph->get_workspace_size(bytes);
    plan.workspace = static_cast<size_t>(bytes);
    if (fault.is_bad()) {
      log_info("attention of length " + std::to_string(call.length) + ", head size " + std::to_string(call.head_dim) +
               (call.backward ? ", backward" : ", forward") + " runs on our own kernel: " + fault.get_message());
      plan = {};
    }
    return plans_.emplace(call, std::move(plan)).first->second;
  }

  void execute(Exec& exec, const Plan& plan, std::unordered_map<int64_t, void*>& pointers) {
    const cudaStream_t stream = stream_of(exec);
    void* workspace = plan.workspace > 0 ? state_.attention_scratch().take(plan.workspace, stream) : nullptr;
    if (const cudnnStatus_t status = cudnnSetStream(handle_, stream); status != CUDNN_STATUS_SUCCESS) {
      throw Error(ExitCode::kInternal, std::string("cuDNN: cudnnSetStream: ") + cudnnGetErrorString(status));
    }
    fe::error_t fault = plan.graph->execute(handle_, pointers, workspace);
    if (fault.is_bad()) throw Error(ExitCode::kInternal, "cuDNN: attention failed: " + fault.get_message());
  }

  CudaState& state_;
  cudnnHandle_t handle_;
  std::map<Call, Plan> plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> make_fused_attention(CudaState& state) {
  const char* wish = std::getenv("THINWIRE_ATTENTION");
  if (wish != nullptr && std::string(wish) == "own") return nullptr;
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS) {
    log_warning(std::string("attention runs on our own kernels: cuDNN does not start: ") + cudnnGetErrorString(status));
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
  // The layout of model/attention.cpp.
  const int64_t d = q.head_dim, m = q.heads_per_group, group = (m + 2) * d, row = q.groups * group,
                width = q.groups * m * d;
  Call c;
  c.length = q.length, c.head_dim = d, c.dtype = q.dtype, c.backward = q.backward, c.deterministic = q.deterministic;
  if (m == 1) {
    c.batch = q.batch, c.q_heads = c.kv_heads = q.groups;
    c.q = c.k = c.v = {q.length * row, group, row};
    c.o = {q.length * width, d, width};
  } else {
    c.batch = q.groups, c.q_heads = m, c.kv_heads = 1;
    c.q = {group, d, row}, c.k = c.v = {group, group, row};
    c.o = {m * d, d, width};
  }
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
