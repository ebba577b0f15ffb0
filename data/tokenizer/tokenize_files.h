// Files to token files: the caller's thread reads and writes, in the order of the input, and several encode.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace thinwire {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // *.txt | *.text: paragraphs; *.jsonl | *.json | *.ndjson: a JSON object per line
  std::string prefix;               // <prefix>_<key>_document.bin/.idx, key "text" for paragraphs
  std::vector<std::string> json_keys{"text"};  // one token file each
  bool append_eod = false;                     // needs tokenizer.eod()
  bool prepend_bos = false;                    // as Megatron's Llama2Tokenizer does; needs tokenizer.bos()
  bool skip_bad_lines = false;                 // of .jsonl: counted instead of an Error
  int workers = 1;
};

struct TokenizeOutput {
  std::string prefix;
  int64_t documents = 0, tokens = 0;
};

struct TokenizeProgress {
  uint64_t bytes = 0, total_bytes = 0;  // of the input files
  int64_t documents = 0, tokens = 0;
};

struct TokenizeSummary {
  std::vector<TokenizeOutput> outputs;
  uint64_t bytes = 0;
  int64_t skipped_lines = 0;    // bad lines left out
  std::string first_skipped;    // why the first of them was
  int64_t empty_documents = 0;  // of whose text the tokenizer keeps nothing (always so of ""): left out
};

// The bytes written depend on text, tokenizer and options, never on `workers` or timing. Memory does not grow
// with the files: about 40 MiB for ordinary text, 270 MiB while a paragraph of many megabytes passes (encoded in pieces
// of kPieceBytes); a huge .jsonl line takes ten times its size. A document is one sequence in the token file, except
// that one of more than 16 Mi tokens continues in further sequences. `progress` is called on the caller's thread after
// every few hundred KiB; what it throws stops the work. Throws Error(kUsage | kBadData | kIo); no output file is then
// created or changed.
TokenizeSummary tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options,
                               const std::function<void(const TokenizeProgress&)>& progress = {});

}  // namespace thinwire
