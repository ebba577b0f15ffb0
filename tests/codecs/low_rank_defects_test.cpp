// What the released PowerSGD code of Optimus-CC got wrong: one test per defect, named after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "compression/codecs/low_rank.h"
#include "engine/base/core/error.h"
#include "tests/codecs/low_rank_harness.h"

namespace thinwire::test::low_rank_defects_test {
namespace {

// 4: senders kept p and q in fp32, receivers allocated them in the dtype of the model: sizes disagreed.
TEST(LowRank, Defect4_FactorsAreFp32WhateverTheModel) {
  const Shapes shapes = {{0, 30, 40}};
  const auto codec = make_codec(spec_of(3)).codec;
  EXPECT_FALSE(codec->traits().native) << "16-bit messages are handed over as fp32";
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(codec->wire_bytes(1200, dtype), codec->wire_bytes(1200, DType::f32));
  Group group(spec_of(3), 1, 1200, shapes);
  const auto state = group.codec->make_state(1200, shapes);
  for (int r : {0, 1}) EXPECT_EQ(group.codec->round(r, msg_of(shapes), 1200, *state).dtype, DType::f32);
}

// 6: a flat residual met a message of three dimensions. Ours sees elements; the views' dimensions do not matter.
TEST(LowRank, Defect6_DimensionsOfViewsDoNotMatter) {
  const Shapes shapes = {{0, 32, 30}};
  const auto codec = make_codec(spec_of(3)).codec;
  const auto rounds = make_codec(spec_of(3)).rounds;
  Floats x = gaussian(960, 1), flat(960), deep(960), error = x;
  const View as_flat = view_of(x), as_deep(x.data(), DType::f32, {8, 4, 30});
  Bytes a(3840), b(3840);
  const auto s = codec->make_state(960, shapes), t = codec->make_state(960, shapes),
             u = rounds->make_state(960, shapes);
  a.resize(codec->encode(msg_of(shapes), as_flat, a, s.get()).bytes);
  b.resize(codec->encode(msg_of(shapes), as_deep, b, t.get()).bytes);
  EXPECT_TRUE(a == b);
  codec->decode(msg_of(shapes), a, view_of(flat), false);
  codec->decode(msg_of(shapes), a, View(deep.data(), DType::f32, {8, 4, 30}), false);
  EXPECT_TRUE(same_bits(flat, deep));
  for (int r : {0, 1}) {
    Floats payload(static_cast<size_t>(rounds->round(r, msg_of(shapes), 960, *u).count));
    rounds->pack(r, msg_of(shapes), as_deep, view_of(payload), *u);
    rounds->absorb(r, msg_of(shapes), view_of(payload), 0, *u);
  }
  rounds->own_error(msg_of(shapes), View(error.data(), DType::f32, {8, 4, 30}), *u);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(error[i], x[i] - flat[i]);
}

// 7: what was kept between messages was in units of the loss scale, and survived its changes and overflows.
TEST(LowRank, Defect7_LossScaleDoesNotReachTheState) {
  const Shapes shapes = {{0, 40, 30}, {1210, 9, 80}};
  const int64_t count = 2000;
  for (int sides : {1, 2}) {
    Group plain(spec_of(3, sides), 2, count, shapes), scaled(spec_of(3, sides), 2, count, shapes);
    const float scales[] = {65536.0f, 65536.0f, 0x1p60f, 32768.0f, 0x1p-20f, 1.0f};
    for (unsigned k = 0; k < 6; ++k) {
      std::vector<Floats> x = {gaussian(count, k), gaussian(count, 40 + k)}, y = x;
      for (Floats& v : y)
        for (float& e : v) e *= scales[k];
      if (k == 3) {  // an overflow: the step is skipped
        std::vector<Floats> z = y;
        z[0][5] = std::numeric_limits<float>::infinity();
        scaled.sum(z);
        EXPECT_FALSE(scaled.finite[0]);
        for (auto& state : scaled.states) state->roll_back();
      }
      Floats a = plain.sum(x, true);
      const Floats b = scaled.sum(y, true, {.loss_scale = scales[k]});
      for (float& v : a) v *= scales[k];
      EXPECT_TRUE(same_bits(a, b)) << "message " << k;
      for (float& v : x[1]) v *= scales[k];
      EXPECT_TRUE(same_bits(x[1], y[1])) << "message " << k;
      plain.commit(), scaled.commit();
    }
  }
}

}  // namespace
}  // namespace thinwire::test::low_rank_defects_test
