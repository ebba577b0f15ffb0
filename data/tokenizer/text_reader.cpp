// Reading by fixed buffers; a paragraph or line is the largest thing ever held.
#include "data/tokenizer/text_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int kDeepestLine = 64;

bool is_blank_char(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool is_blank(std::string_view line) {
  return std::all_of(line.begin(), line.end(), is_blank_char);
}

// Takes "\n" or "\r\n" off the end of a line and returns it.
std::string strip_line_end(std::string& line) {
  size_t n = line.size();
  if (n > 0 && line[n - 1] == '\n') --n;
  if (n < line.size() && n > 0 && line[n - 1] == '\r') --n;
  std::string line_end = line.substr(n);
  line.resize(n);
  return line_end;
}

// Python's json module writes these and reads them again, though JSON has no such numbers. As long as the line, so that
// bytes in messages are those of the line.
std::string with_list_for_nan(std::string_view line) {
  std::string mended;
  bool quoted = false;
  for (size_t at = 0; at < line.size(); ++at) {
    size_t found = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
      if (!quoted && line.substr(at).starts_with(word)) found = word.size();
    if (found > 0) {
      mended += "[]";
      mended.append(found - 2, ' ');
      at += found - 1;
      continue;
    }
    mended += line[at];
    if (line[at] == '"')
      quoted = !quoted;
    else if (quoted && line[at] == '\\' && at + 1 < line.size())
      mended += line[++at];
  }
  return mended;
}

}  // namespace

size_t safe_cut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  for (const bool blank : {true, false}) {  // rather in front of a blank: SentencePiece puts one there
    for (size_t at = limit; at > limit / 2 && at > 0; --at) {
      if (blank ? text[at] != ' ' : !is_blank_char(text[at])) continue;
      const auto before = static_cast<uint8_t>(text[at - 1]);
      // Bytes from 0x80 may end a character that is white space itself; to Llama 3 line ends belong to a sign before
      // them.
      const bool after_any = text[at] == ' ' || text[at] == '\t';
      if (before < 0x80 && (after_any ? before > 0x20 : std::isalnum(before) != 0)) return at;
    }
  }
  size_t at = limit;
  while (at > 1 && limit - at < 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80 ? limit : at;
}

ByteSource::ByteSource(const std::string& path) : path_(path), buffer_(kBufferBytes) {
  file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_) throw_bad_data(path + ": cannot open: " + std::strerror(errno));
  struct stat info {};
  if (::fstat(file_.get(), &info) == 0 && S_ISDIR(info.st_mode))
    throw_bad_data(path + ": is a directory; name the files in it");
  while (end_ < 3 && fill()) {
  }
  const std::string_view start(buffer_.data(), end_);
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF"))
    throw_bad_data(path + ": is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8");
  if (start.starts_with("\xEF\xBB\xBF")) begin_ = consumed_ = 3;
}

// Reads more behind what is there, or from the start when all was given out.
bool ByteSource::fill() {
  if (begin_ == end_) begin_ = end_ = 0;
  for (;;) {
    const ssize_t n = ::read(file_.get(), buffer_.data() + end_, buffer_.size() - end_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io(path_ + ": cannot read: " + std::strerror(errno));
    end_ += static_cast<size_t>(n);
    return n > 0;
  }
}

bool ByteSource::append_line(std::string& line, size_t limit) {
  bool any = false;
  while (line.size() < limit) {
    if (begin_ == end_ && !fill()) break;
    const size_t most = std::min(end_ - begin_, limit - line.size());
    const char* start = buffer_.data() + begin_;
    const void* newline = std::memchr(start, '\n', most);
    const size_t n = newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - start) + 1 : most;
    line.append(start, n);
    begin_ += n;
    consumed_ += n;
    any = true;
    if (newline != nullptr) break;
  }
  return any;
}

bool ParagraphReader::take(size_t bytes, bool ends_document, TextPiece& piece) {
  piece.starts_document = !std::exchange(document_open_, !ends_document);
  piece.ends_document = ends_document;
  if (bytes == text_.size()) {
    piece.text = std::move(text_);
    text_.clear();
  } else {
    piece.text = text_.substr(0, bytes);
    text_.erase(0, bytes);
  }
  return true;
}

bool ParagraphReader::next(TextPiece& piece) {
  for (;;) {
    if (text_.size() > kPieceBytes) return take(safe_cut(text_, kPieceBytes), false, piece);
    line_.clear();
    if (!source_.append_line(line_, kPieceBytes)) break;
    const bool starts_line = !line_open_;
    line_open_ = line_.back() != '\n' && line_.size() >= kPieceBytes;  // a shorter one ended with the file
    if (starts_line && !line_open_ && is_blank(line_)) {
      line_end_.clear();
      if (!text_.empty()) return take(text_.size(), true, piece);
      continue;
    }
    text_ += line_end_;
    line_end_ = strip_line_end(line_);
    text_ += line_;
  }
  return !text_.empty() && take(text_.size(), true, piece);
}

bool LineReader::next(TextPiece& line) {
  for (;;) {
    line.text.clear();
    if (!source_.append_line(line.text, kLongestJsonLine + 1)) return false;
    line.line = ++line_number_;
    if (line.text.size() > kLongestJsonLine) {
      throw_bad_data(source_.path() + ":" + std::to_string(line.line) + ": the line is longer than " +
                     std::to_string(kLongestJsonLine >> 20) + " MiB; split the document, or give it as .txt");
    }
    strip_line_end(line.text);
    if (!is_blank(line.text)) return true;
  }
}

std::vector<std::string> parse_json_line(const std::string& line, const std::vector<std::string>& keys,
                                         const std::string& path, uint64_t number) {
  using Json = nlohmann::json;
  const auto fail = [&](const std::string& what) { throw_bad_data(path + ":" + std::to_string(number) + ": " + what); };
  Json object;
  // To the JSON library a NUL ends the text, and what follows would be left out unseen.
  if (line.find('\0') != std::string::npos) fail("holds a NUL byte: the file is damaged");
  try {
    object = Json::parse(line, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kDeepestLine) fail("nested deeper than " + std::to_string(kDeepestLine) + " levels");
      return true;
    });
  } catch (const Json::parse_error& e) {
    if (const char wrong = e.byte > 0 && e.byte <= line.size() ? line[e.byte - 1] : '\0'; wrong == 'N' || wrong == 'I')
      if (const std::string mended = with_list_for_nan(line); mended != line)
        return parse_json_line(mended, keys, path, number);
    fail("not valid JSON at byte " + std::to_string(e.byte) + " of the line; each line must be one JSON object");
  } catch (const Json::exception& e) {
    fail(std::string("not valid JSON (") + e.what() + ")");
  }
  if (!object.is_object()) fail("each line must be a JSON object such as {\"" + keys.front() + "\": \"...\"}");
  std::vector<std::string> texts;
  for (const std::string& key : keys) {
    const auto found = object.find(key);
    if (found == object.end()) fail("has no key \"" + key + "\" (choose keys with --json-key)");
    if (!found->is_string()) fail("\"" + key + "\" is not a string");
    texts.push_back(std::move(found->get_ref<std::string&>()));
  }
  return texts;
}

}  // namespace thinwire
