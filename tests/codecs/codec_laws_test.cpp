// Every codec that a rule can name, with the parameters that presets use: the laws of codec_laws.h.
#include "tests/codecs/codec_laws.h"

#include <gtest/gtest.h>

#include "compression/codec_table.h"

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

INSTANTIATE_TEST_SUITE_P(Specs, EveryCodec, ::testing::ValuesIn(all_specs()), [](const auto& info) {
  std::string name = info.param.codec + "_" + std::to_string(info.index);
  return name;
});

}  // namespace
}  // namespace thinwire::test::codec_laws_test
