// Codec sketch: TAGC's homomorphic sum of sparse messages, and the packed union that beats it. In rounds.
//
// Round 0 agrees on the index: each rank marks its k = max(1, round(density n)) largest |x| in a bitmap, and the
// bitmaps are OR-ed (never summed: sums of bits carry). So `density` is what each rank keeps, and the union has between
// k and min(n, N k) elements: it grows with the number of ranks. Zeros are not proposed. What is then sent of an
// element in the union is the whole of every rank's value, not of its proposer's alone: it leaves less in the
// residuals. Where bitmap and union would be more bytes than the message itself, ceil(n / 8) + 4 u > 4 n, the message
// goes dense: the union is taken to be everything, which costs no byte more than n / 8 and leaves nothing behind.
//
// compact (2 rounds): round 1 sums the values of the union, packed in ascending order, in fp32. Exact as a sum of fp32
//   is; sliceable. Bytes: ceil(n / 8) + 4 u for a union of u; dense: ceil(n / 8) + 4 n.
// table (3 rounds): round 1 agrees on max|x|; round 2 sums integers mod 2^32 in three disjoint tables of 16 x R cells,
//   R = ceil(n / (48 ratio)). Values are on a grid whose step is a power of two such that no sum of N overflows;
//   elements in blocks of 16, and block b has row h_j(b) of table j. Peeling is decided by the union alone, so all
//   ranks know before they encode which elements cannot be peeled: those travel packed behind the tables,
//   and nothing is ever estimated. If the union is above 0.818 of the cells (where peeling 3 hashes
//   breaks down), or more than max(64, cells / 64) elements are left, round 2 is that of the compact form.
//   Bytes: ceil(n / 8) + 4 + 4 (48 R + leftovers).
// A NaN or infinity on any rank makes the decoded sum NaN or infinite in the union (law 8).
// Source: zero-and-tagc notes, section 3 (LHC, TAGC); the agreed peeling, the tail and going dense are ours.
#pragma once

#include <memory>

#include "compression/codec_table.h"

namespace thinwire {

class Sketch final : public RoundCodec {
 public:
  Sketch(double density, double ratio, bool compact) : density_(density), ratio_(ratio), compact_(compact) {}
  std::string name() const override;
  Traits traits() const override { return {.framed = true, .contractive = true, .selects = true, .linear = true}; }
  int rounds() const override { return compact_ ? 2 : 3; }
  int64_t bound(int r, int64_t count, int ranks, std::span<const MatrixShape> matrices) const override;
  std::unique_ptr<CompressionState> make_state(int64_t count, std::span<const MatrixShape> matrices) const override;
  Round round(int r, const Msg& msg, int64_t count, const CompressionState& state) const override;
  bool pack(int r, const Msg& msg, View x, View payload, CompressionState& state) const override;
  void absorb(int r, const Msg& msg, View payload, int64_t slice_first, CompressionState& state) const override;
  int64_t payload_index(int r, int64_t element, const CompressionState& state) const override;
  void result(const Msg& msg, int64_t first, View out, bool accumulate, const CompressionState& state) const override;
  void own_error(const Msg& msg, View x, const CompressionState& state) const override;

  // Cells of all three tables.
  int64_t cells(int64_t count) const;

 private:
  double density_, ratio_;
  bool compact_;
};

}  // namespace thinwire
