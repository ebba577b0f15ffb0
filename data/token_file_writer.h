// Writes .bin / .idx pairs: token by token to disk, and the pair appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace thinwire {

// What Megatron-LM picks: two bytes where the vocabulary allows it, else four.
TokenType best_token_type(int64_t vocab);

// Streaming writer; memory is 4 bytes per sequence plus 8 per document. Files are written as `<path>.tmp-<host>-<pid>`
// and renamed by finalize(); a writer destroyed before that removes its temporary files and leaves an older pair
// untouched. All methods throw Error(kIo) naming path and reason (a full disk, for instance).
class TokenFileWriter {
 public:
  // Creates missing directories of the prefix. `type` defaults to what the vocabulary needs.
  TokenFileWriter(const std::string& prefix, int64_t vocab);
  TokenFileWriter(const std::string& prefix, int64_t vocab, TokenType type);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void add_sequence(std::span<const int32_t> ids);  // ids in [0, vocab); checked
  void end_document();                              // the sequences since the last call are one document

  // Makes the pair durable under its name: the .bin first, the .idx last, so that an .idx is never older than its .bin.
  // Sequences after the last end_document() are a programmer's mistake (CHECK).
  void finalize();

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t documents() const { return static_cast<int64_t>(boundaries_.size()) - 1; }
  int64_t tokens() const { return tokens_; }
  TokenType type() const { return type_; }

 private:
  class Output;

  std::string prefix_;
  int64_t vocab_;
  TokenType type_;
  std::unique_ptr<Output> bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> boundaries_{0};
  int64_t tokens_ = 0;
};

}  // namespace thinwire
