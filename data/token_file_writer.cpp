// The streaming writer of .bin / .idx pairs.
#include "data/token_file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

// The largest id that the type can hold.
int64_t largest_of(TokenType type) {
  return with_token_type(type, [](auto token) {
    return std::min<int64_t>(std::numeric_limits<decltype(token)>::max(), std::numeric_limits<int32_t>::max());
  });
}

}  // namespace

// A buffered temporary file that becomes `path` when published.
class TokenFileWriter::Output {
 public:
  explicit Output(const std::string& path) : path_(path), temporary_(temporary_beside(path)) {
    file_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file_) fail("cannot create");
    buffer_.reserve(kBufferBytes);
  }
  ~Output() {
    if (!published_) ::unlink(temporary_.c_str());
  }
  void append(const void* data, size_t n) {
    if (buffer_.size() + n > kBufferBytes) flush();
    buffer_.append(static_cast<const char*>(data), n);
  }
  template <typename T>
  void append(T value) {
    append(&value, sizeof value);
  }

  // All of it is on disk then, under the temporary name.
  void complete() {
    flush();
    if (::fsync(file_.get()) != 0) fail("cannot flush to disk");
    if (!file_.close()) fail("cannot close");
  }
  void publish() {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename to its final name");
    published_ = true;
  }

 private:
  void flush() {
    if (!write_all(file_, std::as_bytes(std::span(buffer_)))) fail("cannot write");
    buffer_.clear();
  }
  [[noreturn]] void fail(const char* what) const {
    throw_io(temporary_ + ": " + what + ": " + std::strerror(errno) + "; check the free space and the permissions of " +
             folder_of(path_));
  }

  std::string path_, temporary_, buffer_;
  Descriptor file_;
  bool published_ = false;
};

TokenType best_token_type(int64_t vocab) {
  return vocab < 65500 ? TokenType::kU16 : TokenType::kI32;
}

TokenFileWriter::TokenFileWriter(const std::string& prefix, int64_t vocab)
    : TokenFileWriter(prefix, vocab, best_token_type(vocab)) {}

TokenFileWriter::TokenFileWriter(const std::string& prefix, int64_t vocab, TokenType type)
    : prefix_(prefix), vocab_(vocab), type_(type) {
  TW_CHECK(vocab > 0 && vocab - 1 <= largest_of(type), "vocabulary ", vocab, " in ", name_of(type));
  make_directories(folder_of(prefix));
  bin_ = std::make_unique<Output>(prefix + ".bin");
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::add_sequence(std::span<const int32_t> ids) {
  TW_CHECK(bin_ != nullptr, "the writer of ", prefix_, " was finalized");
  TW_CHECK(ids.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), "sequence of ", ids.size(),
           " tokens");
  for (int32_t id : ids) {
    TW_CHECK(id >= 0 && id < vocab_, "id ", id, " with a vocabulary of ", vocab_);
    const int64_t wide = id;
    bin_->append(&wide, static_cast<size_t>(size_of(type_)));  // little endian: the low bytes come first
  }
  lengths_.push_back(static_cast<int32_t>(ids.size()));
  tokens_ += static_cast<int64_t>(ids.size());
}

void TokenFileWriter::end_document() {
  boundaries_.push_back(sequences());
}

void TokenFileWriter::finalize() {
  TW_CHECK(bin_ != nullptr, "the writer of ", prefix_, " was finalized before");
  TW_CHECK(boundaries_.back() == sequences(), "end_document() is missing after the last sequence");
  bin_->complete();
  Output idx(prefix_ + ".idx");
  idx.append("MMIDIDX\0", 9);
  idx.append(uint64_t{1});
  idx.append(static_cast<uint8_t>(type_));
  idx.append(static_cast<uint64_t>(lengths_.size()));
  idx.append(static_cast<uint64_t>(boundaries_.size()));
  for (int32_t n : lengths_) idx.append(n);
  int64_t offset = 0;
  for (int32_t n : lengths_) {
    idx.append(offset);
    offset += n * size_of(type_);
  }
  for (int64_t b : boundaries_) idx.append(b);
  idx.complete();
  // An old .idx must not be seen beside the new .bin, so it goes first.
  ::unlink((prefix_ + ".idx").c_str());
  bin_->publish();
  idx.publish();
  sync_directory(folder_of(prefix_));
  bin_.reset();
}

}  // namespace thinwire
