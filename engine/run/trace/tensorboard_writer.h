// TensorBoard event files without TensorBoard: records of hand-written protobuf with masked CRC-32C.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/core/file.h"

namespace thinwire {

// CRC-32C, rotated as TFRecord files store it.
uint32_t masked_crc32c(std::string_view bytes);

// One event file `events.out.tfevents.<unix seconds>.<host>.<pid>.<n>` in `directory`, which must exist. Record: u64
// length, u32 masked CRC of the length, data, u32 masked CRC of the data, all little-endian; data is a tensorflow.Event
// message. Failures are one warning in the log; training goes on.
class TensorboardWriter {
 public:
  // `first_step` > 1 writes a session start, on which TensorBoard drops points at or after that step from earlier
  // files.
  TensorboardWriter(const std::string& directory, int64_t first_step = 1);

  // All scalars of a step in one record (fp32 in the file; NaN and infinity are kept).
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  // What TensorBoard's HPARAMS page has in its columns: the sizes, layout, optimizer and preset of a resolved
  // configuration, by their keys ("optimizer.params.lr"). The dashboard lists a run from here on.
  void hyper_parameters(const nlohmann::json& resolved);
  // On that page the run is over.
  void ended(bool well);
  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);
  void hparams(const std::string& tag, const std::string& data);
  void failed(const std::string& what);

  std::string path_;
  Descriptor file_;
  bool warned_ = false;
};

}  // namespace thinwire
