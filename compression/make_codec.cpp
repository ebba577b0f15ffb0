// THE list of codecs: by name, with the factory that reads its parameters.
#include "compression/make_codec.h"

#include <cmath>
#include <functional>

#include "compression/codecs/block_int.h"
#include "compression/codecs/cast.h"
#include "compression/codecs/chunked_top_k.h"
#include "compression/codecs/e3m0.h"
#include "compression/codecs/ecsq.h"
#include "compression/codecs/entropy.h"
#include "compression/codecs/identity.h"
#include "compression/codecs/lloyd_max.h"
#include "compression/codecs/low_rank.h"
#include "compression/codecs/mpc.h"
#include "compression/codecs/mx.h"
#include "compression/codecs/one_bit.h"
#include "compression/codecs/random_k.h"
#include "compression/codecs/sketch.h"
#include "compression/codecs/top_k.h"
#include "compression/codecs/zfp.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

struct Entry {
  std::string name;
  std::function<MadeCodec(const CodecSpec&)> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {"identity",
       [](const CodecSpec&) {
         return MadeCodec{std::make_shared<Identity>(), nullptr};
       }},
      {"cast",
       [](const CodecSpec& s) {
         return MadeCodec{make_cast(s), nullptr};
       }},
      {"block_int",
       [](const CodecSpec& s) {
         return MadeCodec{make_block_int(s), nullptr};
       }},
      {"mx",
       [](const CodecSpec& s) {
         return MadeCodec{make_mx(s), nullptr};
       }},
      {"e3m0",
       [](const CodecSpec& s) {
         return MadeCodec{make_e3m0(s), nullptr};
       }},
      {"lloyd_max",
       [](const CodecSpec& s) {
         return MadeCodec{make_lloyd_max(s), nullptr};
       }},
      {"ecsq",
       [](const CodecSpec& s) {
         return MadeCodec{make_ecsq(s), nullptr};
       }},
      {"one_bit",
       [](const CodecSpec& s) {
         return MadeCodec{make_one_bit(s), nullptr};
       }},
      {"zfp",
       [](const CodecSpec& s) {
         return MadeCodec{make_zfp(s), nullptr};
       }},
      {"mpc",
       [](const CodecSpec& s) {
         return MadeCodec{make_mpc(s), nullptr};
       }},
      {"entropy",
       [](const CodecSpec& s) {
         return MadeCodec{make_entropy(s), nullptr};
       }},
      {"low_rank",
       [](const CodecSpec& s) {
         return MadeCodec{make_low_rank(s), make_low_rank_rounds(s)};
       }},
      {"top_k",
       [](const CodecSpec& s) {
         return MadeCodec{make_top_k(s), nullptr};
       }},
      {"random_k",
       [](const CodecSpec& s) {
         return MadeCodec{make_random_k(s), nullptr};
       }},
      {"chunked_top_k",
       [](const CodecSpec& s) {
         return MadeCodec{make_chunked_top_k(s), nullptr};
       }},
      {"sketch",
       [](const CodecSpec& s) {
         return MadeCodec{nullptr, make_sketch(s)};
       }},
  };
  return all;
}

}  // namespace

MadeCodec make_codec(const CodecSpec& spec) {
  for (const Entry& entry : entries()) {
    if (entry.name == spec.codec) return entry.make(spec);
  }
  std::string names;
  for (const std::string& name : codec_names()) names += (names.empty() ? "" : " | ") + name;
  throw_bad_config("codec: \"" + spec.codec + "\" is none of " + names);
}

CodecSpec light_codec(const CodecSpec& spec) {
  if (!spec.light) return spec;
  CodecSpec light = spec;  // transform, block and checksum stay
  light.codec = "lloyd_max";
  light.bits = static_cast<int64_t>(std::ceil(spec.rate));
  light.light = false;
  return light;
}

bool codes_within(const CodecSpec& spec, int64_t elements) {
  if (spec.codec == "top_k" || spec.codec == "sketch" || spec.codec == "ecsq") return false;
  if (spec.codec == "one_bit" && spec.block == 0) return false;
  return spec.block == 0 || elements % spec.block == 0;
}

const std::vector<std::string>& codec_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& entry : entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

}  // namespace thinwire
