// Cases of `bench op` on a GPU alone: a full gradient packed, and one rank's slice of it absorbed, beside the plain
// copy. Proved on samples: the bytes and bits of the CPU's coder.
#include <cstring>

#include "compression/codec_table.h"
#include "compression/device_coder.h"
#include "engine/base/core/error.h"
#include "engine/run/bench/bench_op_cases.h"

namespace thinwire {
namespace {

constexpr int64_t kGradient = int64_t{1} << 30, kSample = 1 << 15;
constexpr int kShares = 8;

struct CodedCase {
  std::shared_ptr<DeviceCoder> coder;
  std::shared_ptr<CompressionState> state;
  Msg msg;
  View tally;
};
CodedCase coded_case(Workbench& w, const CodecSpec& spec, const ResidualSpec& residual, int64_t count) {
  CodedCase c;
  c.coder = DeviceCoder::make(Coder(make_codec(spec).codec, spec, residual));
  if (c.coder == nullptr) throw_bad_config("bench op: this build has no kernels for codec " + spec.codec);
  c.state = c.coder->make_state(count, {}, {&w.device(), &w.stream()});
  c.msg.seed = 42, c.msg.slot = 7;
  c.tally = w.tensor(DType::u8, {static_cast<int64_t>(sizeof(DeviceTally))}, 0.0f);
  return c;
}
DeviceTally* tally_of(const CodedCase& c) {
  return static_cast<DeviceTally*>(c.tally.data);
}
std::span<std::byte> bytes_at(const View& payload, size_t first, size_t count) {
  return {static_cast<std::byte*>(payload.data) + first, count};
}
std::vector<std::byte> read(Workbench& w, std::span<const std::byte> from) {
  std::vector<std::byte> host(from.size());
  w.device().copy_to_host(host.data(), from.data(), host.size(), w.stream()).wait_on_host();
  return host;
}
View host_view(std::vector<std::byte>& bytes, int64_t count) {
  return View(bytes.data(), DType::f32, {count});
}
// Whether the CPU's coder gives the same in three places: 0 or 1.
double differs(int64_t count, const std::function<bool(int64_t first, int64_t n)>& same) {
  for (const int64_t first : {int64_t{0}, count / 2, count - kSample})
    if (!same(first / kSample * kSample, kSample)) return 1.0;
  return 0.0;
}

OpCase pack_case(Workbench& w, const CodecSpec& spec, const ResidualSpec& residual) {
  const CodedCase c = coded_case(w, spec, residual, kGradient);
  const Coder& host = c.coder->host();
  const View in = w.tensor(DType::f32, {kGradient}, 1e-3f);
  const View payload = w.tensor(DType::u8, {static_cast<int64_t>(host.wire_bytes(kGradient, DType::f32))}, 0.0f);
  OpCase o;
  o.bytes = static_cast<double>(in.bytes() + payload.bytes()) + (c.state ? 8.0 * kGradient : 0.0);
  o.run = [=, &w] {
    c.coder->queue_pack(w.exec(), c.msg, in, {}, bytes_at(payload, 0, payload.bytes()), c.state.get(), tally_of(c));
    if (c.state) c.state->commit();
  };
  o.error = [=, &w, &host] {  // of the first message, whose residual begins as nothing
    return differs(kGradient, [&](int64_t first, int64_t n) {
      std::vector<std::byte> x = read(w, {static_cast<std::byte*>(in.data) + first * 4, static_cast<size_t>(n) * 4});
      std::vector<std::byte> bytes(host.wire_bytes(n, DType::f32));
      const auto state = host.make_state(first + n, {});
      Msg msg = c.msg;
      msg.first = first;
      CompressionStats stats;
      host.pack(msg, host_view(x, n), {}, bytes, state.get(), stats);
      return bytes == read(w, bytes_at(payload, host.wire_bytes(first, DType::f32), bytes.size()));
    });
  };
  return o;
}

OpCase absorb_case(Workbench& w, const CodecSpec& spec) {
  constexpr int64_t kSlice = kGradient / kShares;
  const CodedCase c = coded_case(w, spec, {}, kSlice);
  const Coder& host = c.coder->host();
  const View in = w.tensor(DType::f32, {kSlice}, 1e-3f), out = w.tensor(DType::f32, {kSlice}, 0.0f);
  const size_t each = host.wire_bytes(kSlice, DType::f32);
  const View payloads = w.tensor(DType::u8, {static_cast<int64_t>(each) * kShares}, 0.0f);
  std::vector<Share> shares;
  for (int rank = 0; rank < kShares; ++rank) {
    Msg msg = c.msg;
    msg.rank = rank;
    const std::span<std::byte> payload = bytes_at(payloads, static_cast<size_t>(rank) * each, each);
    c.coder->queue_pack(w.exec(), msg, in, {}, payload, nullptr, tally_of(c));
    shares.push_back({payload, View(), rank});
  }
  OpCase o;
  o.bytes = static_cast<double>(payloads.bytes() + out.bytes());
  o.run = [=, &w] { c.coder->queue_absorb(w.exec(), c.msg, shares, out, false, tally_of(c)); };
  o.error = [=, &w, &host] {
    return differs(kSlice, [&](int64_t first, int64_t n) {
      std::vector<std::vector<std::byte>> parts;
      std::vector<Share> sampled = shares;
      for (Share& share : sampled) {
        parts.push_back(
            read(w, share.payload.subspan(host.wire_bytes(first, DType::f32), host.wire_bytes(n, DType::f32))));
        share.payload = parts.back();
      }
      std::vector<std::byte> sum(static_cast<size_t>(n) * 4);
      Msg msg = c.msg;
      msg.first = first;
      CompressionStats stats;
      host.absorb(msg, sampled, host_view(sum, n), false, stats);
      return sum == read(w, {static_cast<std::byte*>(out.data) + first * 4, sum.size()});
    });
  };
  return o;
}

}  // namespace

void list_codec_cases(std::vector<NamedCase>& list) {
  CodecSpec eight = codec_spec("block_int", {{"scale", "bf16"}});
  CodecSpec spread = codec_spec("block_int", {{"bits", 4}, {"block", 32}, {"scale", "bf16"}});
  spread.hadamard = true;
  const std::pair<const char*, CodecSpec> points[] = {{"cast_bf16", codec_spec("cast")},
                                                      {"block_int8", eight},
                                                      {"hadamard_block_int4", spread},
                                                      {"mxfp8", codec_spec("mx")},
                                                      {"e3m0", codec_spec("e3m0")}};
  for (const auto& [name, spec] : points) {
    list.push_back({std::string("pack/1b/") + name, [spec](Workbench& w) { return pack_case(w, spec, {}); }});
    list.push_back({std::string("absorb/1b/") + name, [spec](Workbench& w) { return absorb_case(w, spec); }});
  }
  ResidualSpec feedback;
  feedback.kind = ResidualKind::kErrorFeedback;
  list.push_back(
      {"pack/1b/block_int8_error_feedback", [eight, feedback](Workbench& w) { return pack_case(w, eight, feedback); }});
}

}  // namespace thinwire
