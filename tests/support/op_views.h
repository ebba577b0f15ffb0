// The memory behind every op: calls f(void*& data, bytes) for each tensor of an op, so that a test can copy or move it.
#pragma once

#include "engine/base/ops/ops.h"

namespace thinwire::test {

namespace detail {

template <typename F, typename... Views>
void each(const F& f, Views&... views) {
  (f(views.data, views.bytes()), ...);
}
template <typename F>
void ids(const F& f, Dropout& dropout) {
  if (dropout.p == 0.0f || dropout.sample_ids == nullptr || dropout.batch <= 0) return;
  void* data = const_cast<int64_t*>(dropout.sample_ids);
  f(data, static_cast<size_t>(dropout.batch) * sizeof(int64_t));
  dropout.sample_ids = static_cast<const int64_t*>(data);
}

}  // namespace detail

template <typename F>
void visit_memory(Matmul& o, const F& f) {
  detail::each(f, o.a, o.b, o.c, o.bias, o.gelu_input, o.dgelu_input, o.a_sums);
}
template <typename F>
void visit_memory(NormForward& o, const F& f) {
  detail::each(f, o.x, o.branch, o.sum, o.weight, o.bias, o.y, o.mean, o.rstd);
  detail::ids(f, o.dropout);
}
template <typename F>
void visit_memory(NormBackward& o, const F& f) {
  detail::each(f, o.dy, o.x, o.weight, o.mean, o.rstd, o.residual, o.dx, o.dweight, o.dbias);
}
template <typename F>
void visit_memory(ResidualAdd& o, const F& f) {
  detail::each(f, o.x, o.branch, o.y);
  detail::ids(f, o.dropout);
}
template <typename F>
void visit_memory(DropoutApply& o, const F& f) {
  detail::each(f, o.x, o.y);
  detail::ids(f, o.dropout);
}
template <typename F>
void visit_memory(Rotary& o, const F& f) {
  detail::each(f, o.data, o.cos, o.sin, o.positions);
}
template <typename F>
void visit_memory(AttentionForward& o, const F& f) {
  detail::each(f, o.q, o.k, o.v, o.out, o.lse, o.first_keys);
  detail::ids(f, o.dropout);
}
template <typename F>
void visit_memory(AttentionBackward& o, const F& f) {
  detail::each(f, o.q, o.k, o.v, o.out, o.lse, o.dout, o.dq, o.dk, o.dv, o.first_keys);
  detail::ids(f, o.dropout);
}
template <typename F>
void visit_memory(GeluForward& o, const F& f) {
  detail::each(f, o.x, o.y);
}
template <typename F>
void visit_memory(GeluBackward& o, const F& f) {
  detail::each(f, o.x, o.dy, o.dx);
}
template <typename F>
void visit_memory(SwigluForward& o, const F& f) {
  detail::each(f, o.x, o.y);
}
template <typename F>
void visit_memory(SwigluBackward& o, const F& f) {
  detail::each(f, o.x, o.dy, o.dx);
}
template <typename F>
void visit_memory(EmbeddingForward& o, const F& f) {
  detail::each(f, o.tokens, o.table, o.positions, o.x, o.at);
}
template <typename F>
void visit_memory(EmbeddingBackward& o, const F& f) {
  detail::each(f, o.tokens, o.dx, o.dtable, o.dpositions, o.at);
}
template <typename F>
void visit_memory(CrossEntropy& o, const F& f) {
  detail::each(f, o.logits, o.targets, o.row_weight, o.loss, o.dlogits_scale);
}
template <typename F>
void visit_memory(VocabStatistics& o, const F& f) {
  detail::each(f, o.logits, o.targets, o.row_weight, o.statistics);
}
template <typename F>
void visit_memory(VocabLoss& o, const F& f) {
  detail::each(f, o.logits, o.targets, o.row_weight, o.all, o.loss, o.dlogits_scale);
}
template <typename F>
void visit_memory(WeightedSum& o, const F& f) {
  detail::each(f, o.a, o.b, o.out);
}
template <typename F>
void visit_memory(SumSquares& o, const F& f) {
  detail::each(f, o.x, o.out);
}
template <typename F>
void visit_memory(BiasGradient& o, const F& f) {
  detail::each(f, o.dy, o.dbias);
}
template <typename F>
void visit_memory(Cast& o, const F& f) {
  detail::each(f, o.src, o.dst);
}
template <typename F>
void visit_memory(Axpy& o, const F& f) {
  detail::each(f, o.x, o.y);
}
template <typename F>
void visit_memory(FillNormal& o, const F& f) {
  detail::each(f, o.x);
}
template <typename F>
void visit_memory(CopyRuns& o, const F& f) {
  detail::each(f, o.from, o.to);
}
template <typename F>
void visit_memory(FillConstant& o, const F& f) {
  detail::each(f, o.x);
}
template <typename F>
void visit_memory(AdamW& o, const F& f) {
  detail::each(f, o.master, o.m, o.v, o.gradient, o.working, o.state);
}
template <typename F>
void visit_memory(Sgd& o, const F& f) {
  detail::each(f, o.master, o.momentum_buffer, o.gradient, o.working, o.state);
}

}  // namespace thinwire::test
