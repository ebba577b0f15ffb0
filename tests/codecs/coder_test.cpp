// Coders: conservation of what residuals keep, pieces against the whole, skipped steps, checkpoints, CRC-32C.
#include "compression/coder.h"

#include <gtest/gtest.h>

#include <memory>

#include "compression/codec_table.h"
#include "engine/base/core/crc32c.h"
#include "tests/codecs/coder_fixtures.h"

namespace thinwire::test::coder_test {
namespace {

constexpr ResidualSpec kMemories[] = {{.kind = ResidualKind::kErrorFeedback},
                                      {.kind = ResidualKind::kLazy},
                                      {.kind = ResidualKind::kEma},
                                      {.kind = ResidualKind::kLazy, .dtype = ResidualDtype::kBf16},
                                      {.kind = ResidualKind::kErrorFeedback, .dtype = ResidualDtype::kInt8}};

// Law 5, element by element. Each step rounds twice: x = in + e (half an ulp of x) and e' = x - decoded (of e').
TEST(Coder, ConservationOverTwoHundredMessages) {
  for (const Subject& s : subjects()) {
    for (ResidualKind kind : {ResidualKind::kErrorFeedback, ResidualKind::kLazy}) {
      SCOPED_TRACE(s.name);
      const Coder coder(s.codec, with(s.hadamard), keeping(kind));
      const int64_t n = 4096 + 357;
      const auto state = coder.make_state(n, {});
      std::vector<double> given(n), got(n), slack(n);
      std::vector<float> before(n);
      for (int64_t step = 0; step < 200; ++step) {
        std::vector<float> x = make_data(DataKind::kHeavyTail, n, static_cast<uint64_t>(step) + 1);
        for (float& v : x) v = std::clamp(v, -100.0f, 100.0f);
        const std::vector<float> y = absorb(coder, pack(coder, x, state.get(), message(step)), n, message(step));
        state->commit();
        const std::vector<float> after = residual_of(*state);
        for (int64_t i = 0; i < n; ++i) {
          given[i] += x[i];
          got[i] += y[i];
          slack[i] += 0x1p-24 * (std::fabs(static_cast<double>(x[i]) + before[i]) + std::fabs(after[i])) * 1.001;
        }
        before = after;
      }
      for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(got[i] + before[i], given[i], slack[i]) << "element " << i;
    }
  }
}

// ema: e' = beta e + (1 - beta) (in + e - decoded), to half a step of its 8-bit storage.
TEST(Coder, EmaIdentity) {
  for (const Subject& s : subjects()) {
    SCOPED_TRACE(s.name);
    const Coder coder(s.codec, with(s.hadamard), keeping(ResidualKind::kEma));
    const int64_t n = 3 * kResidualBlock + 41;
    const auto state = coder.make_state(n, {});
    std::vector<float> e(n);
    for (int64_t step = 0; step < 200; ++step) {
      const std::vector<float> x = make_data(DataKind::kOutliers, n, static_cast<uint64_t>(step) + 1);
      const std::vector<float> y = absorb(coder, pack(coder, x, state.get(), message(step)), n, message(step));
      state->commit();
      const std::vector<float> after = residual_of(*state);
      std::vector<double> exact(n);
      for (int64_t i = 0; i < n; ++i) exact[i] = 0.8 * e[i] + 0.2 * (static_cast<double>(x[i]) + e[i] - y[i]);
      for (int64_t i = 0; i < n; ++i) {
        double largest = 0.0, inputs = 0.0;
        const int64_t first = i / kResidualBlock * kResidualBlock;
        for (int64_t k = first; k < std::min(n, first + kResidualBlock); ++k) {
          largest = std::max(largest, std::fabs(exact[k]));
          inputs = std::max(inputs, std::fabs(static_cast<double>(x[k])) + std::fabs(e[k]));
        }
        ASSERT_NEAR(after[i], exact[i], largest / 254.0 * 1.0001 + 0x1p-22 * inputs) << "element " << i;
      }
      e = after;
    }
  }
}

// The replica is what everybody holds: its bits are equal everywhere, and what it lacks is the codec's error.
TEST(Coder, ValueDifferenceKeepsReplicasEqualAndFollowsTheMaster) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (bool hadamard : {false, true}) {
      const Coder coder(std::make_shared<TinyInt>(), with(hadamard), keeping(ResidualKind::kValueDifference));
      EXPECT_TRUE(coder.value_difference());
      EXPECT_EQ(coder.make_state(1000, {}), nullptr);
      const int64_t n = 9001;
      std::vector<float> master = make_data(DataKind::kGaussian, n, 3);
      const Bytes start = as_dtype(master, dtype);
      Fenced owner(start.data(), start.size()), other(start.data(), start.size());
      for (int64_t step = 0; step < 40; ++step) {
        const std::vector<float> update = make_data(DataKind::kGaussian, n, static_cast<uint64_t>(step) + 10);
        if (step < 20)
          for (int64_t i = 0; i < n; ++i) master[i] += 0.01f * update[i];
        const std::vector<float> old = as_floats(owner.span(), dtype);
        const Bytes payload = pack(coder, master, nullptr, message(step), nullptr, owner.view(dtype));
        CompressionStats stats;
        const Share share{payload, View(), 0};
        coder.absorb(message(step, 1), {&share, 1}, owner.view(dtype), false, stats);
        coder.absorb(message(step, 5), {&share, 1}, other.view(dtype), true, stats);
        ASSERT_EQ(std::memcmp(owner.data(), other.data(), owner.size()), 0);
        // Bit for bit the reference plus what the same coder decodes, rounded once.
        const Coder bare(std::make_shared<TinyInt>(), with(hadamard), {});
        const std::vector<float> d = absorb(bare, payload, n, message(step));
        std::vector<float> expected(n);
        for (int64_t i = 0; i < n; ++i) expected[i] = old[i] + d[i];
        ASSERT_TRUE(as_dtype(expected, dtype) == Bytes(owner.data(), owner.data() + owner.size()));
      }
      // Twenty messages after the last update only the replica's own rounding is left.
      const std::vector<float> replica = as_floats(owner.span(), dtype);
      const double epsilon = dtype == DType::f32 ? 1e-6 : epsilon_of(dtype);
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(replica[i], master[i], epsilon * std::max(1.0f, std::fabs(master[i]))) << name_of(dtype);
    }
  }
}

// Bytes, residuals and decoded numbers depend neither on threads nor on how the message is cut.
TEST(Coder, PiecesAndThreadsDoNotShow) {
  std::mt19937 rng(12);
  for (const Subject& s : subjects()) {
    for (const ResidualSpec& kind : {ResidualSpec(), kMemories[0], kMemories[2], kMemories[3], kMemories[4]}) {
      for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(s.name + " " + std::string(name_of(dtype)));
        const Coder coder(s.codec, with(s.hadamard), keeping(kind));
        const int64_t n = 70000 + 13;
        const int64_t granule = coder.granule();
        const auto whole = coder.make_state(n, {}), cut = coder.make_state(n, {});
        for (int64_t step = 0; step < 3; ++step) {
          const Bytes x = as_dtype(make_data(DataKind::kOutliers, n, static_cast<uint64_t>(step)), dtype);
          Fenced in(x.data(), x.size()), out(coder.wire_bytes(n, dtype));
          CompressionStats stats;
          ASSERT_EQ(coder.pack(message(step), in.view(dtype), View(), out.span(), whole.get(), stats), out.size());
          const std::vector<float> y = absorb(coder, Bytes(out.data(), out.data() + out.size()), n, message(step));

          std::vector<std::pair<int64_t, int64_t>> pieces;
          for (int64_t first = 0; first < n;) {
            const int64_t most =
                granule == 0 ? n
                             : granule * (1 + static_cast<int64_t>(rng() % static_cast<unsigned>(n / granule / 3 + 1)));
            pieces.emplace_back(first, std::min(n - first, most));
            first += pieces.back().second;
          }
          std::vector<Bytes> payloads(pieces.size());
          for (size_t k : {size_t{1}, size_t{0}})  // out of order, too
            for (size_t i = k; i < pieces.size(); i += 2) {
              Msg msg = message(step, 3);
              msg.first = pieces[i].first;
              Fenced part(x.data() + static_cast<size_t>(msg.first) * size_of(dtype),
                          static_cast<size_t>(pieces[i].second) * size_of(dtype), size_of(dtype));
              Fenced room(coder.wire_bytes(pieces[i].second, dtype), 3);
              CompressionStats more;
              coder.pack(msg, part.view(dtype), View(), room.span(), cut.get(), more);
              payloads[i] = Bytes(room.data(), room.data() + room.size());
            }
          Bytes joined;
          std::vector<float> parts;
          for (size_t i = 0; i < pieces.size(); ++i) {
            joined.insert(joined.end(), payloads[i].begin(), payloads[i].end());
            Msg msg = message(step, 2);
            msg.first = pieces[i].first;
            const std::vector<float> p = absorb(coder, payloads[i], pieces[i].second, msg);
            parts.insert(parts.end(), p.begin(), p.end());
          }
          ASSERT_TRUE(joined == Bytes(out.data(), out.data() + out.size()));
          ASSERT_EQ(std::memcmp(parts.data(), y.data(), y.size() * 4), 0);
          if (!whole) continue;
          whole->commit();
          cut->commit();
          ASSERT_TRUE(save(*whole) == save(*cut));
        }
      }
    }
  }
}

TEST(Coder, SkippedStepsLeaveNoTraceOrZeros) {
  for (const Subject& s : subjects()) {
    for (const ResidualSpec& kind : kMemories) {
      SCOPED_TRACE(s.name);
      const int64_t n = 5000;
      const Coder restoring(s.codec, with(s.hadamard), keeping(kind));
      const Coder zeroing(s.codec, with(s.hadamard), keeping(kind, OnSkip::kZero));
      const auto a = restoring.make_state(n, {}), b = restoring.make_state(n, {}), z = zeroing.make_state(n, {});
      EXPECT_LT(z->bytes(), a->bytes());
      const std::vector<float> x = make_data(DataKind::kGaussian, n, 1), y = make_data(DataKind::kHeavyTail, n, 2);
      for (CompressionState* state : {a.get(), b.get(), z.get()}) {
        pack(state == z.get() ? zeroing : restoring, x, state, message(0));
        state->commit();
      }
      EXPECT_TRUE(save(*a) == save(*z));
      EXPECT_GT(square_sum(residual_of(*z)), 0.0);
      const Snapshot settled = save(*a);
      // Two messages of the slot in the step that is skipped; the second one reads what the first one left.
      pack(restoring, y, a.get(), message(1));
      pack(restoring, x, a.get(), message(1));
      pack(zeroing, y, z.get(), message(1));
      EXPECT_THROW(save(*a), Error);  // in the middle of a step
      a->roll_back();
      z->roll_back();
      EXPECT_TRUE(save(*a) == settled);
      EXPECT_EQ(square_sum(residual_of(*z)), 0.0);
      EXPECT_TRUE(pack(restoring, y, a.get(), message(1)) == pack(restoring, y, b.get(), message(1)));
    }
  }
}

// Whatever a codec makes of it, and however the message is cut.
TEST(Coder, ResidualsKeepNothingOfPadding) {
  const std::vector<ElementRange> padding = {{100, 28}, {700, 1600}, {4096, 3}};
  const int64_t n = 4096 + 357;
  for (const Subject& s : subjects()) {
    for (const ResidualSpec& kind : kMemories) {
      for (OnSkip on_skip : {OnSkip::kRestore, OnSkip::kZero}) {
        const Coder coder(s.codec, with(s.hadamard), keeping(kind, on_skip));
        SCOPED_TRACE(coder.name());
        const auto whole = coder.make_state(n, {}), cut = coder.make_state(n, {});
        const int64_t middle = coder.granule() == 0 ? n : 2048 / coder.granule() * coder.granule();
        for (int64_t step = 0; step < 3; ++step) {
          const std::vector<float> x = make_data(DataKind::kGaussian, n, static_cast<uint64_t>(step) + 1);
          Msg msg = message(step);
          msg.padding = padding;
          pack(coder, x, whole.get(), msg);
          pack(coder, std::span(x).first(static_cast<size_t>(middle)), cut.get(), msg);
          msg.first = middle;
          if (middle < n) pack(coder, std::span(x).subspan(static_cast<size_t>(middle)), cut.get(), msg);
          whole->commit();
          cut->commit();
          const std::vector<float> after = residual_of(*whole);
          for (const ElementRange& range : padding)
            for (int64_t i = 0; i < range.count; ++i)
              ASSERT_EQ(after[static_cast<size_t>(range.first + i)], 0.0f) << range.first + i;
          EXPECT_GT(square_sum(after), 0.0);
          EXPECT_TRUE(save(*whole) == save(*cut));
        }
      }
    }
  }
}

// Law 8: the flag is up, and even if nobody skipped the step no NaN would stay in the residual.
TEST(Coder, NonFiniteInputDoesNotPoisonTheResidual) {
  for (const Subject& s : subjects()) {
    for (const ResidualSpec& kind : kMemories) {
      for (OnSkip on_skip : {OnSkip::kRestore, OnSkip::kZero}) {
        for (float special : {std::numeric_limits<float>::quiet_NaN(), INFINITY}) {
          SCOPED_TRACE(s.name);
          const int64_t n = 9000;
          const Coder coder(s.codec, with(s.hadamard), keeping(kind, on_skip));
          const auto state = coder.make_state(n, {});
          std::vector<float> x = make_data(DataKind::kGaussian, n, 1);
          CompressionStats stats;
          pack(coder, x, state.get(), message(0), &stats);
          EXPECT_EQ(stats.non_finite, 0);
          state->commit();
          const std::vector<float> before = residual_of(*state);
          x[4097] = special;
          pack(coder, x, state.get(), message(1), &stats);
          EXPECT_EQ(stats.non_finite, 1);
          state->commit();
          const std::vector<float> after = residual_of(*state);
          for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(std::isfinite(after[i])) << i;
          EXPECT_EQ(after[4097], before[4097]);
          EXPECT_TRUE(std::isfinite(stats.residual_square));
        }
      }
    }
  }
}

// Scaling loss and gradients by a power of two, and changing the power between steps, changes no bit of the residual.
TEST(Coder, LossScaleChangesAreExact) {
  for (const char* format : {"bf16", "e5m2"}) {
    for (const ResidualSpec& kind : kMemories) {
      const int64_t n = 4500;
      const Coder coder(cast_to(format), plain(), keeping(kind));
      const auto a = coder.make_state(n, {}), b = coder.make_state(n, {});
      const float scales[] = {64.0f, 64.0f, 32.0f, 4.0f, 8.0f, 0.5f};
      for (int64_t step = 0; step < 6; ++step) {
        std::vector<float> x = make_data(DataKind::kSine, n);
        for (float& v : x) v = v * 0.25f + 0.5f;  // far from subnormal codes
        const std::vector<float> ya = absorb(coder, pack(coder, x, a.get(), message(step)), n, message(step));
        Msg msg = message(step);
        msg.loss_scale = scales[step];
        for (float& v : x) v *= scales[step];
        const std::vector<float> yb = absorb(coder, pack(coder, x, b.get(), msg), n, msg);
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(ya[i] * scales[step], yb[i]);
        a->commit();
        b->commit();
        ASSERT_TRUE(save(*a) == save(*b));
      }
    }
  }
}

TEST(Coder, CheckpointsCarryTheState) {
  for (const Subject& s : subjects()) {
    for (const ResidualSpec& kind : kMemories) {
      const int64_t n = 6000;
      ResidualSpec spec = keeping(kind);
      spec.reset_every = kind.kind == ResidualKind::kEma ? 5 : 0;
      const Coder coder(s.codec, with(s.hadamard), spec);
      const auto a = coder.make_state(n, {});
      for (int64_t step = 0; step < 7; ++step) {
        pack(coder, make_data(DataKind::kGaussian, n, static_cast<uint64_t>(step)), a.get(), message(step));
        a->commit();
      }
      Snapshot snapshot = save(*a);
      snapshot.loading = true;
      const auto b = coder.make_state(n, {});
      b->visit(snapshot, "at/");
      for (int64_t step = 7; step < 12; ++step) {
        const std::vector<float> x = make_data(DataKind::kHeavyTail, n, static_cast<uint64_t>(step));
        ASSERT_TRUE(pack(coder, x, a.get(), message(step)) == pack(coder, x, b.get(), message(step)));
        a->commit();
        b->commit();
      }
      EXPECT_EQ(coder.state_bytes(n, {}), a->bytes());
    }
  }
}

// The published code counts calls in one global counter, so that which residuals ever restart depends on how many
// tensors there are.
TEST(Coder, LocoResetCountsUpdatesNotCalls) {
  const int64_t n = 1000;
  ResidualSpec spec = keeping(ResidualKind::kEma);
  spec.reset_every = 3;
  const Coder coder(std::make_shared<TinyInt>(), plain(), spec);
  const std::vector<float> x = make_data(DataKind::kGaussian, n, 4);
  for (int calls : {1, 2, 3, 5}) {
    const auto state = coder.make_state(n, {});
    const Bytes fresh = pack(coder, x, coder.make_state(n, {}).get(), message(0));
    for (int64_t step = 0; step < 10; ++step) {
      for (int call = 0; call < calls; ++call) {
        const bool restarts = step % 3 == 0 && call == 0;
        ASSERT_EQ(pack(coder, x, state.get(), message(step)) == fresh, restarts) << calls << " calls, step " << step;
      }
      if (step == 6) {  // skipped: tried again with the same number, and it restarts again
        state->roll_back();
        ASSERT_TRUE(pack(coder, x, state.get(), message(step)) == fresh);
      }
      state->commit();
    }
  }
}

TEST(Coder, EvaluationNeitherReadsNorWritesResiduals) {
  for (const ResidualSpec& kind : kMemories) {
    const int64_t n = 5000;
    const Coder coder(std::make_shared<TinyInt>(), plain(), keeping(kind));
    const Coder bare(std::make_shared<TinyInt>(), plain(), {});
    const auto state = coder.make_state(n, {});
    const std::vector<float> x = make_data(DataKind::kGaussian, n, 4);
    pack(coder, x, state.get(), message(0));
    state->commit();
    const Snapshot before = save(*state);
    Msg msg = message(1);
    msg.train = false;
    EXPECT_TRUE(pack(coder, x, state.get(), msg) == pack(bare, x, nullptr, msg));
    EXPECT_TRUE(save(*state) == before);
  }
}

TEST(Hadamard, AgreesWithTheMatrixAndIsItsOwnInverse) {
  const int64_t n = 32 * 7 + 19;
  const std::vector<float> x = make_data(DataKind::kHeavyTail, n, 3);
  Fenced y(x.data(), x.size() * 4);
  const auto transform = [&](float* v) { TW_PICK_KERNELS(tile_kernels).hadamard(v, v, n); };
  transform(reinterpret_cast<float*>(y.data()));
  std::vector<float> once = as_floats(y.span(), DType::f32);
  for (int64_t i = 0; i < n; ++i) {
    if (i >= 32 * 7) {
      EXPECT_EQ(once[i], x[i]) << "a block that is not full";
      continue;
    }
    double exact = 0.0, size = 0.0;
    for (int64_t k = 0; k < 32; ++k) {
      const double v = x[i / 32 * 32 + k];
      exact += (std::popcount(static_cast<unsigned>(i % 32 & k)) % 2 ? -v : v);
      size += std::fabs(v);
    }
    EXPECT_NEAR(once[i], exact / std::sqrt(32.0), 7 * 0x1p-24 * size / std::sqrt(32.0));  // 5 additions, a product
  }
  transform(reinterpret_cast<float*>(y.data()));
  EXPECT_GT(snr_db(x, as_floats(y.span(), DType::f32)), 130.0);
}

// With 4 bits and one scale per 32 elements, an outlier takes the digits of its whole block; spread, it does not.
TEST(Hadamard, LowersTheErrorOfHeavyTails) {
  const int64_t n = 1 << 16;
  const Coder with_transform(std::make_shared<TinyInt>(), with(true), {});
  const Coder without(std::make_shared<TinyInt>(), plain(), {});
  const auto snr = [&](const Coder& coder, DataKind kind) {
    const std::vector<float> x = make_data(kind, n, 8);
    return snr_db(x, absorb(coder, pack(coder, x, nullptr, message(0)), n, message(0)));
  };
  EXPECT_GT(snr(with_transform, DataKind::kHeavyTail), snr(without, DataKind::kHeavyTail) + 1.0);
  EXPECT_NEAR(snr(with_transform, DataKind::kGaussian), snr(without, DataKind::kGaussian), 0.3);
}

// Undone once, behind the sum; what travels raw is added after that.
TEST(Hadamard, IsUndoneOnceBehindTheSum) {
  const int64_t n = 4096 + 100;
  const Coder coder(std::make_shared<TinyInt>(), with(true), {});
  EXPECT_EQ(coder.granule(), 32);
  std::vector<double> exact(n);
  std::vector<Bytes> payloads;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    payloads.push_back(pack(coder, make_data(DataKind::kGaussian, n, rank), nullptr, message(0)));
    const std::vector<float> y = absorb(coder, payloads.back(), n, message(0));
    for (int64_t i = 0; i < n; ++i) exact[i] += y[i];
  }
  const std::vector<float> raw = make_data(DataKind::kGaussian, n, 55);
  Fenced mine(raw.data(), raw.size() * 4), out(raw.size() * 4);
  for (int64_t i = 0; i < n; ++i) exact[i] += raw[i];
  const Share shares[] = {
      {payloads[0], View(), 0}, {{}, mine.view(DType::f32), 1}, {payloads[1], View(), 2}, {payloads[2], View(), 3}};
  CompressionStats stats;
  coder.absorb(message(0), shares, out.view(DType::f32), false, stats);
  const std::vector<float> sum = as_floats(out.span(), DType::f32);
  for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(sum[i], exact[i], 1e-5);  // sums of at most 32 terms of about 4
}

TEST(Checksum, KnownValueAndTable) {
  const char digits[] = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits, 9))), 0xE3069283u);
  std::mt19937 rng(3);
  for (size_t n = 0; n < 600; ++n) {
    Bytes b(n < 300 ? n : rng() % 40000);  // the long ones in three runs at a time
    for (std::byte& v : b) v = static_cast<std::byte>(rng());
    ASSERT_EQ(crc32c(b), crc32c_table(b)) << b.size();
  }
}

TEST(Coder, WrongLengthsNameTheSender) {
  const Coder coder(std::make_shared<TinyInt>(), plain(), {});
  for (size_t bytes : {size_t{1}, coder.wire_bytes(10000, DType::f32) - 1, coder.wire_bytes(10000, DType::f32) + 1}) {
    try {
      absorb(coder, Bytes(bytes), 10000, message(0));
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadData);
      EXPECT_NE(std::string(e.what()).find("rank 1"), std::string::npos) << e.what();
    }
  }
}

TEST(Coder, RefusesWhatMakesNoSense) {
  const auto refused = [](std::shared_ptr<const Codec> codec, const CodecSpec& spec, const ResidualSpec& residual) {
    try {
      const Coder coder(std::move(codec), spec, residual);
      return std::string();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kBadConfig);
      return std::string(e.what());
    }
  };
  EXPECT_NE(refused(make_codec({}).codec, plain(), keeping(ResidualKind::kErrorFeedback)).find("lossless"),
            std::string::npos);
  EXPECT_NE(refused(make_codec({}).codec, with(true), {}), "");
  EXPECT_NE(refused(std::make_shared<TinySelect>(), with(true), {}), "");
  ResidualSpec bad = keeping(ResidualKind::kEma);
  bad.beta = 1.0;
  EXPECT_NE(refused(cast_to("bf16"), plain(), bad).find("beta"), std::string::npos);
  EXPECT_EQ(refused(cast_to("bf16"), with(true), keeping(ResidualKind::kEma)), "");
}

TEST(Coder, SizesAndShrinking) {
  const Coder sums(cast_to("e4m3"), plain(), {});
  EXPECT_EQ(sums.wire_bytes(0, DType::f32), 0u);
  EXPECT_EQ(sums.wire_bytes(100, DType::f32), 100u);
  EXPECT_TRUE(sums.shrinks(100, DType::bf16));
  EXPECT_TRUE(sums.shrinks(4, DType::bf16));
  EXPECT_FALSE(sums.shrinks(0, DType::f32));
  EXPECT_FALSE(Coder(make_codec({}).codec, plain(), {}).shrinks(1000, DType::f32));
  EXPECT_TRUE(Coder(make_codec({}).codec, plain(), {}).traits().alias);
  EXPECT_EQ(Coder(cast_to("bf16"), with(true), {}).granule(), 32);
  EXPECT_EQ(Coder(cast_to("bf16"), with(true), keeping(ResidualKind::kEma)).granule(), kResidualBlock);
  EXPECT_EQ(sums.wire_bytes((int64_t{1} << 33) + 5, DType::f32), (size_t{1} << 33) + 5);
}

// With a residual the error is measured on every tile; without, on one of 64 of them, chosen by place and step.
TEST(Coder, StatsMeasureTheError) {
  const int64_t n = 64 * 4096;
  const std::vector<float> x = make_data(DataKind::kGaussian, n, 3);
  const Coder coder(std::make_shared<TinyInt>(), plain(), keeping(ResidualKind::kErrorFeedback));
  const auto state = coder.make_state(n, {});
  CompressionStats stats;
  const std::vector<float> y = absorb(coder, pack(coder, x, state.get(), message(0), &stats), n, message(0));
  EXPECT_NEAR(stats.error_square, square_distance(x, y), 1e-4 * stats.error_square);
  EXPECT_NEAR(stats.signal_square, square_sum(x), 1e-4 * stats.signal_square);
  EXPECT_NEAR(stats.residual_square, stats.error_square, 1e-6 * stats.error_square);
  EXPECT_GT(stats.encode_ns, 0);
  const Coder bare(std::make_shared<TinyInt>(), plain(), {});
  for (int64_t step = 0; step < 3; ++step) {
    CompressionStats sample;
    pack(bare, x, nullptr, message(step), &sample);
    EXPECT_NEAR(sample.error_square / sample.signal_square, stats.error_square / stats.signal_square, 2e-3);
    EXPECT_NEAR(sample.signal_square, 4096.0, 600.0);
  }
}

TEST(StateVector, RangesAgainstBruteForce) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const OnSkip on_skip = round % 3 == 0 ? OnSkip::kZero : OnSkip::kRestore;
    const int64_t n = 1 + static_cast<int64_t>(rng() % 50);
    StateVector<float> v(n, on_skip);
    std::vector<float> settled(n), now(n);
    for (int step = 0; step < 8; ++step) {
      for (unsigned writes = rng() % 5; writes > 0; --writes) {
        const int64_t first = static_cast<int64_t>(rng() % static_cast<unsigned>(n));
        const int64_t count = static_cast<int64_t>(rng() % static_cast<unsigned>(n - first + 1));
        const auto range = v.open(first, count);
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(range.read[i], now[first + i]);
          range.write[i] = now[first + i] = static_cast<float>(rng() % 1000);
        }
      }
      if (rng() % 4 == 0) {
        float* all = v.write();
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(all[i], now[i]);
        all[0] = now[0] = -1.0f;
        ASSERT_EQ(v.read()[0], -1.0f);
      }
      if (rng() % 2 == 0) {
        v.commit();
        settled = now;
      } else {
        const bool zeroed = on_skip == OnSkip::kZero && now != settled;
        v.roll_back();
        if (zeroed) settled.assign(n, 0.0f);
        if (on_skip == OnSkip::kZero && !zeroed) settled.assign(v.read(), v.read() + n);
        now = settled;
      }
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(v.read()[i], now[i]);
      if (rng() % 4 == 0) {  // a checkpoint is loaded, or saved
        float* all = v.settled();
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(all[i], now[i]);
        const size_t at = rng() % static_cast<unsigned>(n);
        all[at] = now[at] = settled[at] = static_cast<float>(rng() % 1000);
      }
    }
  }
}

TEST(Identity, Laws) {
  check_codec_laws(*make_codec({}).codec);
}

}  // namespace
}  // namespace thinwire::test::coder_test
