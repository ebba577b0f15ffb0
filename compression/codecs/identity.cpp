// Codec identity: what leaves a rank is what was there. The default of every site. A channel that holds it calls the
// plain collective on the caller's memory (law 3); encode and decode are copies, for where it is a part of a message.
// Behind it stand the defaults of the base class.
#include <cstring>

#include "compression/codec_table.h"
#include "compression/tile_kernel.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

class Identity final : public Codec {
 public:
  std::string name() const override { return "identity"; }
  Traits traits() const override {
    return {.alias = true, .lossless = true, .unbiased = true, .native = true, .contractive = true, .granule = 1};
  }
  size_t wire_bytes(int64_t count, DType dtype) const override { return static_cast<size_t>(count) * size_of(dtype); }
  Encoded encode(const Msg&, View in, std::span<std::byte> out, CompressionState*) const override {
    if (in.bytes() > 0) std::memcpy(out.data(), in.data, in.bytes());
    return {in.bytes(), !TW_PICK_KERNELS(tile_kernels).all_finite[index_of(in.dtype)](in.data, in.count())};
  }
  void decode(const Msg&, std::span<const std::byte> in, View out, bool accumulate) const override {
    check_payload("identity", in, out.bytes(), out.count());
    if (!accumulate) {
      if (!in.empty()) std::memcpy(out.data, in.data(), in.size());
      return;
    }
    float* sum = out.as<float>();
    for (int64_t i = 0; i < out.count(); ++i) {
      float v;
      std::memcpy(&v, in.data() + static_cast<size_t>(i) * sizeof v, sizeof v);
      sum[i] += v;
    }
  }
};

}  // namespace

// What every codec does that has nothing better: decode behind encode, and no state.
Encoded Codec::round_trip(const Msg& msg, View in, std::span<std::byte> out, CompressionState* state,
                          View decoded) const {
  const Encoded encoded = encode(msg, in, out, state);
  if (!encoded.non_finite) decode(msg, out.first(encoded.bytes), decoded, false);
  return encoded;
}

std::unique_ptr<CompressionState> Codec::make_state(int64_t, std::span<const MatrixShape>) const {
  return nullptr;
}

void check_payload(const std::string& codec, std::span<const std::byte> in, size_t expected, int64_t elements) {
  if (in.size() == expected) return;
  throw_bad_data(codec + ": a payload of " + std::to_string(in.size()) + " bytes for " + std::to_string(elements) +
                 " elements, which take " + std::to_string(expected) +
                 "; sender and receiver disagree about the codec or the message was damaged");
}

CodecRow identity_row() {
  return {.name = "identity",
          .make = [](const CodecSpec&) -> MadeCodec { return {std::make_shared<Identity>()}; },
          .lossless = true,
          .device = true};
}

}  // namespace thinwire
