// Sums of coded and raw shares: their order, and a share that lies where the sum goes.

#include <gtest/gtest.h>

#include "compression/coder.h"
#include "tests/codecs/coder_fixtures.h"

namespace thinwire::test::coder_sum_test {
namespace {

// Sums of coded and raw shares in the order given, in fp32; 16-bit results are rounded once.
TEST(Coder, AbsorbAddsInOrder) {
  for (const Subject& s : subjects()) {
    if (s.hadamard) continue;
    const Coder coder(s.codec, plain(), {});
    const int64_t n = 10007;
    std::vector<Bytes> payloads;
    std::vector<Share> shares;
    std::vector<std::vector<float>> terms;
    for (int rank = 0; rank < 4; ++rank) {
      const std::vector<float> x = make_data(DataKind::kHeavyTail, n, static_cast<uint64_t>(rank));
      Msg msg = message(0);
      msg.rank = rank;
      payloads.push_back(pack(coder, x, nullptr, msg));
      terms.push_back(absorb(coder, payloads.back(), n, msg));
      EXPECT_GT(snr_db(x, terms.back()), 1.0);
    }
    const Bytes raw = as_dtype(make_data(DataKind::kGaussian, n, 9), DType::bf16);
    terms[2] = as_floats(raw, DType::bf16);
    Fenced mine(raw.data(), raw.size());
    for (int rank = 0; rank < 4; ++rank) shares.push_back({payloads[static_cast<size_t>(rank)], View(), rank});
    shares[2] = {{}, mine.view(DType::bf16), 2};
    shares.insert(shares.begin() + 1, Share{});  // nothing
    std::vector<float> sum = terms[0];
    for (int rank = 1; rank < 4; ++rank)
      for (int64_t i = 0; i < n; ++i) sum[i] += terms[static_cast<size_t>(rank)][i];
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (int threads : {1, 5}) {
        for (bool accumulate : {false, true}) {
          const std::vector<float> base = as_floats(as_dtype(make_data(DataKind::kGaussian, n, 5), dtype), dtype);
          const Bytes start = as_dtype(base, dtype);
          Fenced out(start.data(), start.size());
          CompressionStats stats;
          coder.absorb(message(0, threads), shares, out.view(dtype), accumulate, stats);
          std::vector<float> expected = sum;
          if (accumulate)
            for (int64_t i = 0; i < n; ++i) expected[i] = base[i] + sum[i];
          ASSERT_TRUE(as_dtype(expected, dtype) == Bytes(out.data(), out.data() + out.size()))
              << s.name << " " << name_of(dtype) << " accumulate " << accumulate;
        }
      }
    }
    Fenced zero(40);
    CompressionStats stats;
    coder.absorb(message(0), {}, zero.view(DType::f32), false, stats);
    for (float v : as_floats(zero.span(), DType::f32)) EXPECT_EQ(v, 0.0f);
  }
}

// A raw share may lie where the sum goes, whatever its turn, and gives the bits of one that lies elsewhere.
TEST(Coder, AShareInThePlaceOfTheSum) {
  for (const Subject& s : subjects()) {
    const Coder coder(s.codec, with(s.hadamard), {});
    const int64_t n = 70000 + 13;
    for (size_t ranks : {1, 2, 3, 4}) {
      for (size_t own = 0; own < ranks; ++own) {
        for (DType dtype : {DType::f32, DType::bf16}) {
          for (int threads : {1, 5}) {
            const Bytes raw = as_dtype(make_data(DataKind::kGaussian, n, 9), dtype);
            Fenced place(raw.data(), raw.size()), elsewhere(raw.data(), raw.size()), out(raw.size());
            std::vector<Bytes> payloads(ranks);
            std::vector<Share> shares(ranks);
            for (size_t rank = 0; rank < ranks; ++rank) {
              Msg msg = message(0);
              msg.rank = static_cast<int>(rank);
              payloads[rank] = pack(coder, make_data(DataKind::kHeavyTail, n, rank), nullptr, msg);
              shares[rank] = {payloads[rank], View(), msg.rank};
            }
            CompressionStats stats;
            shares[own] = {{}, elsewhere.view(dtype), static_cast<int>(own)};
            coder.absorb(message(0, threads), shares, out.view(dtype), false, stats);
            shares[own] = {{}, place.view(dtype), static_cast<int>(own)};
            coder.absorb(message(0, threads), shares, place.view(dtype), false, stats);
            ASSERT_TRUE(Bytes(out.data(), out.data() + out.size()) == Bytes(place.data(), place.data() + place.size()))
                << s.name << " " << name_of(dtype) << " rank " << own << " of " << ranks;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinwire::test::coder_sum_test
