// Identity as a packed payload: where it is one part of a composed message.
#include "compression/codecs/identity.h"

#include <cmath>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

template <typename T>
bool all_finite(const T* x, int64_t n) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= static_cast<bool>(std::isfinite(to_float(x[i])));
  return finite;
}

}  // namespace

Encoded Identity::encode(const Msg&, View in, std::span<std::byte> out, CodingState*) const {
  if (in.bytes() > 0) std::memcpy(out.data(), in.data, in.bytes());
  const int64_t n = in.count();
  const bool finite = in.dtype == DType::f32    ? all_finite(in.as<float>(), n)
                      : in.dtype == DType::bf16 ? all_finite(in.as<Bf16>(), n)
                                                : all_finite(in.as<Fp16>(), n);
  return {in.bytes(), !finite};
}

void Identity::decode(const Msg&, std::span<const std::byte> in, View out, bool accumulate) const {
  if (in.size() != out.bytes())
    throw_bad_data("identity: a payload of " + std::to_string(in.size()) + " bytes for " + std::to_string(out.bytes()));
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

Encoded Codec::round_trip(const Msg& msg, View in, std::span<std::byte> out, CodingState* state, View decoded) const {
  const Encoded encoded = encode(msg, in, out, state);
  if (!encoded.non_finite) decode(msg, out.first(encoded.bytes), decoded, false);
  return encoded;
}

std::unique_ptr<CodingState> Codec::make_state(int64_t, std::span<const MatrixShape>) const {
  return nullptr;
}

CodecRow identity_row() {
  return {.defaults = {.codec = "identity"},
          .make =
              [](const CodecSpec&) {
                return MadeCodec{std::make_shared<Identity>(), nullptr};
              },
          .cases = {{.codec = "identity"}},
          .lossless = true};
}

}  // namespace thinwire
