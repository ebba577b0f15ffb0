// Token files: the .bin / .idx pair that Megatron-LM, GPT-NeoX and this engine exchange. This header reads them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/base/core/check.h"
#include "engine/base/core/file.h"

namespace thinwire {

// Type of a stored token; the numbers are the codes in the .idx header (6 and 7 are floating point and refused).
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

// Calls f with a zero of the C++ type.
template <typename F>
int64_t with_token_type(TokenType type, const F& f) {
  switch (type) {
    case TokenType::kU8:
      return f(uint8_t{});
    case TokenType::kI8:
      return f(int8_t{});
    case TokenType::kI16:
      return f(int16_t{});
    case TokenType::kI32:
      return f(int32_t{});
    case TokenType::kI64:
      return f(int64_t{});
    case TokenType::kU16:
      return f(uint16_t{});
  }
  TW_CHECK(false, "token type ", static_cast<int>(type));
}
inline int64_t size_of(TokenType type) {
  return with_token_type(type, [](auto token) { return int64_t{sizeof token}; });
}
const char* name_of(TokenType type);

// Layout of .idx (little endian, nothing aligned; n sequences, m document boundaries):
//   0 "MMIDIDX\0\0" | 9 u64 version 1 | 17 u8 type | 18 u64 n | 26 u64 m | 34 i32 length[n] in tokens
//   | i64 offset[n] in bytes of .bin | i64 boundary[m] as sequence numbers, first 0, last n | optional i8 mode[n].
// .bin is the bare tokens. Everything in the header and the arrays is checked when the file is opened; token values are
// checked when they are read. Files may also change during training: the .bin is read with pread, and the map of the
// .idx is only touched after its size was compared, so a file that shrinks is an Error, not a signal.
// Reading is const and safe from several threads.
class TokenFile {
 public:
  // Opens `prefix`.bin and `prefix`.idx. Ids outside [0, vocab) are refused when read; vocab 0 means any id that fits
  // int32. Throws Error(kBadData) naming the file, what is wrong and how to mend it.
  TokenFile(const std::string& prefix, int64_t vocab);
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return boundaries_ - 1; }
  int64_t tokens() const { return tokens_; }                 // of all sequences
  int64_t bytes_behind() const { return bin_size_ - end_; }  // of .bin, behind the last sequence in it

  int64_t length(int64_t sequence) const;    // tokens
  int64_t offset(int64_t sequence) const;    // bytes in .bin
  int64_t boundary(int64_t document) const;  // first sequence of the document; boundary(documents()) == sequences()

  // Tokens [first, first + out.size()) of a sequence. Throws Error(kBadData) if the .bin no longer holds them or an id
  // is outside the vocabulary: file, sequence, offset and id are named.
  void read(int64_t sequence, int64_t first, std::span<int32_t> out) const;

  // Throws Error(kBadData) if .idx is now smaller than when it was opened. One fstat; call before length() in a loop
  // that runs long after opening.
  void check_unchanged() const;

  // "<bytes of .bin>:<bytes of .idx>:<xxh64 of .idx>": equal for equal files wherever they lie.
  std::string fingerprint() const;

 private:
  void check_header();
  void check_arrays();
  [[noreturn]] void fail_idx(const std::string& what) const;

  std::string prefix_, bin_path_, idx_path_;
  MappedFile idx_;
  Descriptor bin_;
  int64_t bin_size_ = 0, end_ = 0, vocab_ = 0;  // end_: of the last sequence in .bin
  TokenType type_ = TokenType::kU8;
  int64_t sequences_ = 0, boundaries_ = 0, tokens_ = 0;
};

}  // namespace thinwire
