// POSIX and xxHash behind output_file.h.
#include "engine/run/checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"

namespace thinwire {
namespace {

std::string hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return to_hex(std::as_bytes(std::span(canonical.digest)));
}

}  // namespace

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

std::string hash_bytes(std::span<const std::byte> bytes) {
  return hex(XXH3_128bits(bytes.data(), bytes.size()));
}

struct RunningHash::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

RunningHash::RunningHash() : state_(std::make_unique<State>()) {
  TW_CHECK(state_->xxh != nullptr);
  XXH3_128bits_reset(state_->xxh);
}
RunningHash::~RunningHash() = default;
void RunningHash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
std::string RunningHash::digest() const {
  return hex(XXH3_128bits_digest(state_->xxh));
}

OutputFile::OutputFile(const std::string& path, uint64_t expected_bytes) : path_(path) {
  file_ = Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) throw_io(path + ": cannot create: " + std::strerror(errno));
  if (expected_bytes > 0) {
    const int rc = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(expected_bytes));
    // Some file systems cannot reserve: a full disk then fails a later write().
    if (rc != 0 && rc != EOPNOTSUPP && rc != EINVAL && rc != ENOSYS && rc != EINTR) {
      ::unlink(path.c_str());
      throw_io(path + ": cannot reserve " + std::to_string(expected_bytes) + " bytes: " + std::strerror(rc));
    }
  }
}

OutputFile::~OutputFile() {
  if (!finished_) ::unlink(path_.c_str());
}

void OutputFile::fail(const char* what) {
  throw_io(path_ + ": cannot " + what + ": " + std::strerror(errno));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  hash_.add(bytes);
  if (!write_all(file_, bytes)) fail("write");
  written_ += bytes.size();
}

std::string OutputFile::finish() {
  // Cut what was reserved in excess, so that the size is what was written.
  if (::ftruncate(file_.get(), static_cast<off_t>(written_)) != 0) fail("set the size");
  if (::fdatasync(file_.get()) != 0) fail("flush");
  if (!file_.close()) fail("close");
  finished_ = true;
  return hash_.digest();
}

}  // namespace thinwire
