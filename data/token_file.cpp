// Opening, checking and reading .bin / .idx pairs; no number in them is used before it was checked.
#include "data/token_file.h"

#define XXH_INLINE_ALL
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little endian and read without swapping");

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int64_t kHeaderBytes = 34;

template <typename T>
T load(std::span<const std::byte> bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// The error for a pair that is not there says what people most often got wrong: the extension.
void require_present(const std::string& prefix, const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) throw_bad_data(path + ": is not a regular file; data paths name a .bin / .idx pair");
    return;
  }
  const int error = errno;
  if (error != ENOENT && error != ENOTDIR) return;  // may pass: opening tries again (file.h)
  std::string hint =
      "; a data path is the prefix of a .bin / .idx pair, e.g. data/my_text_document (the tokenize program makes one)";
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx"))
    hint = "; give the data path without its extension: " + prefix.substr(0, prefix.size() - 4);
  else if (::stat((prefix + "_text_document.idx").c_str(), &info) == 0)
    hint = "; did you mean " + prefix + "_text_document?";
  throw_bad_data(path + ": cannot open: " + std::strerror(error) + hint);
}

// Copies stored tokens to int32 and returns the position of the first one outside [0, limit), or -1.
template <typename T>
int64_t widen(const std::byte* source, std::span<int32_t> out, int64_t limit) {
  bool ok = true;
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));
    ok &= static_cast<int64_t>(value) >= 0 && static_cast<int64_t>(value) < limit;
    out[i] = static_cast<int32_t>(value);
  }
  if (ok) return -1;
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, source + i * sizeof(T), sizeof(T));
    if (static_cast<int64_t>(value) < 0 || static_cast<int64_t>(value) >= limit) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace

const char* name_of(TokenType type) {
  constexpr const char* names[] = {"", "uint8", "int8", "int16", "int32", "int64", "", "", "uint16"};
  return names[static_cast<int>(type)];
}

TokenFile::TokenFile(const std::string& prefix, int64_t vocab)
    : prefix_(prefix), bin_path_(prefix + ".bin"), idx_path_(prefix + ".idx"), vocab_(vocab) {
  TW_CHECK(vocab >= 0, "vocab ", vocab);
  require_present(prefix, idx_path_);
  require_present(prefix, bin_path_);
  idx_ = MappedFile(idx_path_);
  check_header();
  bin_ = open_regular(bin_path_);
  bin_size_ = static_cast<int64_t>(bin_.size());
  check_arrays();
}

void TokenFile::fail_idx(const std::string& what) const {
  throw_bad_data(idx_path_ + ": " + what +
                 "; the file is damaged or not a token index: make the pair anew (tokenize) or copy it again");
}

void TokenFile::check_header() {
  const auto bytes = idx_.bytes();
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size >= 6 && std::memcmp(bytes.data(), "TNTIDX", 6) == 0)
    throw_bad_data(idx_path_ +
                   ": is in the old TNTIDX format (data_impl \"cached\"), which is not supported; tokenize the text "
                   "again to get an MMIDIDX file");
  if (size < static_cast<int64_t>(sizeof(kMagic)) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    fail_idx("does not begin with MMIDIDX");
  if (size < kHeaderBytes) fail_idx("ends inside its header of 34 bytes (it has " + std::to_string(size) + ")");
  const uint64_t version = load<uint64_t>(bytes, 9);
  if (version != 1) fail_idx("has version " + std::to_string(version) + ", expected 1");
  const int code = load<uint8_t>(bytes, 17);
  if (code == 6 || code == 7)
    throw_bad_data(idx_path_ + ": holds floating-point values (type code " + std::to_string(code) +
                   "), not token ids; give a text data set");
  if (code < 1 || code > 8) fail_idx("has unknown token type code " + std::to_string(code) + " (known: 1 2 3 4 5 8)");
  type_ = static_cast<TokenType>(code);

  const uint64_t n = load<uint64_t>(bytes, 18), m = load<uint64_t>(bytes, 26);
  const uint64_t room = static_cast<uint64_t>(size - kHeaderBytes);
  // Each count is bounded by what fits before it is multiplied, so that nothing below can wrap around.
  if (n > room / 12 || m > (room - 12 * n) / 8)
    fail_idx("announces " + std::to_string(n) + " sequences and " + std::to_string(m) +
             " document boundaries, but has only " + std::to_string(size) + " bytes");
  const uint64_t used = 12 * n + 8 * m;
  if (room != used && room != used + n)
    fail_idx("has " + std::to_string(size) + " bytes, but " + std::to_string(n) + " sequences and " +
             std::to_string(m) + " document boundaries take " + std::to_string(kHeaderBytes + used));
  if (m == 0) fail_idx("has no document boundaries (there must be at least the first, 0)");
  sequences_ = static_cast<int64_t>(n);
  boundaries_ = static_cast<int64_t>(m);
}

void TokenFile::check_arrays() {
  const int64_t item = size_of(type_);
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t n = length(i), at = offset(i);
    if (n < 0) fail_idx("sequence " + std::to_string(i) + " has length " + std::to_string(n));
    if (at < 0 || at % item != 0)
      fail_idx("sequence " + std::to_string(i) + " has byte offset " + std::to_string(at) + ", not a multiple of " +
               std::to_string(item));
    if (at > bin_size_ || n > (bin_size_ - at) / item)
      throw_bad_data(bin_path_ + ": is too short: sequence " + std::to_string(i) + " of the .idx needs bytes [" +
                     std::to_string(at) + ", +" + std::to_string(n * item) + "), the file has " +
                     std::to_string(bin_size_) +
                     "; the pair does not belong together or was cut short: copy or make it again");
    tokens_ += n;
    end_ = std::max(end_, at + n * item);
  }
  int64_t last = 0;
  if (boundary(0) != 0) fail_idx("the document boundaries begin with " + std::to_string(boundary(0)) + ", not 0");
  for (int64_t d = 1; d < boundaries_; ++d) {
    const int64_t next = boundary(d);
    if (next < last || next > sequences_)
      fail_idx("document boundary " + std::to_string(d) + " is " + std::to_string(next) + " after " +
               std::to_string(last) + " (" + std::to_string(sequences_) + " sequences)");
    last = next;
  }
  if (last != sequences_)
    fail_idx("the document boundaries end with " + std::to_string(last) + ", not with the number of sequences " +
             std::to_string(sequences_));
}

int64_t TokenFile::length(int64_t sequence) const {
  return load<int32_t>(idx_.bytes(), kHeaderBytes + 4 * sequence);
}
int64_t TokenFile::offset(int64_t sequence) const {
  return load<int64_t>(idx_.bytes(), kHeaderBytes + 4 * sequences_ + 8 * sequence);
}
int64_t TokenFile::boundary(int64_t document) const {
  return load<int64_t>(idx_.bytes(), kHeaderBytes + 12 * sequences_ + 8 * document);
}

void TokenFile::read(int64_t sequence, int64_t first, std::span<int32_t> out) const {
  TW_CHECK(sequence >= 0 && sequence < sequences_, "sequence ", sequence, " of ", sequences_);
  const int64_t item = size_of(type_), count = static_cast<int64_t>(out.size());
  // The mapped file may have changed since it was checked, so its numbers are checked again before they are used.
  const int64_t base = offset(sequence), n = length(sequence);
  if (base < 0 || base > bin_size_) fail_idx("changed while it was in use (sequence " + std::to_string(sequence) + ")");
  TW_CHECK(first >= 0 && count <= n - first, "tokens ", first, "+", count, " of ", n, " in sequence ", sequence);
  thread_local std::vector<std::byte> buffer;
  buffer.resize(static_cast<size_t>(count * item));
  if (read_at(bin_, bin_path_, static_cast<uint64_t>(base + first * item), buffer) < buffer.size())
    throw_bad_data(bin_path_ + ": ends before byte " + std::to_string(base + (first + count) * item) +
                   ", it was cut short while in use; restore the file and start again (the run resumes from its last "
                   "checkpoint)");
  const int64_t limit = vocab_ > 0 ? vocab_ : int64_t{std::numeric_limits<int32_t>::max()} + 1;
  const int64_t bad =
      with_token_type(type_, [&](auto token) { return widen<decltype(token)>(buffer.data(), out, limit); });
  if (bad >= 0) {
    const int64_t id = with_token_type(
        type_, [&](auto token) { return static_cast<int64_t>(load<decltype(token)>(buffer, bad * item)); });
    throw_bad_data(
        bin_path_ + ": sequence " + std::to_string(sequence) + ", token " + std::to_string(first + bad) + " (byte " +
        std::to_string(base + (first + bad) * item) + ") is id " + std::to_string(id) +
        (vocab_ > 0 ? ", outside the vocabulary of " + std::to_string(vocab_) : ", not an id of 0 to 2147483647") +
        "; was the file made with another tokenizer? Set vocab_size to what that one has, or tokenize again");
  }
}

void TokenFile::check_unchanged() const {
  const size_t now = idx_.current_size();
  if (now < idx_.bytes().size())
    throw_bad_data(idx_path_ + ": shrank from " + std::to_string(idx_.bytes().size()) + " to " + std::to_string(now) +
                   " bytes while in use; restore the file and start again (the run resumes from its last checkpoint)");
}

std::string TokenFile::fingerprint() const {
  check_unchanged();
  const unsigned long long hash = XXH64(idx_.bytes().data(), idx_.bytes().size(), 0);
  return printed("%zu:%zu:%016llx", static_cast<size_t>(bin_size_), idx_.bytes().size(), hash);
}

}  // namespace thinwire
