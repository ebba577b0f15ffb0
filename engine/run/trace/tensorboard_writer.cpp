// Bytes of tensorflow.Event: 1 wall_time double, 2 step int64, 3 file_version, 5 summary {1 value {1 tag, 2
// simple_value float, 8 tensor, 9 metadata}}, 7 session_log {1 status = START}. Wire types: 0 varint, 1 eight bytes, 2
// length and bytes, 5 four bytes. Messages of the plugin hparams stand in the metadata of a value, beside a tensor of
// one zero that nobody reads, and without which TensorBoard drops the value.
#include "engine/run/trace/tensorboard_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "engine/base/core/crc32c.h"
#include "engine/base/core/log.h"
#include "engine/base/core/text.h"

namespace thinwire {
namespace {

enum WireType : uint32_t { kVarint = 0, kEightBytes = 1, kBytes = 2, kFourBytes = 5 };

template <typename T>
void put_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_tag(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

void put_unix_seconds(std::string& out, uint32_t field) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  put_tag(out, field, kEightBytes);
  put_little_endian(out, std::bit_cast<uint64_t>(now.count()));
}

std::string event_of(int64_t step, uint32_t field, std::string_view bytes) {
  std::string out;
  put_unix_seconds(out, 1);
  if (step != 0) {
    put_tag(out, 2, kVarint);
    put_varint(out, static_cast<uint64_t>(step));
  }
  put_bytes(out, field, bytes);
  return out;
}

// google.protobuf.Value: 2 number, 3 string, 4 bool. "" for what is none of them.
std::string protobuf_value(const nlohmann::json& v) {
  std::string out;
  if (v.is_number()) {
    put_tag(out, 2, kEightBytes);
    put_little_endian(out, std::bit_cast<uint64_t>(v.get<double>()));
  } else if (v.is_string()) {
    put_bytes(out, 3, v.get_ref<const std::string&>());
  } else if (v.is_boolean()) {
    put_tag(out, 4, kVarint);
    put_varint(out, v.get<bool>() ? 1 : 0);
  }
  return out;
}

// A name that no earlier process of this run has used.
Descriptor open_new_file(const std::string& directory, std::string& path) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::string stem = directory + "/events.out.tfevents." + std::to_string(seconds.count()) + "." + this_host() +
                           "." + std::to_string(::getpid()) + ".";
  for (int n = 0;; ++n) {
    path = stem + std::to_string(n);
    Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (file || errno != EEXIST) return file;
  }
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8u;
}

TensorboardWriter::TensorboardWriter(const std::string& directory, int64_t first_step) {
  file_ = open_new_file(directory, path_);
  if (!file_) {
    failed(path_ + ": cannot create: " + std::strerror(errno));
    return;
  }
  record(event_of(0, 3, "brain.Event:2"));
  if (first_step <= 1) return;
  std::string session;
  put_tag(session, 1, kVarint);
  put_varint(session, 1);  // START
  record(event_of(first_step, 7, session));
}

void TensorboardWriter::scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  if (!file_ || values.empty()) return;
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_tag(value, 2, kFourBytes);
    put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    put_bytes(summary, 1, value);
  }
  record(event_of(step, 5, summary));
}

void TensorboardWriter::hyper_parameters(const nlohmann::json& resolved) {
  constexpr char kKeys[] = R"(
      num_layers hidden_size ffn_hidden_size num_attention_heads num_kv_heads seq_length vocab_size pos_emb norm
      activation train_iters train_batch_size train_micro_batch_size_per_gpu optimizer.type optimizer.params.lr
      min_lr lr_decay_style weight_decay gradient_clipping hidden_dropout precision seed global_num_gpus
      pipe_parallel_size model_parallel_size context_parallel_size schedule zero_optimization.stage
      compression.preset compression.adapt)";
  std::string start;
  for (const std::string& key : split_words(kKeys)) {
    std::string path = "/" + key;
    std::replace(path.begin(), path.end(), '.', '/');
    const std::string value = protobuf_value(resolved.value(nlohmann::json::json_pointer(path), nlohmann::json()));
    if (value.empty()) continue;
    std::string entry;
    put_bytes(entry, 1, key);
    put_bytes(entry, 2, value);
    put_bytes(start, 1, entry);
  }
  put_unix_seconds(start, 5);
  std::string data;
  put_bytes(data, 3, start);
  hparams("_hparams_/session_start_info", data);
}

void TensorboardWriter::ended(bool well) {
  std::string end, data;
  put_tag(end, 1, kVarint);
  put_varint(end, well ? 1 : 2);
  put_unix_seconds(end, 2);
  put_bytes(data, 4, end);
  hparams("_hparams_/session_end_info", data);
}

void TensorboardWriter::hparams(const std::string& tag, const std::string& data) {
  std::string plugin, metadata, shape, tensor, value, summary;
  put_bytes(plugin, 1, "hparams");
  put_bytes(plugin, 2, data);
  put_bytes(metadata, 1, plugin);
  put_bytes(shape, 2, std::string("\x08\x01", 2));  // a dimension of size 1
  put_tag(tensor, 1, kVarint);
  put_varint(tensor, 1);  // float
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 5, std::string(4, '\0'));
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  put_bytes(summary, 1, value);
  record(event_of(0, 5, summary));
}

void TensorboardWriter::record(const std::string& event) {
  if (!file_) return;
  std::string length;
  put_little_endian(length, static_cast<uint64_t>(event.size()));
  std::string out = length;
  put_little_endian(out, masked_crc32c(length));
  out += event;
  put_little_endian(out, masked_crc32c(event));
  if (write_all(file_, std::as_bytes(std::span(out)))) return;
  failed(path_ + ": cannot write: " + std::strerror(errno));
  file_.close();  // readers stop at the first broken record, so nothing that follows one would be seen
}

void TensorboardWriter::failed(const std::string& what) {
  if (!warned_) log_warning("warning: " + what + "; TensorBoard will not see the rest of this run, training goes on");
  warned_ = true;
}

}  // namespace thinwire
