// libzfp, zstd and oneDNN's matrix products as CodecPeers.
#include "engine/run/bench/bench_codec_peers.h"

#include <algorithm>
#include <chrono>
#include <vector>

#ifdef THINWIRE_WITH_ZFP
#include <zfp.h>
#endif
#ifdef THINWIRE_WITH_ZSTD
#include <zstd.h>
#endif

#include "compression/data_kinds.h"
#include "engine/base/core/check.h"
#include "engine/base/device/device.h"
#include "engine/base/ops/ops.h"

namespace thinwire {

#ifdef THINWIRE_WITH_ZFP
namespace {

class LibZfp final : public CodecPeer {
 public:
  LibZfp(double rate, int64_t count)
      : count_(static_cast<size_t>(count)),
        bytes_(count_ * 5 + 256),
        stream_(zfp_stream_open(nullptr), zfp_stream_close),
        bits_(stream_open(bytes_.data(), bytes_.size()), stream_close) {
    zfp_stream_set_rate(stream_.get(), rate, zfp_type_float, 1, 0);
    zfp_stream_set_bit_stream(stream_.get(), bits_.get());
  }
  std::string name() const override { return "libzfp " ZFP_VERSION_STRING; }
  std::span<const std::byte> encode(std::span<const float> x) override {
    return {bytes_.data(), with_field(const_cast<float*>(x.data()), zfp_compress)};
  }
  void decode(std::span<const std::byte>, std::span<float> y) override { with_field(y.data(), zfp_decompress); }

 private:
  template <typename Work>
  size_t with_field(float* values, const Work& work) {
    const std::unique_ptr<zfp_field, void (*)(zfp_field*)> field(zfp_field_1d(values, zfp_type_float, count_),
                                                                 zfp_field_free);
    zfp_stream_rewind(stream_.get());
    return work(stream_.get(), field.get());
  }

  size_t count_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<zfp_stream, void (*)(zfp_stream*)> stream_;
  std::unique_ptr<bitstream, void (*)(bitstream*)> bits_;
};

}  // namespace
std::unique_ptr<CodecPeer> make_libzfp_peer(double rate, int64_t count) {
  return std::make_unique<LibZfp>(rate, count);
}
#else
std::unique_ptr<CodecPeer> make_libzfp_peer(double, int64_t) {
  return nullptr;
}
#endif

#ifdef THINWIRE_WITH_ZSTD
namespace {

class Zstd final : public CodecPeer {
 public:
  Zstd(int level, int64_t count)
      : level_(level),
        bytes_(ZSTD_compressBound(static_cast<size_t>(count) * sizeof(float))),
        encoder_(ZSTD_createCCtx(), ZSTD_freeCCtx),
        decoder_(ZSTD_createDCtx(), ZSTD_freeDCtx) {}
  std::string name() const override {
    return "zstd " + std::string(ZSTD_versionString()) + " -" + std::to_string(level_);
  }
  std::span<const std::byte> encode(std::span<const float> x) override {
    const size_t bytes =
        ZSTD_compressCCtx(encoder_.get(), bytes_.data(), bytes_.size(), x.data(), x.size_bytes(), level_);
    TW_CHECK(ZSTD_isError(bytes) == 0, ZSTD_getErrorName(bytes));
    return {bytes_.data(), bytes};
  }
  void decode(std::span<const std::byte> payload, std::span<float> y) override {
    const size_t bytes = ZSTD_decompressDCtx(decoder_.get(), y.data(), y.size_bytes(), payload.data(), payload.size());
    TW_CHECK(bytes == y.size_bytes(), "zstd decoded another number of bytes");
  }

 private:
  int level_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> encoder_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> decoder_;
};

}  // namespace
std::unique_ptr<CodecPeer> make_zstd_peer(int level, int64_t count) {
  return std::make_unique<Zstd>(level, count);
}
#else
std::unique_ptr<CodecPeer> make_zstd_peer(int, int64_t) {
  return nullptr;
}
#endif

namespace {

class Products final : public CodecPeer {
 public:
  Products(int64_t rows, int64_t cols, int64_t rank)
      : rows_(rows),
        cols_(cols),
        rank_(rank),
        device_(make_cpu_device()),
        stream_(device_->make_stream()),
        exec_(make_exec(cpu_ops(), *device_, *stream_, 1)),
        p_(make_data(DataKind::kGaussian, rows * rank, 2)),
        q_(make_data(DataKind::kGaussian, cols * rank, 3)),
        result_(static_cast<size_t>(std::max(rows, cols) * rank)) {
    std::vector<float> x = make_data(DataKind::kGaussian, rows * cols, 4);
    x_q_by_rows_ = faster_by_rows([&](bool by_rows) { x_q(x.data(), by_rows); });
    xt_p_by_rows_ = faster_by_rows([&](bool by_rows) { xt_p(x.data(), by_rows); });
    p_qt_by_rows_ = faster_by_rows([&](bool by_rows) { p_qt(x.data(), by_rows); });
  }
  std::string name() const override { return "products"; }
  bool has_payload() const override { return false; }
  std::span<const std::byte> encode(std::span<const float> x) override {
    float* data = const_cast<float*>(x.data());
    x_q(data, x_q_by_rows_);
    xt_p(data, xt_p_by_rows_);
    return {};
  }
  void decode(std::span<const std::byte>, std::span<float> y) override { p_qt(y.data(), p_qt_by_rows_); }

 private:
  static View matrix(float* data, int64_t rows, int64_t cols) { return View(data, DType::f32, {rows, cols}); }
  // A factor of rank_ vectors. by_rows: one vector a row, as the codec sends them; else one a column.
  View factor(std::vector<float>& values, int64_t length, bool by_rows) const {
    return by_rows ? matrix(values.data(), rank_, length) : matrix(values.data(), length, rank_);
  }
  void x_q(float* data, bool by_rows) {
    const View x = matrix(data, rows_, cols_), q = factor(q_, cols_, by_rows), to = factor(result_, rows_, by_rows);
    by_rows ? multiply(q, x, to, false, true) : multiply(x, q, to, false, false);
  }
  void xt_p(float* data, bool by_rows) {
    const View x = matrix(data, rows_, cols_), p = factor(p_, rows_, by_rows), to = factor(result_, cols_, by_rows);
    by_rows ? multiply(p, x, to, false, false) : multiply(x, p, to, true, false);
  }
  void p_qt(float* data, bool by_rows) {
    multiply(factor(p_, rows_, by_rows), factor(q_, cols_, by_rows), matrix(data, rows_, cols_), by_rows, !by_rows);
  }
  void multiply(View a, View b, View c, bool trans_a, bool trans_b) {
    cpu_ops().matmul(exec_, {.a = a, .b = b, .c = c, .trans_a = trans_a, .trans_b = trans_b});
  }
  template <typename F>
  bool faster_by_rows(const F& product) {
    double best[2] = {1e9, 1e9};
    for (int round = 0; round < 5; ++round) {
      for (bool by_rows : {false, true}) {
        const auto start = std::chrono::steady_clock::now();
        product(by_rows);
        const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        best[by_rows] = std::min(best[by_rows], took);
      }
    }
    return best[1] < best[0];
  }

  int64_t rows_, cols_, rank_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
  std::vector<float> p_, q_, result_;
  bool x_q_by_rows_ = false, xt_p_by_rows_ = false, p_qt_by_rows_ = false;
};

}  // namespace

std::unique_ptr<CodecPeer> make_products_peer(int64_t rows, int64_t cols, int64_t rank) {
  return std::make_unique<Products>(rows, cols, rank);
}

}  // namespace thinwire
