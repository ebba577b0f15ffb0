// The table of codecs: rows agree with the codecs that they make, and what is derived from several rows holds for each.
#include "compression/codec_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "compression/data_kinds.h"
#include "engine/base/core/error.h"

namespace thinwire::codec_table_test {
namespace {

Traits traits_of(const MadeCodec& made) {
  return made.codec != nullptr ? made.codec->traits() : made.rounds->traits();
}

TEST(CodecTable, RowsSayWhatTheirCodecsAre) {
  std::set<std::string> names;
  for (const CodecRow& row : codec_table()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    ASSERT_FALSE(row.cases.empty());
    for (const CodecValues& values : row.cases) {
      const MadeCodec made = make_codec({row.name, values});
      const Traits traits = traits_of(made);
      EXPECT_EQ(traits.lossless, row.lossless);
      EXPECT_EQ(traits.selects, row.selects);
      EXPECT_EQ(made.rounds != nullptr, row.rounds);
      const std::string name = made.codec != nullptr ? made.codec->name() : made.rounds->name();
      EXPECT_EQ(name.substr(0, row.name.size()), row.name);
    }
    // The cheaper codec that may replace it has the same blocks, and is made from the same parameters.
    if (row.cheaper == nullptr) continue;
    CodecSpec heavy = codec_spec(row.name, row.cases.front());
    EXPECT_EQ(cheaper_codec(heavy), heavy) << "nobody asked for it";
    heavy["light"] = true;
    const CodecSpec light = cheaper_codec(heavy);
    EXPECT_NE(light.codec, heavy.codec);
    EXPECT_EQ(light.integer("block"), heavy.integer("block"));
    EXPECT_NE(make_codec(light).codec, nullptr);
  }
}

// Changes all elements of a message but one aligned run of it: what the run decodes to stays the same for exactly the
// codecs of which codes_within() says so.
TEST(CodecTable, CodesWithinWhatItSays) {
  constexpr int64_t kRun = 4096, kCount = 3 * kRun;
  const auto decoded = [](const Codec& codec, std::vector<float> x) {
    const Msg msg{.seed = 7};
    std::vector<std::byte> payload(codec.wire_bytes(kCount, DType::f32));
    const View in(x.data(), DType::f32, {kCount});
    payload.resize(codec.encode(msg, in, payload, nullptr).bytes);
    std::vector<float> y(x.size());
    codec.decode(msg, payload, View(y.data(), DType::f32, {kCount}), false);
    return std::vector<float>(y.begin() + kRun, y.begin() + 2 * kRun);
  };
  const std::vector<float> x = make_data(DataKind::kGaussian, kCount, 3);
  std::vector<float> neighbours = x;
  for (int64_t i = 0; i < kCount; ++i)
    if (i < kRun || i >= 2 * kRun) neighbours[static_cast<size_t>(i)] *= i % 7 == 0 ? 90.0f : 0.3f;
  for (const CodecRow& row : codec_table())
    for (const CodecValues& values : row.cases) {
      const CodecSpec spec{row.name, values};
      const auto codec = make_codec(spec).codec;
      if (codec == nullptr || codec->traits().matrices) continue;
      EXPECT_EQ(decoded(*codec, x) == decoded(*codec, neighbours), codes_within(spec, kRun)) << codec->name();
    }
}

TEST(CodecTable, KeysHoldWhatAnyCodecAllows) {
  for (const KeySpec& shared : codec_keys()) {
    SCOPED_TRACE(shared.name);
    int rows = 0;
    for (const CodecRow& row : codec_table()) {
      const CodecParameter* own = row.find(shared.name);
      if (own == nullptr) continue;
      ++rows;
      EXPECT_EQ(own->key.types, shared.types) << row.name;
      EXPECT_GE(own->key.bounds.min, shared.bounds.min) << row.name;
      EXPECT_LE(own->key.bounds.max, shared.bounds.max) << row.name;
      EXPECT_NE(shared.doc.find(row.name), std::string::npos) << shared.doc;
      for (const std::string& value : own->key.allowed)
        EXPECT_EQ(std::count(shared.allowed.begin(), shared.allowed.end(), value), 1) << value;
    }
    EXPECT_GT(rows, 0);
  }
  const auto& all = codec_keys();
  const auto format = std::find_if(all.begin(), all.end(), [](const auto& p) { return p.name == "format"; });
  ASSERT_NE(format, all.end());
  EXPECT_EQ(format->default_text, "cast, top_k, random_k, chunked_top_k: bf16; mx: mxfp8_e4m3");
}

TEST(CodecTable, RefusesNamesThatItDoesNotHave) {
  for (const auto& use : {+[] { make_codec({.codec = "top_l"}); }, +[] { codes_within({.codec = "top_l"}, 1); },
                          +[] { cheaper_codec({.codec = "top_l"}); }, +[] { codec_spec("top_l"); }}) {
    try {
      use();
      FAIL() << "took a codec that there is not";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(e.what()).find("\"top_l\" is none of identity | cast"), std::string::npos) << e.what();
    }
  }
}

TEST(CodecTable, ParametersAreChecked) {
  const CodecSpec spec = codec_spec("zfp", {{"rate", 4}});
  EXPECT_EQ(spec.real("rate"), 4.0);
  EXPECT_EQ(make_codec({"zfp", {{"rate", 4}}}).codec->name(), make_codec(spec).codec->name());
  struct Case {
    CodecSpec spec;
    const char* message;
  };
  for (const Case& c : {Case{{"lloyd_max", {{"rounding", "stochastic"}}}, "codec lloyd_max has no parameter rounding"},
                        Case{{"cast", {{"format", 8}}}, "codec cast: format is 8; it may be of another type"},
                        Case{{"cast", {{"format", "fp8"}}}, "format is fp8; it may be bf16, fp16, e4m3 or e5m2"},
                        Case{{"zfp", {{"rate", 2}}}, "codec zfp: rate is 2; it may be 2.25 to 32"},
                        Case{{"ecsq", {}}, "codec ecsq: rate is 8; it may be 1 to 5, and must be given"},
                        Case{{"top_k", {{"density", 0.0}}}, "density is 0; it may be above 0 to 1"},
                        Case{{"ecsq", {{"rate", 2.5}, {"block", 65}}},
                             "codec ecsq: block is 65; it may be a multiple of 64 from 64 to 4096, or 0 for 64"}}) {
    try {
      make_codec(c.spec);
      FAIL() << "took what there is not: " << c.message;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      EXPECT_NE(std::string(e.what()).find(c.message), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace thinwire::codec_table_test
