// The table of codecs: one row says all that the rest of the house has to know about a codec.
//
// A row stands in its codec's own file; codec_table.cpp only lists the rows. The keys of a rule, their documentation
// and schema, the checks of rules, the cases of `bench codec`, the codecs that tests and fuzzers go through and what
// adapt may send instead are read from here.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compression/codec.h"
#include "compression/round_codec.h"
#include "compression/rule.h"
#include "engine/base/core/key_spec.h"

namespace thinwire {

// `codec` is set for all but sketches; `rounds` for low_rank and sketch, which use them wherever something is summed.
struct MadeCodec {
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<const RoundCodec> rounds = nullptr;
};

// A parameter of a codec: its key, with the name that it has in a rule, and its value when nothing is said. `doc`
// begins in lower case and has no full stop: keys that several codecs share join theirs.
struct CodecParameter {
  KeySpec key;
  CodecValue otherwise;
  // Whether the value goes with those of the other parameters. One that does not is refused, but a preset's gives way
  // to what a user says of the others. nullptr: always.
  bool (*goes_with)(const CodecSpec& spec) = nullptr;
};

CodecParameter codec_parameter(CodecValue otherwise, KeySpec key);  // sets types and scope
// Those that several codecs have: elements per block (0: the codec's own number), what values become, share kept.
CodecParameter block_parameter(const std::string& doc);
CodecParameter format_parameter(std::vector<std::string> allowed, const std::string& otherwise, const std::string& doc);
CodecParameter density_parameter();

struct CodecRow {
  std::string name;
  std::vector<CodecParameter> parameters = {};  // in the order of the documentation
  // Given values of all parameters, each within its key's bounds and of those allowed. Throws Error(kBadConfig) naming
  // the parameter and what it may be where there is more to it.
  MadeCodec (*make)(const CodecSpec& spec) = nullptr;
  // Parameters worth timing and testing: what `bench codec` goes through.
  std::vector<CodecValues> cases = {{}};
  // Traits that no parameter changes. A test compares them with those of the codecs that `cases` make.
  bool lossless = false, selects = false;
  bool rounds = false;  // sums of it travel in rounds
  // Has kernels for a GPU (name_cuda.cu); messages of the others go through host memory, and what travels in rounds.
  bool device = false;
  // Whether what becomes of an element depends on elements of other tensors in its message, other than by blocks.
  // nullptr: never.
  bool (*crosses_tensors)(const CodecSpec& spec) = nullptr;
  // What adapt may send in its place: a few more bits, a fraction of the time, the same blocks, the same state of
  // residuals. The same where the parameters ask for nothing cheaper. nullptr: there is nothing cheaper.
  CodecSpec (*cheaper)(const CodecSpec& spec) = nullptr;

  const CodecParameter* find(const std::string& parameter) const;  // nullptr: it has none of that name
};

// In the order of docs/wire_formats.md.
const std::vector<CodecRow>& codec_table();
// Throws Error(kBadConfig) naming all codecs.
const CodecRow& codec_row(const std::string& name);
std::vector<std::string> codec_names();
// Each key once, in the order of first mention: bounds that hold all rows', values that any row allows, documentation
// and defaults by codec where they differ.
const std::vector<KeySpec>& codec_keys();

// With values of all parameters. Throws Error(kBadConfig) for codecs and parameters that there are not.
CodecSpec codec_spec(const std::string& name, const CodecValues& parameters = {});
// Throws Error(kBadConfig) naming the parameter and what it may be.
MadeCodec make_codec(const CodecSpec& spec);
// The codec as it is after `step` updates, without ramps; and after how many updates its ramps change it, ascending.
CodecSpec codec_at(const CodecSpec& spec, int64_t step);
std::set<int64_t> ramp_places(const CodecSpec& spec);
// What adapt may send in its place; the codec itself where there is nothing cheaper or the rule does not ask for it.
CodecSpec cheaper_codec(const CodecSpec& spec);
// Elements per block as a codec takes them: `otherwise` for 0. Throws Error(kBadConfig) for blocks that are not
// multiples of `multiple` from `least` to `most`.
int64_t block_of(const CodecSpec& spec, int64_t otherwise, int64_t least, int64_t most, int64_t multiple = 1);
// A number as codecs say it in their names: "2.25", "8".
std::string rate_text(double rate);
// Whether what becomes of an element depends on none outside of its own aligned run of `elements` (a matrix codec: of
// its matrix). Ranks that hold a tensor among different neighbours get equal copies from such a codec alone.
bool codes_within(const CodecSpec& spec, int64_t elements);

}  // namespace thinwire
