// Device coders against the coders of the CPU: payloads, residuals and decoded sums byte for byte, on random cases and
// on the fuzzer's payloads. The kernels run on the emulation, and in CUDA builds once more on a GPU.
#include "compression/device_coder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "engine/base/core/error.h"
#include "tests/codecs/device_fixtures.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/coded_device.h"
#include "tests/support/thorough.h"

namespace thinwire::test::device_coder_test {
namespace {

// ---- cases ---------------------------------------------------------------------------------------------------------
CodecSpec random_spec(Random& random, const std::string& family) {
  if (family == "plain")
    return random() % 5 == 0
               ? codec_spec("identity")
               : codec_spec("cast", {{"format", pick<std::string>(random, {"bf16", "fp16", "e4m3", "e5m2"})}});
  if (family == "mx")
    return codec_spec("mx", {{"format", pick<std::string>(random, {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3",
                                                                   "mxfp6_e3m2", "mxfp4", "nvfp4"})}});
  if (family == "zfp")
    return codec_spec("zfp",
                      {{"rate", random() % 2 == 0 ? pick(random, {2.25, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0})
                                                  : 2.25 + 29.75 * static_cast<double>(random() % 1000) / 999.0}});
  const int64_t block = random() % 2 == 0   ? pick<int64_t>(random, {16, 32, 64, 128, 256, 512, 1024, 2048, 4096})
                        : random() % 2 == 0 ? within(random, 2, 40)
                                            : within(random, 2, 4096);
  if (family == "e3m0") return codec_spec("e3m0", {{"block", block}});
  const bool asymmetric = random() % 3 == 0;
  return codec_spec("block_int",
                    {{"block", block},
                     {"bits", pick<int64_t>(random, {8, 6, 4, 2})},
                     {"asymmetric", asymmetric},
                     {"scale", asymmetric ? pick<std::string>(random, {"fp32", "fp16", "bf16"})
                                          : pick<std::string>(random, {"fp32", "fp16", "bf16", "e8m0"})},
                     {"rounding", random() % 3 == 0 ? std::string("stochastic") : std::string("nearest")}});
}

// A point that has a device side. Combinations that make no sense are drawn again.
struct Point {
  CodecSpec spec;
  ResidualSpec residual;
  std::unique_ptr<Coder> host;
  std::unique_ptr<DeviceCoder> device;
};
Point random_point(Random& random, const std::string& family) {
  for (;;) {
    Point p;
    p.spec = random_spec(random, family);
    p.spec.hadamard = random() % 3 == 0;
    p.residual.kind = pick(
        random, {ResidualKind::kNone, ResidualKind::kNone, ResidualKind::kErrorFeedback, ResidualKind::kErrorFeedback,
                 ResidualKind::kLazy, ResidualKind::kEma, ResidualKind::kValueDifference});
    p.residual.dtype = pick(random, {ResidualDtype::kFp32, ResidualDtype::kBf16, ResidualDtype::kInt8});
    p.residual.reset_every = random() % 3 == 0 ? 2 : 0;
    p.residual.on_skip = pick(random, {OnSkip::kRestore, OnSkip::kRestore, OnSkip::kZero});
    const auto codec = make_codec(p.spec).codec;
    try {
      p.host = std::make_unique<Coder>(codec, p.spec, p.residual);
    } catch (const Error&) {
      continue;
    }
    EXPECT_NE(make_device_codec(p.spec), nullptr) << codec->name();  // the emulation's, not those of the build
    p.device = DeviceCoder::make(*p.host);
    if (p.device != nullptr) return p;
  }
}

int64_t random_count(Random& random) {
  const auto way = random() % 20;
  if (way < 4) return way == 0 ? within(random, 4090, 9000) : pick<int64_t>(random, {4096, 8192, 8200});
  return way < 6 ? within(random, 500, 2000) : within(random, 1, 300);
}

// ---- one message after another through both ------------------------------------------------------------------------
class Twins {
 public:
  Twins(Random& random, Point point, Device& device, Stream& stream, int64_t count = 0)
      : random_(random),
        point_(std::move(point)),
        device_(device),
        stream_(stream),
        exec_(make_exec(coded_ops(), device, stream, 1)),
        tally_(device, std::vector<std::byte>(sizeof(DeviceTally))) {
    const Coder& host = *point_.host;
    const bool eight = host.traits().stateful && stored_in(point_.residual) == ResidualDtype::kInt8;
    const int64_t unit = std::lcm(host.granule(), eight ? kResidualBlock : 1);
    count_ = count > 0 ? count : random_count(random_);
    aligned_ = random_() % 2 == 0;
    first_ = random_() % 2 == 0 ? 0 : unit * within(random_, 1, 3);
    slot_count_ = first_ + count_ + within(random_, 0, 50);
    in_type_ = random_type();
    replica_type_ = random_type();
    host_state_ = host.make_state(slot_count_, {});
    device_state_ = point_.device->make_state(slot_count_, {}, {&device_, &stream_});
    msg_.seed = random_(), msg_.slot = static_cast<uint32_t>(random_() % 9), msg_.first = first_;
    msg_.step = within(random_, 0, 100), msg_.rank = static_cast<int>(random_() % 4), msg_.ranks = 4;
    if (count_ % 3 == 0) padding_ = {{first_ + count_ / 3, 1 + count_ / 7}, {first_ + count_ - 1, 9}};
    msg_.padding = padding_;
    if (host.value_difference()) {
      replica_ = as_dtype(random_values(random_, count_, false), replica_type_);
      device_replica_.emplace(device_, replica_, shift(size_of(replica_type_)));
    }
  }

  // Packs on both sides; compares nothing yet, so that a queue may be long.
  void step() {
    const Coder& host = *point_.host;
    const bool strange = random_() % 8 == 0;
    msg_.loss_scale = pick(random_, {1.0f, 1.0f, 1024.0f, 3.0f});
    msg_.train = random_() % 8 != 0;
    msg_.sequence = static_cast<uint32_t>(random_() % 3);
    const Bytes in = as_dtype(random_values(random_, count_, strange), in_type_);
    Message m;
    m.in.emplace(device_, in, shift(size_of(in_type_)));
    const size_t room = host.wire_bytes(count_, in_type_);
    m.payload.emplace(device_, room, shift(host.traits().alias ? size_of(in_type_) : 1));
    m.host_payload.resize(room);
    View own, device_own;
    Bytes host_own;
    if (host.value_difference()) {
      own = View(replica_.data(), replica_type_, {count_}), device_own = device_replica_->view(replica_type_);
    } else if (host.keeps_decoded(msg_) && random_() % 2 == 0) {
      m.own_type = random_type();
      host_own.resize(static_cast<size_t>(count_) * size_of(m.own_type), std::byte{0xCC});
      m.own.emplace(device_, host_own, shift(size_of(m.own_type)));
      own = View(host_own.data(), m.own_type, {count_}), device_own = m.own->view(m.own_type);
    }
    const View reference = host.value_difference() ? own : View();
    const View device_reference = host.value_difference() ? device_own : View();
    CompressionStats stats;
    const View host_in(const_cast<std::byte*>(in.data()), in_type_, {count_});
    const size_t bytes = host.pack(msg_, host_in, reference, m.host_payload, host_state_.get(), stats, own);
    const size_t queued = point_.device->queue_pack(exec_, msg_, m.in->view(in_type_), device_reference,
                                                    m.payload->span(), device_state_.get(), tally(), device_own);
    EXPECT_EQ(bytes, queued);
    m.flagged = stats.non_finite > 0;
    flagged_ = flagged_ || m.flagged;
    m.host_own = host_own;
    totals_.add(stats);
    messages_.push_back(std::move(m));
  }
  // The step is applied or skipped.
  void settle() {
    const bool skipped = random_() % 3 == 0;
    for (CompressionState* state : {host_state_.get(), device_state_.get()})
      if (state != nullptr) skipped ? state->roll_back() : state->commit();
    ++msg_.step;
  }

  // The sum of some of the messages so far, and plain values.
  void absorb() {
    const Coder& host = *point_.host;
    const bool differences = host.value_difference();
    std::vector<Share> shares, device_shares;
    Sum sum;
    sum.type = differences ? replica_type_ : random_type();
    sum.host = differences ? replica_ : as_dtype(random_values(random_, count_, false), sum.type);
    sum.out.emplace(device_, sum.host, shift(size_of(sum.type)));
    const bool accumulate = random_() % 2 == 0;
    const auto most = differences ? 1 : random_() % 40 == 0 ? 140 : within(random_, 0, 4);
    for (int64_t i = 0; i < most; ++i) {
      Message& m = messages_[random_() % messages_.size()];
      const int rank = static_cast<int>(i);
      const bool fits = host.traits().alias == false || in_type_ == DType::f32 || in_type_ == sum.type;
      if (differences || (fits && random_() % 4 != 0)) {
        shares.push_back({m.host_payload, View(), rank});
        device_shares.push_back({m.payload->span(), View(), rank});
      } else {
        const DType type = random_type();
        plain_.push_back(std::make_unique<Bytes>(as_dtype(random_values(random_, count_, false), type)));
        device_plain_.push_back(std::make_unique<Buffer>(device_, *plain_.back(), shift(size_of(type))));
        shares.push_back({{}, View(plain_.back()->data(), type, {count_}), rank});
        device_shares.push_back({{}, device_plain_.back()->view(type), rank});
      }
    }
    // The owner's share may lie where the sum goes.
    if (!differences && !accumulate && most > 0 && random_() % 4 == 0) {
      shares[0] = {{}, View(sum.host.data(), sum.type, {count_}), 0};
      device_shares[0] = {{}, sum.out->view(sum.type), 0};
    }
    CompressionStats stats;
    host.absorb(msg_, shares, View(sum.host.data(), sum.type, {count_}), accumulate, stats);
    point_.device->queue_absorb(exec_, msg_, device_shares, sum.out->view(sum.type), accumulate, tally());
    sums_.push_back(std::move(sum));
  }

  // Everything, once all work has happened.
  void compare() {
    stream_.synchronize();
    const std::string name = point_.host->name();
    for (size_t i = 0; i < messages_.size(); ++i) {
      const Message& m = messages_[i];
      // Of a message that is not finite nobody promises the bytes; they are equal where no arithmetic met its NaN.
      const bool reckoned = point_.spec.hadamard || point_.residual.kind != ResidualKind::kNone;
      if (!m.flagged || !reckoned) {
        ASSERT_EQ(difference(m.host_payload, m.payload->content()), "")
            << name << ", payload " << i << " of " << count_ << " elements";
      }
      if (!m.own) continue;
      ASSERT_EQ(difference(one_nan(m.host_own, m.own_type), one_nan(m.own->content(), m.own_type)), "")
          << name << ", own copy " << i << " of " << count_ << " elements";
    }
    if (device_replica_) {
      ASSERT_EQ(difference(one_nan(replica_, replica_type_), one_nan(device_replica_->content(), replica_type_)), "")
          << name << ", replica";
    }
    for (const Sum& sum : sums_)
      ASSERT_EQ(difference(one_nan(sum.host, sum.type), one_nan(sum.out->content(), sum.type)), "")
          << name << ", sum of " << count_ << " elements in " << name_of(sum.type);
    if (host_state_) {
      StateBytes host(device_), device(device_);
      host_state_->visit(host, "");
      device_state_->visit(device, "");
      ASSERT_EQ(host.all.size(), device.all.size());
      EXPECT_EQ(host_state_->bytes(), device_state_->bytes());
      for (const auto& [part, bytes] : host.all)
        ASSERT_EQ(difference(bytes, device.all.at(part)), "") << name << ", " << part << " of " << slot_count_;
    }
    const Bytes tally_bytes = tally_.content();
    DeviceTally tally;
    std::memcpy(&tally, tally_bytes.data(), sizeof tally);
    EXPECT_EQ(tally.flags, flagged_ ? kDeviceNonFinite : 0u) << name;
    const auto close = [&](double host, double device, const char* what) {
      if (std::isfinite(host) && host > 1e-30 && host < 1e30) {
        EXPECT_NEAR(device / host, 1.0, 1e-4) << name << ", " << what << ", " << count_ << " elements";
      }
    };
    close(totals_.error_square, tally.error_square, "error");
    close(totals_.signal_square, tally.signal_square, "signal");
    close(totals_.residual_square, tally.residual_square, "residual");
  }

 private:
  struct Message {
    std::optional<Buffer> in, payload, own;
    Bytes host_payload, host_own;
    DType own_type = DType::f32;
    bool flagged = false;
  };
  struct Sum {
    Bytes host;
    std::optional<Buffer> out;
    DType type = DType::f32;
  };
  // Where a buffer begins. Half of the cases have whole tiles that vectors reach, if they have whole tiles.
  size_t shift(size_t element) { return aligned_ ? 0 : element * (random_() % 4); }
  DType random_type() { return pick(random_, {DType::f32, DType::f32, DType::bf16, DType::f16}); }
  DeviceTally* tally() { return reinterpret_cast<DeviceTally*>(tally_.data()); }

  Random& random_;
  Point point_;
  Device& device_;
  Stream& stream_;
  Exec exec_;
  Buffer tally_;
  int64_t count_ = 0, first_ = 0, slot_count_ = 0;
  bool aligned_ = false;
  DType in_type_ = DType::f32, replica_type_ = DType::f32;
  std::unique_ptr<CompressionState> host_state_, device_state_;
  Bytes replica_;
  std::optional<Buffer> device_replica_;
  Msg msg_;
  std::vector<ElementRange> padding_;
  std::vector<Message> messages_;
  std::vector<Sum> sums_;
  std::vector<std::unique_ptr<Bytes>> plain_;
  std::vector<std::unique_ptr<Buffer>> device_plain_;
  CompressionStats totals_;
  bool flagged_ = false;
};

void play_case(Random& random, const std::string& family, Device& device, Stream& stream) {
  Twins twins(random, random_point(random, family), device, stream);
  for (int64_t step = within(random, 1, 3); step > 0; --step) {
    twins.step();
    if (random() % 4 == 0) twins.step();  // the same slot again
    twins.settle();
    if (random() % 2 == 0) twins.absorb();
  }
  twins.absorb();
  twins.compare();
}

// Of each family: what the suite has time for.
int cases() {
  const char* asked = std::getenv("THINWIRE_DEVICE_CASES");
  return asked != nullptr ? std::atoi(asked) : thorough() ? 1000 : 350;
}

class Families : public ::testing::TestWithParam<const char*> {};

TEST_P(Families, HaveTheBytesOfTheHost) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  for (int i = 0; i < cases() && !HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    Random random(static_cast<uint64_t>(i) * 7919 + 1);
    play_case(random, GetParam(), *device, *stream);
  }
}

// On memory that the host cannot touch and a stream on which nothing happens before somebody waits: steps are queued,
// committed and skipped without a look at it.
TEST_P(Families, NeverLookAtDeviceMemory) {
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    Random random(static_cast<uint64_t>(i) * 104729 + 5);
    const auto gpu = strict_device();
    if (gpu == nullptr) GTEST_SKIP() << "a GPU is as strict by itself";
    const auto stream = gpu->make_stream();
    play_case(random, GetParam(), *gpu, *stream);
  }
}

// Hostile payloads are refused on both sides or on none, and decode to the same.
TEST_P(Families, MeetTheFuzzersPayloadsAlike) {
  const std::string family = GetParam();
  const fuzz::Target& target = fuzz::target(family == "plain" ? "cast" : family);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("tests/fuzz/corpora/" + target.name))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Exec exec = make_exec(coded_ops(), *device, *stream, 1);
  Random random(3);
  int good = 0, refused = 0, wrong_length = 0;
  for (const auto& file : files) {
    std::ifstream stream_of_file(file, std::ios::binary);
    const std::vector<uint8_t> input{std::istreambuf_iterator<char>(stream_of_file), {}};
    for (int copy = 0; copy < 40 && input.size() >= fuzz::kFuzzHeader; ++copy) {
      std::vector<uint8_t> bad = input;
      for (uint64_t flips = copy == 0 ? 0 : 1 + random() % 6; flips > 0; --flips)
        bad[fuzz::kFuzzHeader + random() % std::max<size_t>(1, bad.size() - fuzz::kFuzzHeader)] ^=
            static_cast<uint8_t>(1u << random() % 8);
      if (copy % 4 == 3)  // scales of all kinds, infinite ones and NaN among them
        for (size_t i = fuzz::kFuzzHeader; i < bad.size(); ++i)
          bad[i] = pick<uint8_t>(random, {0x00, 0x01, 0x7c, 0x7f, 0x80, 0xfc, 0xff});
      const CodecSpec& spec = target.specs[bad[0] % target.specs.size()];
      const int64_t count = (bad[1] | bad[2] << 8) % (target.most + 1);
      const auto codec = make_codec(spec).codec;
      const auto coder = DeviceCoder::make(Coder(codec, spec, {}));
      ASSERT_NE(coder, nullptr) << codec->name();
      Bytes payload(bad.size() - fuzz::kFuzzHeader);
      std::memcpy(payload.data(), bad.data() + fuzz::kFuzzHeader, payload.size());
      if ((bad[3] & fuzz::kFit) != 0) payload.resize(codec->wire_bytes(count, DType::f32));
      const bool accumulate = (bad[3] & fuzz::kAccumulate) != 0;
      std::vector<float> start = make_data(DataKind::kGaussian, count, 3);
      Bytes host = as_dtype(start, DType::f32);
      const Buffer out(*device, host), in(*device, payload, codec->traits().alias ? 0 : bad[3] >> 4 & 3u);
      const Buffer tally(*device, std::vector<std::byte>(sizeof(DeviceTally)));
      bool host_refuses = false, device_refuses = false;
      CompressionStats stats;
      Msg msg;
      const Share share{payload, View(), 1}, device_share{in.span(), View(), 1};
      try {
        coder->host().absorb(msg, {&share, 1}, View(host.data(), DType::f32, {count}), accumulate, stats);
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ExitCode::kBadData);
        host_refuses = true;
      }
      try {
        coder->queue_absorb(exec, msg, {&device_share, 1}, out.view(DType::f32), accumulate,
                            reinterpret_cast<DeviceTally*>(tally.data()));
      } catch (const Error& e) {
        ASSERT_EQ(e.code(), ExitCode::kBadData);
        device_refuses = true;
        ++wrong_length;
      }
      stream->synchronize();
      uint32_t flags = 0;
      const Bytes found = tally.content();
      std::memcpy(&flags, found.data(), sizeof flags);
      device_refuses = device_refuses || (flags & kDeviceBadPayload) != 0;
      ASSERT_EQ(host_refuses, device_refuses) << codec->name() << ", " << file << ", copy " << copy;
      ++(host_refuses ? refused : good);
      if (host_refuses) continue;
      ASSERT_EQ(difference(one_nan(host, DType::f32), one_nan(out.content(), DType::f32)), "")
          << codec->name() << ", " << file << ", copy " << copy;
    }
  }
  EXPECT_GT(good, 100);
  EXPECT_GT(wrong_length, 0);
  if (family == "block_int" || family == "e3m0") {
    EXPECT_GT(refused, wrong_length);
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Families, ::testing::Values("plain", "block_int", "mx", "e3m0", "zfp"),
                         [](const auto& info) { return std::string(info.param); });

// The column of the table says what there is.
TEST(DeviceCodecs, AreThoseOfTheTable) {
  for (const CodecRow& row : codec_table())
    EXPECT_EQ(row.device, make_device_codec(codec_spec(row.name)) != nullptr) << row.name;
}

TEST(DeviceCodecs, SayWhatTheyDoNotCover) {
  const auto covered = [](const CodecSpec& spec, const ResidualSpec& residual = {}) {
    return DeviceCoder::make(Coder(make_codec(spec).codec, spec, residual)) != nullptr;
  };
  CodecSpec spec = codec_spec("block_int");
  EXPECT_TRUE(covered(spec));
  EXPECT_FALSE(covered(codec_spec("block_int", {{"block", 8192}})));
  EXPECT_FALSE(covered(codec_spec("top_k")));
  spec = codec_spec("block_int", {{"block", 21}});
  EXPECT_TRUE(covered(spec));
  spec.hadamard = true;  // 4095 and 32 have no small multiple in common
  EXPECT_FALSE(covered(spec));
}

// Of more tiles than one block of threads adds up the squares of.
TEST(DeviceCodecs, AddUpTheErrorsOfLongMessages) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Random random(4);
  Point point;
  point.spec = codec_spec("block_int");
  point.residual.kind = ResidualKind::kErrorFeedback;
  const auto codec = make_codec(point.spec).codec;
  point.host = std::make_unique<Coder>(codec, point.spec, point.residual);
  point.device = DeviceCoder::make(*point.host);
  Twins twins(random, std::move(point), *device, *stream, 4096 * 1100 + 5);
  twins.step();
  twins.settle();
  twins.compare();
}

// A flag becomes a number in the sums that are reduced, without the host.
TEST(DeviceCodecs, FlagsReachTheControlSum) {
  if (!why_no_coded_device().empty()) GTEST_SKIP() << why_no_coded_device();
  const auto device = coded_device();
  const auto stream = device->make_stream();
  Exec exec = make_exec(coded_ops(), *device, *stream, 1);
  const auto after = [&](uint32_t found, uint32_t flag) {
    DeviceTally host;
    host.flags = found;
    const double before = 2.0;
    const Buffer tally(*device, std::as_bytes(std::span(&host, 1))), sum(*device, std::as_bytes(std::span(&before, 1)));
    queue_tally(exec, reinterpret_cast<DeviceTally*>(tally.data()), flag, reinterpret_cast<double*>(sum.data()));
    stream->synchronize();
    double value = 0.0;
    std::memcpy(&value, sum.content().data(), sizeof value);
    return value;
  };
  EXPECT_EQ(after(0, kDeviceNonFinite), 2.0);
  EXPECT_EQ(after(kDeviceNonFinite, kDeviceBadPayload), 2.0);
  EXPECT_EQ(after(kDeviceNonFinite, kDeviceNonFinite), 3.0);
}

}  // namespace
}  // namespace thinwire::test::device_coder_test
