// Head over the op table; the chunk is a matter of memory, not of results per row.
#include "model/head.h"

#include <algorithm>

namespace thinwire {
namespace {

// Logits of one chunk stay near the size of a last-level cache share; a multiple of 16 rows keeps the products
// efficient.
constexpr int64_t kChunkBytes = int64_t{64} << 20;

int64_t chunk_rows(const ModelConfig& c, int64_t tokens) {
  const int64_t fit = std::max<int64_t>(16, kChunkBytes / (c.padded_vocab * static_cast<int64_t>(size_of(c.dtype))));
  const int64_t chunks = (tokens + fit - 1) / fit;
  return std::min(tokens, ((tokens + chunks - 1) / chunks + 15) / 16 * 16);
}

}  // namespace

HeadActivations take_head_activations(const ModelConfig& c, const BatchShape& shape, bool training, Arena& arena) {
  const int64_t n = shape.tokens();
  HeadActivations a;
  a.x = arena.take(MemoryCategory::kActivations, c.dtype, {n, c.hidden});
  a.y = arena.take(MemoryCategory::kActivations, c.dtype, {n, c.hidden});
  if (c.norm == NormKind::kLayerNorm) a.mean = arena.take(MemoryCategory::kActivations, DType::f32, {n});
  a.rstd = arena.take(MemoryCategory::kActivations, DType::f32, {n});
  if (training) a.dy = arena.take(MemoryCategory::kActivations, c.dtype, {n, c.hidden});
  a.logits = arena.take(MemoryCategory::kWorkspace, c.dtype, {chunk_rows(c, n), c.padded_vocab});
  a.losses = arena.take(MemoryCategory::kWorkspace, DType::f32, {n});
  return a;
}

Head::Head(const ModelConfig& config, const ParamStore& store, const Embedding& embedding)
    : config_(&config),
      store_(&store),
      final_norm_(config, store, "final_norm"),
      matrix_(config.tied_head ? embedding.word() : store.weight("head.weight")),
      matrix_gradient_(config.tied_head ? embedding.word_gradient() : store.gradient("head.weight")) {}

void Head::normalise(Exec& exec, const ResidualStream& stream, const HeadActivations& a) const {
  TW_CHECK(stream.branch, "the head follows at least one block");
  final_norm_.forward(exec, stream, a.x, a.y, a.mean, a.rstd);
}

void Head::logits(Exec& exec, const HeadActivations& a, int64_t first, int64_t n, View logits) const {
  exec.ops.matmul(
      exec, {.a = a.y.row_range(first, n), .b = matrix_, .c = logits, .trans_b = true, .b_version = store_->version()});
}

void Head::forward(Exec& exec, const ResidualStream& stream, const HeadActivations& a, const LossTargets& loss) const {
  normalise(exec, stream, a);
  const int64_t tokens = a.y.rows(), step = a.logits.rows();
  const bool training = static_cast<bool>(loss.dlogits_scale);
  for (int64_t first = 0; first < tokens; first += step) {
    const int64_t n = std::min(step, tokens - first);
    const View chunk = a.logits.row_range(0, n);
    logits(exec, a, first, n, chunk);
    exec.ops.cross_entropy(exec, {.logits = chunk,
                                  .targets = loss.targets.element_range(first, n),
                                  .row_weight = loss.row_weight.element_range(first, n),
                                  .loss = a.losses.element_range(first, n),
                                  .dlogits_scale = loss.dlogits_scale,
                                  .valid_cols = config_->vocab});
    if (!training) continue;
    exec.ops.matmul(exec, {.a = chunk, .b = matrix_, .c = a.dy.row_range(first, n), .b_version = store_->version()});
    exec.ops.matmul(
        exec, {.a = chunk, .b = a.y.row_range(first, n), .c = matrix_gradient_, .trans_a = true, .accumulate = true});
  }
  exec.ops.weighted_sum(exec,
                        {a.losses.element_range(0, tokens), loss.row_weight.element_range(0, tokens), loss.loss_sum});
}

void Head::backward(Exec& exec, const HeadActivations& a, View dx) const {
  final_norm_.backward(exec, a.dy, a.x, a.mean, a.rstd, {}, dx);
}

}  // namespace thinwire
