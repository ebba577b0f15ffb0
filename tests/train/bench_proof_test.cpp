// The oracles of `bench codec`: they accept what codecs decode, and nothing that is off by more than a format's step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "compression/codec_table.h"
#include "compression/data_kinds.h"
#include "engine/run/bench/codec_oracles.h"

namespace thinwire::test::bench_proof_test {
namespace {

struct Case {
  CodecSpec spec;
  double step;  // in units of the largest element: an error of so much must not pass
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](const char* codec, double step, const std::function<void(CodecSpec&)>& set = {}) {
    Case c{codec_spec(codec), step};
    if (set) set(c.spec);
    list.push_back(c);
  };
  for (const char* format : {"bf16", "fp16", "e4m3", "e5m2"})
    add("cast", 0.15, [=](CodecSpec& s) { s["format"] = format; });
  for (int64_t bits : {8, 6, 4, 2})
    for (const char* scale : {"fp32", "fp16", "bf16", "e8m0"})
      add("block_int", std::ldexp(1.1, 1 - static_cast<int>(bits)) * (scale[0] == 'e' ? 2.0 : 1.0),
          [=](CodecSpec& s) { s["bits"] = bits, s["scale"] = scale; });
  add("block_int", 1.0 / 7, [](CodecSpec& s) { s["bits"] = 4, s["asymmetric"] = true; });
  add("block_int", 2.0 / 7, [](CodecSpec& s) { s["bits"] = 4, s["rounding"] = "stochastic"; });
  for (const char* format : {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"})
    add("mx", 0.5, [=](CodecSpec& s) { s["format"] = format; });
  add("e3m0", 0.6);
  for (int64_t bits : {4, 3, 2}) add("lloyd_max", 1.0, [=](CodecSpec& s) { s["bits"] = bits; });
  for (double rate : {2.0, 2.5, 3.0, 5.0})
    for (int64_t block : {0, 192}) add("ecsq", 0.25, [=](CodecSpec& s) { s["rate"] = rate, s["block"] = block; });
  for (double rate : {1.0, 1.5})
    for (int64_t block : {0, 192}) add("ecsq", 1.0, [=](CodecSpec& s) { s["rate"] = rate, s["block"] = block; });
  for (int64_t block : {0, 1024}) add("one_bit", 1e-3, [=](CodecSpec& s) { s["block"] = block; });
  for (double rate : {8.0, 16.0}) add("zfp", 1.0, [=](CodecSpec& s) { s["rate"] = rate; });
  for (const char* codec : {"identity", "mpc", "entropy"}) add(codec, 1e-6);
  for (const char* format : {"fp32", "bf16", "fp16"}) {
    add("top_k", 0.1, [=](CodecSpec& s) { s["density"] = 0.05, s["format"] = format; });
    add("chunked_top_k", 0.1, [=](CodecSpec& s) { s["format"] = format; });
    add("random_k", 0.1, [=](CodecSpec& s) { s["format"] = format; });
  }
  add("chunked_top_k", 5.0, [](CodecSpec& s) { s["format"] = "2bit"; });
  add("low_rank", 1.0);
  return list;
}

TEST(BenchProof, AcceptsWhatCodecsDecodeAndRefusesWhatIsOff) {
  constexpr int64_t kRows = 64, kCols = 256, kCount = kRows * kCols;
  const MatrixShape shape{0, kRows, kCols};
  for (DataKind kind : {DataKind::kGaussian, DataKind::kOutliers}) {
    const std::vector<float> x = make_data(kind, kCount, 3);
    const std::vector<double> sent(x.begin(), x.end());
    float top = 0.0f;
    for (float v : x) top = std::max(top, std::fabs(v));
    for (const Case& c : cases()) {
      const auto codec = make_codec(c.spec).codec;
      SCOPED_TRACE(codec->name() + " on " + name_of(kind));
      Msg msg;
      msg.seed = 9, msg.matrices = {&shape, 1};
      std::vector<std::byte> payload(codec->wire_bytes(kCount, DType::f32));
      const auto state = codec->make_state(kCount, msg.matrices);
      payload.resize(
          codec->encode(msg, View(const_cast<float*>(x.data()), DType::f32, {kCount}), payload, state.get()).bytes);
      std::vector<float> y(x.size());
      codec->decode(msg, payload, View(y.data(), DType::f32, {kCount}), false);
      const CodedMessage m{c.spec, false, sent, y, payload, kRows, kCols};
      EXPECT_LE(prove(m).worst, 1.0);
      // One element that arrived, moved away by more than the format's step; and one that is no number.
      const size_t at = static_cast<size_t>(std::max_element(y.begin(), y.end()) - y.begin());
      const float good = y[at], moved = static_cast<float>(c.step) * top * (good >= x[at] ? 1.01f : -1.01f);
      if (c.spec.codec == "low_rank") {  // looked at in samples: all of it
        for (float& v : y) v *= 1.001f;
        EXPECT_FALSE(prove(m).holds());
        for (float& v : y) v /= 1.001f;
      } else {
        y[at] = good + moved;
        EXPECT_FALSE(prove(m).holds()) << good << " became " << y[at];
      }
      y[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(prove(m).holds()) << "NaN";
      y[at] = good;
      EXPECT_TRUE(prove(m).holds());
    }
  }
}

}  // namespace
}  // namespace thinwire::test::bench_proof_test
