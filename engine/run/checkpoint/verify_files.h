// Reading back the files of a checkpoint, or a rank's share of them, a slice at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/core/file.h"
#include "engine/run/checkpoint/manifest.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {

class VerifyFiles {
 public:
  // Every ranks-th file of the manifest, from number `rank` on; `manifest` outlives this.
  VerifyFiles(std::string checkpoint_dir, const Manifest& manifest, int rank, int ranks);

  // Reads at most `bytes` more: size and XXH3-128 of each file, each a valid safetensors file that holds exactly the
  // tensors of the manifest with their types and sizes. Throws Error(kBadData) at the first fault, naming file,
  // expected and found.
  void advance(uint64_t bytes);
  bool done() const { return next_ >= manifest_.files.size(); }

 private:
  void open();
  void finish();

  std::string dir_;
  const Manifest& manifest_;
  size_t next_, stride_;
  std::vector<std::vector<const ManifestTensor*>> tensors_;  // by file
  std::string path_;                                         // of the file at hand
  Descriptor file_;
  uint64_t read_ = 0;
  std::optional<RunningHash> hash_;
  std::vector<std::byte> buffer_;
};

}  // namespace thinwire
