// Low rank on a device against that of the CPU: payloads, residuals, warm starts and decoded messages byte for byte, on
// random messages of all kinds. The kernels run on the emulation, and in CUDA builds once more on a GPU.
#include <gtest/gtest.h>

#include <optional>

#include "compression/device_coder.h"
#include "engine/base/core/error.h"
#include "tests/codecs/device_low_rank_fixtures.h"
#include "tests/support/coded_device.h"

namespace thinwire::test::device_low_rank_test {
namespace {

ResidualSpec random_residual(Random& random) {
  ResidualSpec residual;
  residual.kind = pick(random, {ResidualKind::kNone, ResidualKind::kErrorFeedback, ResidualKind::kLazy,
                                ResidualKind::kLazy, ResidualKind::kEma, ResidualKind::kValueDifference});
  residual.dtype =
      pick(random, {ResidualDtype::kFp32, ResidualDtype::kFp32, ResidualDtype::kBf16, ResidualDtype::kInt8});
  residual.reset_every = random() % 3 == 0 ? 2 : 0;
  residual.on_skip = pick(random, {OnSkip::kRestore, OnSkip::kRestore, OnSkip::kZero});
  return residual;
}

// ---- one message after another through both ------------------------------------------------------------------------
class Twins {
 public:
  Twins(Random& random, const CodecSpec& spec, const ResidualSpec& residual, Shape shape, Device& device,
        Stream& stream)
      : random_(random),
        shape_(std::move(shape)),
        device_(device),
        stream_(stream),
        exec_(make_exec(coded_ops(), device, stream, 1)),
        host_(make_codec(spec).codec, spec, residual),
        coder_(DeviceCoder::make(host_)),
        tally_(device, std::vector<std::byte>(sizeof(DeviceTally))) {
    host_state_ = host_.make_state(shape_.count, shape_.matrices);
    device_state_ = coder_->make_state(shape_.count, shape_.matrices, {&device_, &stream_});
    msg_.seed = random_(), msg_.slot = static_cast<uint32_t>(random_() % 9), msg_.matrices = shape_.matrices;
    msg_.step = within(random_, 0, 100), msg_.rank = 1, msg_.ranks = 2;
    in_type_ = random_type();
    if (!host_.value_difference()) return;
    replica_ = as_dtype(random_values(random_, shape_.count, false), in_type_);
    device_replica_.emplace(device_, replica_);
  }

  // Packs on both sides, and decodes; compares nothing yet.
  void step() {
    msg_.loss_scale = pick(random_, {1.0f, 1.0f, 1024.0f, 3.0f});
    msg_.train = random_() % 6 != 0;
    // One in four has its error measured whatever its residual.
    const auto place = static_cast<uint32_t>(msg_.step) + msg_.slot;
    msg_.sequence = random_() % 4 == 0 ? 64 - place % 64 : static_cast<uint32_t>(random_() % 3);
    const bool strange = random_() % 10 == 0;
    const Bytes in = as_dtype(random_message(random_, shape_, strange), in_type_);
    Message m;
    m.in.emplace(device_, in, size_of(in_type_) * (random_() % 3));
    m.host_payload.resize(host_.wire_bytes(shape_.count, in_type_));
    const size_t bytes = coder_->wire_bytes(msg_, shape_.count, in_type_);
    m.payload.emplace(device_, bytes, 4 * (random_() % 3));
    View own, device_own;
    if (host_.value_difference()) {
      own = View(replica_.data(), in_type_, {shape_.count}), device_own = device_replica_->view(in_type_);
    } else if (host_.keeps_decoded(msg_) && random_() % 3 == 0) {
      m.own_type = random_type();
      m.host_own.resize(static_cast<size_t>(shape_.count) * size_of(m.own_type), std::byte{0xCC});
      m.own.emplace(device_, m.host_own);
      own = View(m.host_own.data(), m.own_type, {shape_.count}), device_own = m.own->view(m.own_type);
    }
    const bool differs = host_.value_difference();
    CompressionStats stats;
    const View host_in(const_cast<std::byte*>(in.data()), in_type_, {shape_.count});
    m.host_payload.resize(
        host_.pack(msg_, host_in, differs ? own : View(), m.host_payload, host_state_.get(), stats, own));
    const size_t queued = coder_->queue_pack(exec_, msg_, m.in->view(in_type_), differs ? device_own : View(),
                                             m.payload->span(), device_state_.get(), tally(), device_own);
    EXPECT_EQ(m.host_payload.size(), queued);
    m.flagged = stats.non_finite > 0;
    flagged_ = flagged_ || m.flagged;
    stats_.add(stats);
    messages_.push_back(std::move(m));
    absorb(messages_.back());
  }
  // The step is applied or skipped.
  void settle() {
    const bool skipped = random_() % 3 == 0;
    for (CompressionState* state : {host_state_.get(), device_state_.get()})
      skipped ? state->roll_back() : state->commit();
    ++msg_.step;
  }
  // Each goes on from what the other would have saved.
  void change_places() {
    StateBytes host(device_), device(device_);
    host_state_->visit(host, ""), device_state_->visit(device, "");
    std::swap(host.all, device.all);
    host.loads = device.loads = true;
    host_state_->visit(host, ""), device_state_->visit(device, "");
  }

  // Everything, once all work has happened.
  void compare() {
    stream_.synchronize();
    const std::string name = host_.name() + " of " + std::to_string(shape_.count) + " elements, " +
                             std::to_string(shape_.matrices.size()) + " matrices, the first of " +
                             std::to_string(shape_.matrices[0].rows) + "x" + std::to_string(shape_.matrices[0].cols);
    for (size_t i = 0; i < messages_.size(); ++i) {
      const Message& m = messages_[i];
      const auto same = [&](const Bytes& host, const Bytes& device, DType dtype) {
        return difference(m.flagged ? one_nan(host, dtype) : host, m.flagged ? one_nan(device, dtype) : device);
      };
      ASSERT_EQ(same(m.host_payload, m.payload->content(), DType::f32), "") << name << ", payload " << i;
      ASSERT_EQ(same(m.host_out, m.out->content(), m.out_type), "") << name << ", decoded " << i;
      if (!m.own) continue;
      ASSERT_EQ(same(m.host_own, m.own->content(), m.own_type), "") << name << ", own copy " << i;
    }
    if (device_replica_) {
      ASSERT_EQ(difference(one_nan(replica_, in_type_), one_nan(device_replica_->content(), in_type_)), "")
          << name << ", replica";
    }
    StateBytes host(device_), device(device_);
    host_state_->visit(host, ""), device_state_->visit(device, "");
    ASSERT_EQ(host.all.size(), device.all.size());
    for (const auto& [part, bytes] : host.all)
      ASSERT_EQ(difference(bytes, device.all.at(part)), "") << name << ", " << part;
    DeviceTally tally;
    const Bytes found = tally_.content();
    std::memcpy(&tally, found.data(), sizeof tally);
    EXPECT_EQ(tally.flags, flagged_ ? kDeviceNonFinite : 0u) << name;
    const auto close = [&](double host, double device, const char* what) {
      if (std::isfinite(host) && host > 1e-30 && host < 1e30) {
        EXPECT_NEAR(device / host, 1.0, 1e-4) << name << ", " << what;
      }
    };
    close(stats_.error_square, tally.error_square, "error");
    close(stats_.signal_square, tally.signal_square, "signal");
    close(stats_.residual_square, tally.residual_square, "residual");
  }
  // Whether any matrix travels as factors.
  bool factors() const {
    return coder_->wire_bytes(msg_, shape_.count, DType::f32) < static_cast<size_t>(shape_.count) * sizeof(float);
  }
  bool flagged() const { return flagged_; }

 private:
  struct Message {
    std::optional<Buffer> in, payload, own, out;
    Bytes host_payload, host_own, host_out;
    DType own_type = DType::f32, out_type = DType::f32;
    bool flagged = false;
  };
  void absorb(Message& m) {
    const bool differs = host_.value_difference();
    m.out_type = random_type();
    m.host_out = as_dtype(random_values(random_, shape_.count, false), m.out_type);
    m.out.emplace(device_, m.host_out, size_of(m.out_type) * (random_() % 3));
    const bool accumulate = !differs && random_() % 2 == 0;
    const Share host{m.host_payload, View(), 0}, there{m.payload->span(), View(), 0};
    CompressionStats stats;
    host_.absorb(msg_, {&host, 1}, View(m.host_out.data(), m.out_type, {shape_.count}), accumulate, stats);
    coder_->queue_absorb(exec_, msg_, {&there, 1}, m.out->view(m.out_type), accumulate, tally());
  }
  DType random_type() { return pick(random_, {DType::f32, DType::f32, DType::bf16, DType::f16}); }
  DeviceTally* tally() { return reinterpret_cast<DeviceTally*>(tally_.data()); }

  Random& random_;
  Shape shape_;
  Device& device_;
  Stream& stream_;
  Exec exec_;
  Coder host_;
  std::unique_ptr<DeviceCoder> coder_;
  Buffer tally_;
  DType in_type_ = DType::f32;
  std::unique_ptr<CompressionState> host_state_, device_state_;
  Bytes replica_;
  std::optional<Buffer> device_replica_;
  Msg msg_;
  std::vector<Message> messages_;
  CompressionStats stats_;
  bool flagged_ = false;
};

CodecSpec random_spec(Random& random) {
  return codec_spec("low_rank", {{"rank", pick<int64_t>(random, {1, 2, 3, 4, 4, 8, 9, 16, 17, 55, 1000})},
                                 {"min_compression_rate", pick(random, {1.0, 1.0, 1.0, 1.5, 4.0})}});
}

void play_case(Random& random, Device& device, Stream& stream, Seen& seen) {
  const CodecSpec spec = random_spec(random);
  const ResidualSpec residual = random_residual(random);
  Twins twins(random, spec, residual, random_shape(random), device, stream);
  for (int64_t step = within(random, 1, 4); step > 0; --step) {
    twins.step();
    if (random() % 4 == 0) twins.step();  // the same slot again
    twins.settle();
    if (random() % 4 == 0) twins.change_places();
  }
  twins.compare();
  seen.factored += twins.factors(), seen.broken += twins.flagged();
}

TEST(DeviceLowRank, HasTheBytesOfTheHost) {
  play_cases(400, 3, play_case);
}
TEST(DeviceLowRank, NeverLooksAtDeviceMemory) {
  play_strictly(60, 7, play_case);
}

// Whoever wrote them: factors of any numbers, NaN and infinity among them.
TEST(DeviceLowRank, DecodesAnyBytesAsTheHostDoes) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Exec exec = make_exec(coded_ops(), *device, *stream, 1);
  const Buffer tally(*device, std::vector<std::byte>(sizeof(DeviceTally)));
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    Random random(static_cast<uint64_t>(i) * 7919 + 5);
    const CodecSpec spec = random_spec(random);
    const Shape shape = random_shape(random);
    const auto coder = DeviceCoder::make(Coder(make_codec(spec).codec, spec, {}));
    Msg msg;
    msg.matrices = shape.matrices;
    const auto numbers = static_cast<int64_t>(coder->wire_bytes(msg, shape.count, DType::f32) / sizeof(float));
    const Bytes payload = as_dtype(random_values(random, numbers, random() % 2 == 0), DType::f32);
    Bytes host = as_dtype(random_values(random, shape.count, false), DType::f32);
    const Buffer in(*device, payload), out(*device, host);
    const bool accumulate = random() % 2 == 0;
    const Share share{payload, View(), 0}, device_share{in.span(), View(), 0};
    CompressionStats stats;
    coder->host().absorb(msg, {&share, 1}, View(host.data(), DType::f32, {shape.count}), accumulate, stats);
    coder->queue_absorb(exec, msg, {&device_share, 1}, out.view(DType::f32), accumulate,
                        reinterpret_cast<DeviceTally*>(tally.data()));
    stream->synchronize();
    ASSERT_EQ(difference(one_nan(host, DType::f32), one_nan(out.content(), DType::f32)), "")
        << coder->host().name() << ", case " << i;
  }
}

TEST(DeviceLowRank, RefusesPayloadsOfAnotherLength) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Exec exec = make_exec(coded_ops(), *device, *stream, 1);
  const CodecSpec spec = codec_spec("low_rank");
  const auto coder = DeviceCoder::make(Coder(make_codec(spec).codec, spec, {}));
  const MatrixShape matrix{0, 20, 30};
  Msg msg;
  msg.matrices = {&matrix, 1};
  EXPECT_EQ(coder->wire_bytes(msg, 600, DType::bf16), 4u * 4u * (20u + 30u));
  const Buffer out(*device, size_t{2400}), tally(*device, std::vector<std::byte>(sizeof(DeviceTally)));
  for (const size_t bytes : {size_t{796}, size_t{804}}) {
    const Buffer payload(*device, bytes);
    const Share share{payload.span(), View(), 3};
    try {
      coder->queue_absorb(exec, msg, {&share, 1}, out.view(DType::f32), false,
                          reinterpret_cast<DeviceTally*>(tally.data()));
      ADD_FAILURE() << bytes << " bytes were taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
      EXPECT_NE(std::string(e.what()).find("rank 3"), std::string::npos) << e.what();
    }
  }
}

TEST(DeviceLowRank, SaysWhatItDoesNotCover) {
  EXPECT_NE(make_device_codec(codec_spec("low_rank")), nullptr);
  EXPECT_EQ(make_device_codec(codec_spec("low_rank", {{"sides", int64_t{1}}})), nullptr);
  EXPECT_EQ(make_device_codec(codec_spec("low_rank", {{"rank", int64_t{5000}}})), nullptr);
}

}  // namespace
}  // namespace thinwire::test::device_low_rank_test
