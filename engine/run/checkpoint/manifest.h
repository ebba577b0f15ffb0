// The manifest of one checkpoint: what was saved, where its bytes are and what they hash to. It is written last, and a
// directory without a manifest that verifies is not a checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/run/checkpoint/safetensors.h"
#include "engine/run/checkpoint/slice_place.h"

namespace thinwire {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int kManifestVersion = 2;  // 1 knew no rectangles: its slices are ranges of the whole tensor

struct ManifestFile {
  std::string name;  // plain file name in the checkpoint's directory
  uint64_t bytes = 0;
  std::string hash;  // XXH3-128 of every byte, header included
};

// A stored slice of a global tensor.
struct ManifestTensor {
  std::string name;
  SlicePlace place;
  StDtype dtype = StDtype::kF32;
  size_t file = 0;          // index into files
  std::string stored_name;  // in that file, see stored_name_of
  std::string hash;
};

// `name` for a whole tensor, `name@first` for a range of it, `name@row+rows,col+cols@first` for (part of) a rectangle.
std::string stored_name_of(const std::string& name, const SlicePlace& place);

struct Manifest {
  int64_t step = 0;
  int64_t sequence = 0;  // grows with every save in the directory; the newest checkpoint has the largest
  std::string job;
  double saved_at = 0.0;  // seconds since 1970
  int64_t ranks = 1;      // that wrote it
  nlohmann::json info;    // the caller's: model, data and layout keys, config hash
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;       // bit-exact
  std::map<std::string, std::string> texts;  // any bytes
};

// JSON text whose last line is the XXH3-128 of all bytes before it: one flipped bit anywhere is detected.
std::string manifest_to_text(const Manifest& manifest);

// Throws Error(kBadData), message starting with `path`, unless the text is exactly one that manifest_to_text wrote (of
// a version we know). All indices, ranges and names are checked, so that readers may rely on them; the slices of each
// tensor cover it exactly.
Manifest manifest_from_text(const std::string& path, const std::string& text);
// The same for what one of several ranks wrote: its slices need not cover anything.
Manifest part_from_text(const std::string& path, const std::string& text);

// What is wrong with the slices of some tensor (held twice, held nowhere, of different shapes or types), naming tensor
// and elements; empty if every tensor is covered exactly.
std::string find_slice_fault(const Manifest& manifest);

// DIR/manifest.json.
Manifest read_manifest(const std::string& checkpoint_dir);
// Its sequence alone, without parsing the rest: a run may have a thousand checkpoints. Throws Error(kBadData) where
// the seal or the sequence is wrong.
int64_t read_sequence(const std::string& checkpoint_dir);

}  // namespace thinwire
