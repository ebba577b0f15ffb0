// Coders: the copy that the owner of a message keeps while packing it.
#include <gtest/gtest.h>

#include "compression/codec_table.h"
#include "compression/coder.h"
#include "tests/codecs/coder_fixtures.h"

namespace thinwire::test::own_copy_test {
namespace {

// What pack() leaves at the owner is what absorb() makes of the payload elsewhere, NaN and infinity included.
TEST(Coder, OwnCopyIsWhatOthersDecode) {
  std::vector<Subject> all = subjects();
  all.push_back(
      {"ecsq", make_codec({"ecsq", {{"rate", 2.5}}}).codec, false});  // knows its decoded numbers while it packs
  const int64_t n = 2 * 32768 + 357;
  for (const Subject& s : all) {
    for (ResidualKind kind :
         {ResidualKind::kErrorFeedback, ResidualKind::kLazy, ResidualKind::kEma, ResidualKind::kValueDifference}) {
      const Coder coder(s.codec, with(s.hadamard), keeping(kind));
      const bool differences = kind == ResidualKind::kValueDifference;
      for (DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(coder.name() + " into " + std::string(name_of(dtype)));
        const auto state = coder.make_state(n, {}), twin = coder.make_state(n, {});
        const Bytes start = as_dtype(make_data(DataKind::kHeavyTail, n, 4), dtype);
        Fenced own(start.data(), start.size()), other(start.data(), start.size());
        for (int64_t step = 0; step < 3; ++step) {
          std::vector<float> x = make_data(DataKind::kGaussian, n, static_cast<uint64_t>(step) + 10);
          if (step == 2) x[n / 2] = std::numeric_limits<float>::quiet_NaN();
          ASSERT_TRUE(coder.keeps_decoded(message(step)));
          const View reference = differences ? own.view(dtype) : View();
          Fenced given(x.data(), x.size() * 4), out(coder.wire_bytes(n, DType::f32), 3);
          CompressionStats stats;
          coder.pack(message(step), given.view(DType::f32), reference, out.span(), state.get(), stats, own.view(dtype));
          const Bytes payload(out.data(), out.data() + out.size());
          ASSERT_TRUE(payload ==
                      pack(coder, x, twin.get(), message(step), nullptr, differences ? other.view(dtype) : View()));
          const Share share{payload, View(), message(step).rank};
          coder.absorb(message(step, 2), {&share, 1}, other.view(dtype), false, stats);
          ASSERT_EQ(std::memcmp(own.data(), other.data(), own.span().size()), 0) << "step " << step;
          for (CompressionState* each : {state.get(), twin.get()})
            if (each) each->commit();
        }
      }
    }
  }
  Msg evaluation = message(0);
  evaluation.train = false;
  EXPECT_FALSE(Coder(all[0].codec, with(false), keeping(ResidualKind::kLazy)).keeps_decoded(evaluation));
  EXPECT_FALSE(Coder(all[0].codec, with(false), {}).keeps_decoded(message(0)));
}

}  // namespace
}  // namespace thinwire::test::own_copy_test
