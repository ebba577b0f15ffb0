// Hostile files to parsers: configurations, token indexes, tokenizers, checkpoints, what a run wrote.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace thinwire::fuzz {

// A parser of files that may come from anywhere. An input is the file; of those marked with *, its first byte chooses:
// - config_json, config_yaml: a configuration; what is accepted loads back from its resolved form.
// - megatron_args: a file with a command line of Megatron-LM.
// - token_index*: an .idx; the .bin beside it has so many times eight bytes; what opens is read whole.
// - tokenizer_json*: a tokenizer; what opens turns a text with so many of the input's own bytes to ids and back.
// - safetensors: what opens is read whole.
// - manifest*: odd: the checksum at its end is put right; what is accepted is written as it was read.
// - run_files*: 0: metrics.jsonl, 1: status.json, 2: config.resolved.json, 3: prediction.json of a run, behind which
//   report pages are drawn.
// - cluster: a cluster file; times and rates of what is accepted are some.
// - revisions*: bit 0: stages are cut by times, bit 1: the right first line is put before; what is accepted is written
//   as it was read.
// - product_table*: odd: the places alone, the right first fields are put before; what is accepted is written as it was
//   read.
struct Parser {
  std::string name;  // of its corpus directory too
  // True where the file was accepted, false where it was refused with the error that its users are promised. Anything
  // else that is thrown is a finding.
  bool (*play)(std::span<const uint8_t> input) = nullptr;
};
const std::vector<Parser>& parsers();
const Parser* find_parser(const std::string& name);  // nullptr: no such one

}  // namespace thinwire::fuzz
