// Every codec that a rule can name, with the parameters that presets use: the laws of codec_laws.h, and the same codec
// behind a Coder with a checksum.
#include "tests/codecs/codec_laws.h"

#include <gtest/gtest.h>

#include "compression/codec_table.h"
#include "compression/coder.h"

namespace thinwire::test::codec_laws_test {
namespace {

CodecSpec make_spec(
    const std::string& codec, const std::function<void(CodecSpec&)>& set = [](CodecSpec&) {}) {
  CodecSpec spec = codec_spec(codec);
  if (codec_row(codec).selects) spec["format"] = "fp32";
  set(spec);
  return spec;
}

std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs = {make_spec("identity"),
                                  make_spec("e3m0"),
                                  make_spec("one_bit"),
                                  make_spec("mpc"),
                                  make_spec("entropy"),
                                  make_spec("low_rank"),
                                  make_spec("top_k"),
                                  make_spec("random_k"),
                                  make_spec("chunked_top_k", [](CodecSpec& s) { s["block"] = 4096; })};
  for (const char* format : {"bf16", "fp16", "e4m3", "e5m2"})
    specs.push_back(make_spec("cast", [&](CodecSpec& s) { s["format"] = format; }));
  for (int64_t bits : {8, 6, 4, 2})
    for (const char* scale : {"fp32", "fp16", "bf16"})
      specs.push_back(make_spec("block_int", [&](CodecSpec& s) {
        s["bits"] = bits;
        s["scale"] = scale;
      }));
  specs.push_back(make_spec("block_int", [](CodecSpec& s) { s["asymmetric"] = true; }));
  specs.push_back(make_spec("block_int", [](CodecSpec& s) {
    s["bits"] = 4;
    s["block"] = 2048;
    s["rounding"] = "stochastic";
  }));
  for (int64_t bits : {4, 3, 2}) specs.push_back(make_spec("lloyd_max", [&](CodecSpec& s) { s["bits"] = bits; }));
  for (double rate : {1.25, 2.0, 2.5, 4.0}) specs.push_back(make_spec("ecsq", [&](CodecSpec& s) { s["rate"] = rate; }));
  for (const char* format : {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"})
    specs.push_back(make_spec("mx", [&](CodecSpec& s) { s["format"] = format; }));
  for (double rate : {4.0, 8.0, 12.0, 16.0, 24.0, 32.0})
    specs.push_back(make_spec("zfp", [&](CodecSpec& s) { s["rate"] = rate; }));
  for (const CodecRow& row : codec_table()) {
    const bool listed =
        std::any_of(specs.begin(), specs.end(), [&](const CodecSpec& s) { return s.codec == row.name; });
    for (size_t i = 0; !listed && i < row.cases.size(); ++i) specs.push_back(codec_spec(row.name, row.cases[i]));
  }
  return specs;
}

LawOptions options_for(const CodecSpec& spec) {
  LawOptions options;
  options.fuzz = 20;  // each codec's own test and tests/fuzz do more
  options.huge_overflows = true;
  if (spec.codec == "low_rank")
    options.matrices = [](int64_t n) {
      // A square as large as fits, and what is left.
      const int64_t side = static_cast<int64_t>(std::sqrt(static_cast<double>(n)));
      std::vector<MatrixShape> m;
      if (n > 0) m.push_back(side > 1 ? MatrixShape{0, side, side} : MatrixShape{0, 1, n});
      return m;
    };
  return options;
}

class EveryCodec : public ::testing::TestWithParam<CodecSpec> {};

TEST_P(EveryCodec, Laws) {
  const MadeCodec made = make_codec(GetParam());
  if (!made.codec) GTEST_SKIP() << "travels in rounds only";
  check_codec_laws(*made.codec, options_for(GetParam()));
}

// With a checksum no flipped bit gets through, whatever the codec can tell by itself.
TEST_P(EveryCodec, ChecksumFindsEveryFlip) {
  const MadeCodec made = make_codec(GetParam());
  if (!made.codec) GTEST_SKIP() << "travels in rounds only";
  CodecSpec spec = GetParam();
  spec.checksum = true;
  const Coder coder(made.codec, spec, {});
  const int64_t n = 211;
  const std::vector<float> x = make_data(DataKind::kGaussian, n, 2);
  const auto matrices = options_for(spec).matrices(n);
  Msg msg = law_msg();
  msg.matrices = matrices;
  const auto state = coder.make_state(n, matrices);
  Fenced in(x.data(), x.size() * 4), out(coder.wire_bytes(n, DType::f32)), y(x.size() * 4);
  CompressionStats stats;
  const size_t bytes = coder.pack(msg, in.view(DType::f32), View(), out.span(), state.get(), stats);
  const Bytes good(out.data(), out.data() + bytes);
  const auto absorb = [&](const Bytes& payload) {
    const Share share{payload, View(), 1};
    coder.absorb(msg, {&share, 1}, y.view(DType::f32), false, stats);
  };
  absorb(good);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ASSERT_THROW(absorb(bad), Error) << coder.name() << " bit " << bit;
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, EveryCodec, ::testing::ValuesIn(all_specs()), [](const auto& info) {
  std::string name = info.param.codec + "_" + std::to_string(info.index);
  return name;
});

}  // namespace
}  // namespace thinwire::test::codec_laws_test
