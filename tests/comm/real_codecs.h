// Every codec that a rule can name, as the tests of coded collectives take it: its parameters, and how far off it may
// be.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compression/codec_table.h"
#include "compression/coder.h"

namespace thinwire {

// Encoding anything of magnitude m at most moves no element further than error * m (plus `floor`, where a format ends).
struct RealCodec {
  CodecSpec spec;
  double error = 0.0;
  double floor = 0.0;

  std::shared_ptr<const Coder> coder(ResidualKind residual = ResidualKind::kNone) const {
    return std::make_shared<Coder>(make_codec(spec).codec, spec, ResidualSpec{.kind = residual});
  }
  std::string name() const { return spec.codec == "sketch" ? "sketch" : coder()->name(); }
};

inline CodecSpec real_spec(
    const std::string& codec, const std::function<void(CodecSpec&)>& set = [](CodecSpec&) {}) {
  CodecSpec spec = codec_spec(codec);
  if (spec.parameters.count("density") + spec.parameters.count("keep") > 0 && spec.parameters.count("format") > 0)
    spec["format"] = "fp32";
  set(spec);
  return spec;
}

// All whose payloads are exchanged between any ranks: that is all but low_rank, which is made of a message's matrices,
// and sketch.
inline std::vector<RealCodec> real_codecs() {
  std::vector<RealCodec> list;
  const auto add = [&](const std::string& codec, double error, const std::function<void(CodecSpec&)>& set,
                       double floor = 0.0) {
    list.push_back({real_spec(codec, set), error, floor});
  };
  const auto plain = [](CodecSpec&) {};
  // Half a unit in the last place, and half of the smallest subnormal number.
  const auto cast = [&](const char* format, double error, double floor) {
    add(
        "cast", error, [=](CodecSpec& s) { s["format"] = format; }, floor);
  };
  cast("bf16", 0x1p-8, 0.0), cast("fp16", 0x1p-11, 0x1p-25);
  cast("e4m3", 0x1p-4, 0x1p-10), cast("e5m2", 0x1p-3, 0x1p-17);
  // Symmetric: an element opposite to the largest is cut by up to a whole step, of 1 / 2^(b-1); steps are rounded up.
  const auto integer = [&](int64_t bits, const char* scale) {
    const double step = 1.0 / static_cast<double>(int64_t{1} << (bits - 1));
    add(
        "block_int", step * 1.01, [=](CodecSpec& s) { s["bits"] = bits, s["scale"] = scale; }, 0x1p-22);
  };
  integer(8, "fp16"), integer(6, "bf16"), integer(4, "fp32"), integer(2, "fp16");
  add("block_int", 2.0 / 128, [](CodecSpec& s) { s["scale"] = "e8m0"; });
  // The levels span 2 m at most: half a step of it, and what the offset in fp16 rounds.
  add(
      "block_int", 2.0 / 255, [](CodecSpec& s) { s["asymmetric"] = true; }, 0x1p-22);
  // Stochastic: up to a whole step of 1 / 7.
  add(
      "block_int", 1.01 / 7, [](CodecSpec& s) { s["bits"] = 4, s["block"] = 64, s["rounding"] = "stochastic"; },
      0x1p-20);
  // 32 coefficients of sqrt(32) at most, and their 32 errors over sqrt(32).
  add(
      "block_int", 32 * 1.01 / 128, [](CodecSpec& s) { s.hadamard = true, s["block"] = 32; }, 0x1p-18);
  // The numbers between the largest of a format and the next power of two are cut; below, half a step.
  const auto mx = [&](const char* format, double error) {
    add(
        "mx", error, [=](CodecSpec& s) { s["format"] = format; }, 0x1p-20);
  };
  mx("mxfp8_e4m3", 0.126), mx("mxfp8_e5m2", 0.126), mx("mxfp6_e2m3", 0.08), mx("mxfp6_e3m2", 0.126);
  mx("mxfp4", 0.26), mx("nvfp4", 0.26);
  // A third at most, of a scale that bf16 rounds.
  add("e3m0", 0.34, plain);
  add("lloyd_max", 1.0, [](CodecSpec& s) { s["bits"] = 2, s["block"] = 64; });
  add("lloyd_max", 1.0, [](CodecSpec& s) { s["bits"] = 4, s["block"] = 64; });
  add("ecsq", 1.0, [](CodecSpec& s) { s["rate"] = 2.5; });
  add("one_bit", 1.0, plain);
  add("one_bit", 1.0, [](CodecSpec& s) { s["block"] = 64; });
  // 23 and 55 bits for four numbers, of which 3 at most say where they begin: 4 and 12 planes each are left.
  add("zfp", 0.25, [](CodecSpec& s) { s["rate"] = 8.0; });
  add("zfp", 0x1p-9, [](CodecSpec& s) { s["rate"] = 16.0; });
  add("mpc", 0.0, plain);
  add("entropy", 0.0, plain);
  // What is not kept is lost.
  add("top_k", 1.0, [](CodecSpec& s) { s["density"] = 0.1; });
  add("random_k", 1.0, [](CodecSpec& s) { s["density"] = 0.1, s["block"] = 256, s["format"] = "fp16"; });
  // Each kept value stands for its stratum of 4.
  add("random_k", 4.0, [](CodecSpec& s) { s["density"] = 0.25, s["block"] = 256, s["rounding"] = "stochastic"; });
  add("chunked_top_k", 1.0, [](CodecSpec& s) { s["keep"] = 16, s["block"] = 256, s["format"] = "bf16"; });
  return list;
}

}  // namespace thinwire
