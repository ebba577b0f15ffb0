// Formats, sizes and threads of mx; the loops are in mx_kernel.cpp.
#include "compression/codecs/mx.h"

#include "compression/codecs/block_kernels.h"
#include "compression/codecs/block_layout.h"

namespace thinwire {
namespace {

struct Format {
  const char* name;
  MxFormat format;
  int64_t block;
  int bits;
};
constexpr Format kFormats[] = {{"mxfp8_e4m3", MxFormat::kE4m3, 32, 8}, {"mxfp8_e5m2", MxFormat::kE5m2, 32, 8},
                               {"mxfp6_e2m3", MxFormat::kE2m3, 32, 6}, {"mxfp6_e3m2", MxFormat::kE3m2, 32, 6},
                               {"mxfp4", MxFormat::kE2m1, 32, 4},      {"nvfp4", MxFormat::kNvfp4, 16, 4}};

class Mx final : public Codec {
 public:
  explicit Mx(const Format& format)
      : format_(format.format),
        layout_{format.block, format.bits, 1, format.format == MxFormat::kNvfp4 ? size_t{4} : 0},
        name_(std::string("mx(format=") + format.name + ")") {}
  std::string name() const override { return name_; }
  // 0 is a code and rounding is to the nearest, so no element's error exceeds the element.
  Traits traits() const override { return {.contractive = true, .linear = true, .granule = layout_.group()}; }
  size_t wire_bytes(int64_t count, DType) const override { return layout_.bytes(count); }

  Encoded encode(const Msg& msg, View in, std::span<std::byte> out, CodingState*) const override {
    return encode_groups(
        layout_, name_, msg, in, out,
        [&, encode = TW_PICK_KERNELS(mx_kernels).encode](const float* x, [[maybe_unused]] int64_t first, int64_t count,
                                                         uint8_t* to) { return encode(format_, x, count, to); });
  }
  void decode(const Msg& msg, std::span<const std::byte> in, View out, bool accumulate) const override {
    decode_groups(layout_, name_, msg, in, out,
                  [&, decode = TW_PICK_KERNELS(mx_kernels).decode](const uint8_t* from, int64_t count, float* y) {
                    return decode(format_, from, count, y, accumulate);
                  });
  }

 private:
  MxFormat format_;
  BlockLayout layout_;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Codec> make_mx(const CodecSpec& spec) {
  refuse_rounding_parameters(spec);
  for (const Format& format : kFormats) {
    if (spec.format != format.name) continue;
    if (spec.block != 0 && spec.block != format.block)
      throw_bad_config("codec mx: block is " + std::to_string(spec.block) + ", but " + spec.format + " has blocks of " +
                       std::to_string(format.block) + "; remove the key");
    return std::make_shared<Mx>(format);
  }
  throw_bad_config("codec mx: format is '" + spec.format +
                   "'; it may be mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4 or nvfp4");
}

CodecRow mx_row() {
  CodecRow row = {.defaults = {.codec = "mx", .format = "mxfp8_e4m3"}, .make = [](const CodecSpec& spec) {
                    return MadeCodec{make_mx(spec), nullptr};
                  }};
  std::vector<std::string> names;
  for (const Format& format : kFormats) {
    names.emplace_back(format.name);
    row.cases.push_back({.codec = "mx", .format = names.back()});
  }
  row.parameters = {format_parameter(names, "what values become"),
                    block_parameter("elements that share a scale, 0 for the format's own number")};
  return row;
}

}  // namespace thinwire
