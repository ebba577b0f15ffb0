// Checkpoints on disk, read side: which there are, whether one verifies, and filling state from one, whatever its
// slices.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/core/state_visitor.h"
#include "engine/run/checkpoint/agreement.h"
#include "engine/run/checkpoint/manifest.h"
#include "engine/run/checkpoint/staged_state.h"

namespace thinwire {

struct ModelConfig;
using VisitState = std::function<void(StateVisitor&)>;

// Directories `step_<number>` or `step_<number>-<again>` below `directory`, newest first: by the sequence number in the
// manifest, unreadable ones (which can never verify) first of all, so that a log names them.
struct FoundCheckpoint {
  std::string path;
  std::string name;
  int64_t step = 0;
  int64_t sequence = -1;  // -1: manifest unreadable
};
// Throws Error(kIo) where the file system cannot tell: then nobody knows which is the newest.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& directory);

// Reads every byte of the checkpoint: manifest checksum, size and XXH3-128 of each file, each file a valid safetensors
// file that holds exactly the tensors of the manifest with their types and sizes. Throws Error(kBadData) at the first
// fault, naming file, expected and found. Returns the manifest.
// A collective of `control`: each rank reads a share of the files, and a fault that one finds is the Error of all.
// `progress` is told of the bytes of its share, every MiB.
Manifest verify_checkpoint(const std::string& checkpoint_dir, Control& control = one_rank(),
                           const GotOn& progress = {});

// What a user may name: a checkpoint itself, a directory of checkpoints, or a run directory that has `checkpoints/` or
// says in config.resolved.json where it saves. Returns the checkpoints found there, newest first. Throws
// Error(kBadData) when there is none.
std::vector<FoundCheckpoint> resolve_checkpoint_path(const std::string& path);

struct LoadOptions {
  // Asked-for names with these prefixes keep their present values (no_load_optim: moments, "loss_scaler/", states of
  // the coding). Integers, reals and texts alike.
  std::vector<std::string> unwanted_prefixes;
  CopyBytes copy;                    // into device memory; default memcpy
  uint64_t meet_every = kMeetEvery;  // on_all_ranks, while the ranks fill their state
};

// A checkpoint and what verify_checkpoint has returned of it.
struct VerifiedCheckpoint {
  std::string path;
  Manifest manifest;
};

// The model whose weights it holds. Throws Error(kBadData) where it does not say so.
ModelConfig model_of(const VerifiedCheckpoint& checkpoint);

// Shows a filling visitor to `state`. Tensors match by name; rows, cols and dtype must be equal; the asked slice is put
// together from all stored slices that intersect it, whatever their rectangles and ranges: only what is asked for is
// read. Throws Error(kBadData) naming what is missing or differs; `state` may then be partly filled.
// A collective of `control`, on the calling thread: each rank fills its own state (`state` holds no
// collectives), an error of one is thrown by all.
void load_checkpoint(const VerifiedCheckpoint& found, const VisitState& state, const LoadOptions& options = {},
                     Control& control = one_rank());

}  // namespace thinwire
