// Plays inputs of the fuzzer: codecs one payload at a time, codecs in rounds, and the Coder in front of them.
#include "tests/fuzz/fuzz_input.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "compression/data_kinds.h"
#include "engine/base/core/error.h"

namespace thinwire::fuzz {
namespace {

// What selectors keep travels in fp32 where nothing else is said.
CodecSpec spec_of(const std::string& codec, const CodecValues& parameters = {}) {
  CodecSpec spec = codec_spec(codec, parameters);
  if (codec_row(codec).selects && codec != "sketch" && parameters.count("format") == 0) spec["format"] = "fp32";
  return spec;
}

std::vector<CodecSpec> block_int_specs() {
  std::vector<CodecSpec> specs;
  for (int64_t bits : {8, 6, 4, 2})
    for (const char* scale : {"fp32", "fp16", "bf16", "e8m0"})
      for (bool asymmetric : {false, true}) {
        if (asymmetric && std::string(scale) == "e8m0") continue;
        const int64_t block = asymmetric ? 32 : bits == 6 ? 20 : 0;
        specs.push_back(spec_of("block_int", {{"bits", bits},
                                              {"scale", scale},
                                              {"asymmetric", asymmetric},
                                              {"block", block},
                                              {"rounding", bits == 4 && !asymmetric ? "stochastic" : "nearest"}}));
      }
  return specs;
}

std::vector<CodecSpec> formats(const std::string& codec, std::initializer_list<const char*> names) {
  std::vector<CodecSpec> specs;
  for (const char* name : names) specs.push_back(spec_of(codec, {{"format", name}}));
  return specs;
}

std::vector<CodecSpec> sparse_specs() {
  std::vector<CodecSpec> specs;
  for (const char* format : {"fp32", "bf16", "fp16"}) {
    for (double density : {0.01, 0.1, 0.5})
      specs.push_back(spec_of("top_k", {{"format", format}, {"density", density}}));
    specs.push_back(spec_of("random_k", {{"format", format}, {"density", 0.1}, {"block", 64}}));
    specs.push_back(spec_of("chunked_top_k", {{"format", format}, {"keep", 5}, {"block", 64}}));
  }
  specs.push_back(spec_of("random_k", {{"density", 0.3}, {"rounding", "stochastic"}, {"block", 48}}));
  specs.push_back(spec_of("chunked_top_k", {{"format", "2bit"}, {"keep", 16}, {"block", 256}}));
  return specs;
}

std::vector<CodecSpec> coder_specs() {
  std::vector<CodecSpec> specs = {spec_of("identity"),
                                  spec_of("cast"),
                                  spec_of("block_int"),
                                  spec_of("block_int", {{"bits", 4}}),
                                  spec_of("mx", {{"format", "mxfp4"}}),
                                  spec_of("e3m0"),
                                  spec_of("lloyd_max", {{"bits", 3}}),
                                  spec_of("one_bit"),
                                  spec_of("one_bit", {{"block", 64}}),
                                  spec_of("zfp"),
                                  spec_of("mpc"),
                                  spec_of("entropy"),
                                  spec_of("low_rank"),
                                  spec_of("top_k", {{"density", 0.1}}),
                                  spec_of("random_k"),
                                  spec_of("chunked_top_k"),
                                  spec_of("ecsq", {{"rate", 2.5}})};
  specs[3].hadamard = true;
  return specs;
}

// A block of memory that ends where it ends, `shift` bytes behind an aligned address.
class Exact {
 public:
  Exact(size_t bytes, size_t shift) : whole_(new std::byte[bytes + shift]), data_(whole_.get() + shift), bytes_(bytes) {
    std::memset(whole_.get(), 0x3f, bytes + shift);
  }
  Exact(std::span<const uint8_t> from, size_t bytes, size_t shift) : Exact(bytes, shift) {
    std::fill_n(data_, bytes, std::byte{0});
    const size_t most = std::min(bytes, from.size());
    if (most > 0) std::memcpy(data_, from.data(), most);
  }
  std::span<std::byte> span() { return {data_, bytes_}; }
  View view(DType dtype) { return View(data_, dtype, {static_cast<int64_t>(bytes_ / size_of(dtype))}); }

 private:
  std::unique_ptr<std::byte[]> whole_;
  std::byte* data_;
  size_t bytes_;
};

Header header_of(std::span<const uint8_t> in) {
  return {in[0], static_cast<uint16_t>(in[1] | in[2] << 8), in[3], in[4]};
}

struct Case {
  const CodecSpec* spec = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
  size_t shift = 0;
  std::vector<MatrixShape> matrices;
  Msg msg;
};

Case case_of(const Target& target, const Header& h) {
  Case c;
  c.spec = &target.specs[h.spec % target.specs.size()];
  c.count = h.count % (target.most + 1);
  const int type = h.flags >> 2 & 3;
  c.dtype = type == 1 ? DType::bf16 : type == 2 ? DType::f16 : DType::f32;
  c.shift = h.flags >> 4 & 3;
  if (c.count > 0) {
    // One matrix as wide as the header says, and what does not fill a row raw.
    const int64_t cols = std::min<int64_t>(c.count, 1 + h.extra % 64);
    c.matrices.push_back({0, c.count / cols, cols});
  }
  c.msg.seed = 0x5eed;
  c.msg.slot = 3;
  c.msg.step = 17;
  c.msg.rank = 1;
  c.msg.ranks = 4;
  c.msg.threads = 1;
  return c;
}

bool is_bad_data(const Error& e) {
  return e.code() == ExitCode::kBadData;
}

// ---- one payload
// -----------------------------------------------------------------------------------------------------
bool play_codec(const Case& c, const Header& h, std::span<const uint8_t> payload) {
  const auto codec = make_codec(*c.spec).codec;
  const Traits traits = codec->traits();
  const DType dtype = traits.native ? c.dtype : DType::f32;
  const bool accumulate = (h.flags & kAccumulate) && dtype == DType::f32;
  const bool fit = (h.flags & kFit) && !traits.framed;
  Msg msg = c.msg;
  msg.matrices = c.matrices;
  msg.first = traits.granule * (h.extra & 3);
  Exact in(payload, fit ? codec->wire_bytes(c.count, dtype) : payload.size(), c.shift);
  Exact out(static_cast<size_t>(c.count) * size_of(dtype), 0);
  codec->decode(msg, in.span(), out.view(dtype), accumulate);
  return true;
}

// ---- rounds
// ---------------------------------------------------------------------------------------------------------- What a
// hostile rank could bring into the sums: the payload's bytes where the reduced numbers are expected.
bool play_rounds(const Case& c, const Header& h, std::span<const uint8_t> payload) {
  const auto codec = make_codec(*c.spec).rounds;
  Msg msg = c.msg;
  msg.matrices = c.matrices;
  msg.ranks = 1 + h.extra % 9;
  msg.rank = 0;
  const auto state = codec->make_state(c.count, c.matrices);
  std::vector<float> x = make_data(DataKind::kGaussian, c.count, 7);
  const View view(x.data(), DType::f32, {c.count});
  for (int message = 0; message < 2; ++message) {  // the second one on the warm start that the first one left
    for (int r = 0; r < codec->rounds(); ++r) {
      const Round round = codec->round(r, msg, c.count, *state);
      Exact wire(static_cast<size_t>(round.count) * size_of(round.dtype), 0);
      codec->pack(r, msg, view, wire.view(round.dtype), *state);
      const size_t bytes = std::min(wire.span().size(), payload.size());
      if (bytes > 0) std::memcpy(wire.span().data(), payload.data(), bytes);
      payload = payload.subspan(bytes);
      codec->absorb(r, msg, wire.view(round.dtype), 0, *state);
    }
    const int64_t first = c.count / 3;
    Exact out(static_cast<size_t>(c.count - first) * 4, 0);
    codec->result(msg, first, out.view(DType::f32), (h.flags & kAccumulate) != 0, *state);
    codec->own_error(msg, view, *state);
    ++msg.step;
  }
  return true;
}

// ---- coder
// -----------------------------------------------------------------------------------------------------------
bool play_coder(const Case& c, const Header& h, std::span<const uint8_t> payload) {
  const auto codec = make_codec(*c.spec).codec;
  const bool difference = (h.extra & 0x80) && codec->traits().contractive && !codec->traits().lossless;
  ResidualSpec residual;
  if (difference) residual.kind = ResidualKind::kValueDifference;
  const Coder coder(codec, *c.spec, residual);
  Msg msg = c.msg;
  msg.matrices = c.matrices;
  const bool fit = (h.flags & kFit) && !coder.traits().framed;
  const size_t bytes = fit ? coder.wire_bytes(c.count, c.dtype) : payload.size();
  Exact in(payload, bytes, c.shift);
  std::vector<float> own = make_data(DataKind::kGaussian, c.count, 5);
  std::vector<Share> shares = {{in.span(), View(), 2}};
  if (!difference && (h.extra & 0x40)) shares.push_back({{}, View(own.data(), DType::f32, {c.count}), 1});
  if (!difference && (h.extra & 0x20)) shares.push_back({in.span(), View(), 3});
  Exact out(static_cast<size_t>(c.count) * size_of(c.dtype), 0);
  CompressionStats stats;
  coder.absorb(msg, shares, out.view(c.dtype), (h.flags & kAccumulate) != 0, stats);
  return true;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = [] {
    std::vector<Target> list;
    std::vector<CodecSpec> casts = formats("cast", {"bf16", "fp16", "e4m3", "e5m2"});
    casts.push_back(spec_of("identity"));
    list.push_back({"cast", std::move(casts), 700});
    list.push_back({"block_int", block_int_specs(), 700});
    list.push_back(
        {"mx", formats("mx", {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"}), 700});
    list.push_back({"e3m0", {spec_of("e3m0"), spec_of("e3m0", {{"block", 21}})}, 700});
    std::vector<CodecSpec> lloyd_max;
    for (int64_t bits : {2, 3, 4})
      for (int64_t block : {16, 64}) lloyd_max.push_back(spec_of("lloyd_max", {{"bits", bits}, {"block", block}}));
    list.push_back({"lloyd_max", std::move(lloyd_max), 700});
    std::vector<CodecSpec> ecsq;
    for (double rate : {2.0, 2.5, 3.3, 5.0, 1.0, 1.5})
      for (int64_t block : {64, 192}) ecsq.push_back(spec_of("ecsq", {{"rate", rate}, {"block", block}}));
    list.push_back({"ecsq", std::move(ecsq), 1200});
    std::vector<CodecSpec> one_bit;
    for (int64_t block : {0, 1024, 64}) one_bit.push_back(spec_of("one_bit", {{"block", block}}));
    list.push_back({"one_bit", std::move(one_bit), 2000});
    std::vector<CodecSpec> zfp;
    for (double rate : {2.25, 3.0, 4.0, 7.5, 8.0, 12.0, 16.0, 16.25, 24.0, 32.0})
      zfp.push_back(spec_of("zfp", {{"rate", rate}}));
    list.push_back({"zfp", std::move(zfp), 600});
    std::vector<CodecSpec> mpc;
    for (int64_t dimension : {1, 2, 5, 32}) mpc.push_back(spec_of("mpc", {{"dimension", dimension}}));
    list.push_back({"mpc", std::move(mpc), 3100});
    list.push_back({"entropy", {spec_of("entropy")}, 1200});
    std::vector<CodecSpec> low_rank;
    for (int64_t rank : {1, 2, 4, 7})
      for (int64_t sides : {2, 1}) low_rank.push_back(spec_of("low_rank", {{"rank", rank}, {"sides", sides}}));
    list.push_back({"low_rank", low_rank, 400});
    list.push_back({"low_rank_rounds", std::move(low_rank), 400, true});
    std::erase_if(list[list.size() - 2].specs, [](const CodecSpec& s) { return s.integer("sides") == 1; });
    list.push_back({"sparse", sparse_specs(), 700});
    std::vector<CodecSpec> sketch;
    for (double density : {0.02, 0.2, 0.4})
      for (bool compact : {true, false})
        sketch.push_back(spec_of("sketch", {{"density", density}, {"compact", compact}}));
    list.push_back({"sketch", std::move(sketch), 700, true});
    list.push_back({"coder", coder_specs(), 500});
    for (const CodecRow& row : codec_table()) {
      const bool covered = std::any_of(list.begin(), list.end(), [&](const Target& t) {
        return std::any_of(t.specs.begin(), t.specs.end(), [&](const CodecSpec& s) { return s.codec == row.name; });
      });
      if (covered) continue;
      std::vector<CodecSpec> specs;
      for (const CodecValues& values : row.cases) specs.push_back(codec_spec(row.name, values));
      const bool in_rounds = make_codec(specs.front()).codec == nullptr;
      list.push_back({row.name, std::move(specs), 700, in_rounds});
    }
    return list;
  }();
  return all;
}

const Target& target(const std::string& name) {
  for (const Target& t : targets())
    if (t.name == name) return t;
  throw std::logic_error("no fuzz target " + name);
}

bool play(const Target& target, std::span<const uint8_t> input) {
  if (input.size() < kFuzzHeader) return false;
  const Header h = header_of(input);
  const std::span<const uint8_t> payload = input.subspan(kFuzzHeader);
  const Case c = case_of(target, h);
  try {
    if (target.name == "coder") return play_coder(c, h, payload);
    if (target.rounds) return play_rounds(c, h, payload);
    return play_codec(c, h, payload);
  } catch (const Error& e) {
    if (is_bad_data(e)) return false;
    throw;
  }
}

std::vector<uint8_t> make_input(const Target& target, const Header& h, uint64_t seed) {
  const Case c = case_of(target, h);
  std::vector<uint8_t> bytes = {h.spec, static_cast<uint8_t>(h.count), static_cast<uint8_t>(h.count >> 8), h.flags,
                                h.extra};
  const std::vector<float> x = make_data(kDataKinds[seed % 5], c.count, seed);
  Msg msg = c.msg;
  msg.matrices = c.matrices;
  const auto append = [&](std::span<const std::byte> more) {
    for (std::byte b : more) bytes.push_back(static_cast<uint8_t>(b));
  };
  View in(const_cast<float*>(x.data()), DType::f32, {c.count});
  const MadeCodec made = make_codec(*c.spec);
  if (target.rounds) {
    const auto state = made.rounds->make_state(c.count, c.matrices);
    msg.ranks = 1 + h.extra % 9;
    msg.rank = 0;
    for (int r = 0; r < made.rounds->rounds(); ++r) {
      const Round round = made.rounds->round(r, msg, c.count, *state);
      Exact wire(static_cast<size_t>(round.count) * size_of(round.dtype), 0);
      made.rounds->pack(r, msg, in, wire.view(round.dtype), *state);
      append(wire.span());
      made.rounds->absorb(r, msg, wire.view(round.dtype), 0, *state);
    }
    return bytes;
  }
  const bool coded = target.name == "coder";
  const Traits traits = made.codec->traits();
  std::vector<Bf16> narrow(x.size());
  std::vector<Fp16> half(x.size());
  if (traits.native && !coded && c.dtype != DType::f32) {
    for (size_t i = 0; i < x.size(); ++i) narrow[i] = to_bf16(x[i]), half[i] = to_fp16(x[i]);
    void* data = c.dtype == DType::bf16 ? static_cast<void*>(narrow.data()) : half.data();
    in = View(data, c.dtype, {c.count});
  }
  if (coded) {
    const Coder coder(made.codec, *c.spec, {});
    Exact out(coder.wire_bytes(c.count, DType::f32), 0);
    const auto state = coder.make_state(c.count, c.matrices);
    CompressionStats stats;
    append(out.span().first(coder.pack(msg, in, View(), out.span(), state.get(), stats)));
    return bytes;
  }
  msg.first = traits.granule * (h.extra & 3);
  Exact out(made.codec->wire_bytes(c.count, in.dtype), 0);
  const auto state = made.codec->make_state(c.count, c.matrices);
  append(out.span().first(made.codec->encode(msg, in, out.span(), state.get()).bytes));
  return bytes;
}

}  // namespace thinwire::fuzz
