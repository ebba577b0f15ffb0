// Streaming readers of text: paragraphs of a .txt, lines of a .jsonl, in constant memory however large the file is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/core/file.h"

namespace thinwire {

// Longer documents come in pieces of at most this many bytes.
inline constexpr size_t kPieceBytes = size_t{4} << 20;
// Longer lines of a .jsonl are refused: each must be parsed as a whole, which takes up to ten times its size in memory.
inline constexpr size_t kLongestJsonLine = size_t{64} << 20;

// Where a text longer than `limit` may be cut (0 < result <= limit): before white space that follows something else,
// where no word of the patterns of GPT-2 and Llama 3 and no SentencePiece word can be broken; without such a place,
// between two characters.
size_t safe_cut(std::string_view text, size_t limit);

// Bytes of a file through one fixed buffer. A UTF-8 byte order mark is skipped, UTF-16 is refused.
// Throws Error(kBadData) if it cannot be opened, Error(kIo) if it cannot be read, naming the file.
class ByteSource {
 public:
  explicit ByteSource(const std::string& path);

  // Appends the rest of the current line with its '\n' to `line`, but stops once `line` holds `limit` bytes or more.
  // False at the end of the file, if nothing was appended.
  bool append_line(std::string& line, size_t limit);
  uint64_t bytes_read() const { return consumed_; }  // given out so far
  const std::string& path() const { return path_; }

 private:
  bool fill();

  std::string path_;
  Descriptor file_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  uint64_t consumed_ = 0;
};

struct TextPiece {
  std::string text;
  uint64_t line = 0;  // its number from 1, of a .jsonl
  bool starts_document = true;
  bool ends_document = true;  // false: more pieces of the same document follow
};

class PieceReader {
 public:
  explicit PieceReader(const std::string& path) : source_(path) {}
  virtual ~PieceReader() = default;
  virtual bool next(TextPiece& piece) = 0;  // false at the end
  uint64_t bytes_read() const { return source_.bytes_read(); }

 protected:
  ByteSource source_;
};

// A .txt: one document per paragraph; paragraphs are separated by blank lines (nothing but spaces, tabs and line ends;
// LF or CRLF). A document keeps its bytes, inner line ends included, without the line end of its last line: joining
// documents with an empty line gives the file back, up to the kind and number of blank lines. No document is empty.
class ParagraphReader final : public PieceReader {
 public:
  using PieceReader::PieceReader;
  bool next(TextPiece& piece) override;

 private:
  bool take(size_t bytes, bool ends_document, TextPiece& piece);

  std::string line_, text_, line_end_;
  bool line_open_ = false;  // the last part read was not the end of its line
  bool document_open_ = false;
};

// A .jsonl: the lines that are not blank, without their line ends. Throws Error(kBadData) with file:line for a line
// longer than kLongestJsonLine.
class LineReader final : public PieceReader {
 public:
  using PieceReader::PieceReader;
  bool next(TextPiece& line) override;

 private:
  uint64_t line_number_ = 0;
};

// The strings under `keys` of one line. Throws Error(kBadData): "FILE:LINE: ..." when the line is not a JSON object or
// a key is missing or not a string; unpaired surrogate escapes are not text and refused. As to Python, NaN, Infinity
// and -Infinity under other keys are no mistake.
std::vector<std::string> parse_json_line(const std::string& line, const std::vector<std::string>& keys,
                                         const std::string& path, uint64_t number);

}  // namespace thinwire
