// The table of codecs: one row says all that the rest of the house has to know about a codec.
//
// A row stands in its codec's own file; codec_table.cpp only lists the rows. The keys of a rule, their documentation
// and schema, the checks of rules, the cases of `bench codec`, the codecs that tests and fuzzers go through and what
// adapt may send instead are read from here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "compression/codec.h"
#include "compression/round_codec.h"
#include "compression/rule.h"
#include "engine/base/core/key_spec.h"

namespace thinwire {

// `codec` is set for all but sketches; `rounds` for low_rank and sketch, which use them wherever something is summed.
struct MadeCodec {
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<const RoundCodec> rounds;
};

// A parameter of a codec: its key, with the name that it has in a rule, and where CodecSpec keeps it. Its default is
// that of the row's `defaults`. `doc` begins in lower case and has no full stop: keys that several codecs share join
// theirs.
struct CodecParameter {
  using Field = std::variant<std::string CodecSpec::*, int64_t CodecSpec::*, double CodecSpec::*, bool CodecSpec::*>;
  KeySpec key;
  Field field;
};

CodecParameter codec_parameter(CodecParameter::Field field, KeySpec key);  // sets types and scope
// Those that several codecs have: elements per block (0: the codec's own number), what values become, share kept.
CodecParameter block_parameter(const std::string& doc);
CodecParameter format_parameter(std::vector<std::string> allowed, const std::string& doc);
CodecParameter density_parameter();

struct CodecRow {
  CodecSpec defaults;                      // what the codec takes when nothing is said; defaults.codec is its name
  std::vector<CodecParameter> parameters;  // in the order of the documentation
  // Throws Error(kBadConfig) naming the parameter and what it may be.
  MadeCodec (*make)(const CodecSpec& spec) = nullptr;
  // Parameters worth timing and testing: what `bench codec` goes through.
  std::vector<CodecSpec> cases;
  // Traits that no parameter changes. A test compares them with those of the codecs that `cases` make.
  bool lossless = false, selects = false;
  bool rounds = false;  // sums of it travel in rounds
  // Whether what becomes of an element depends on elements of other tensors in its message, other than by blocks.
  // nullptr: never.
  bool (*crosses_tensors)(const CodecSpec& spec) = nullptr;
  // What adapt may send in its place: a few more bits, a fraction of the time, the same blocks, the same state of
  // residuals. The same where the parameters ask for nothing cheaper. nullptr: there is nothing cheaper.
  CodecSpec (*cheaper)(const CodecSpec& spec) = nullptr;

  const std::string& name() const { return defaults.codec; }
  bool has(const std::string& parameter) const;
};

// In the order of docs/codecs.md.
const std::vector<CodecRow>& codec_table();
// Throws Error(kBadConfig) naming all codecs.
const CodecRow& codec_row(const std::string& name);
std::vector<std::string> codec_names();
// Each key once, in the order of first mention: bounds that hold all rows', values that any row allows, documentation
// and defaults by codec where they differ.
const std::vector<CodecParameter>& codec_parameters();

// Throws Error(kBadConfig) naming the parameter and what it may be.
MadeCodec make_codec(const CodecSpec& spec);
// A codec with everything that it takes when nothing else is said.
CodecSpec default_codec(const std::string& name);
// What adapt may send in its place; the codec itself where there is nothing cheaper or the rule does not ask for it.
CodecSpec cheaper_codec(const CodecSpec& spec);
// A number as codecs say it in their names: "2.25", "8".
std::string rate_text(double rate);
// Whether what becomes of an element depends on none outside of its own aligned run of `elements` (a matrix codec: of
// its matrix). Ranks that hold a tensor among different neighbours get equal copies from such a codec alone.
bool codes_within(const CodecSpec& spec, int64_t elements);

}  // namespace thinwire
