// Vocabulary of parameters: what a layer says about each of its tensors. Init, sharding, optimizer, checkpoint and
// import / export all iterate lists of these and keep no list of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace thinwire {

enum class TensorClass : uint8_t { kEmbedding, kAttention, kMlp, kNorm, kBias, kHead };
enum class InitKind : uint8_t { kZero, kOne, kNormal };
// How tensor parallelism cuts the tensor: not at all, by rows (output features), by columns (input features), by rows
// within each KV group (q..q|k|v), by rows within each of the halves gate | up, by vocabulary rows.
enum class TpAxis : uint8_t { kNone, kRows, kCols, kKvGroups, kGateUp, kVocab };

struct ParamSpec {
  std::string name;  // global name, e.g. "layers.3.attention.qkv.weight"; unique in the model
  int64_t rows = 0;  // 1-D tensors have rows = 1
  int64_t cols = 0;
  bool is_vector = false;  // 1-D tensor (bias or norm)
  TensorClass tensor_class = TensorClass::kMlp;
  InitKind init = InitKind::kZero;
  float init_std = 0.0f;  // for kNormal
  TpAxis tp_axis = TpAxis::kNone;
  int unit = 0;            // index of the unit (0 = embedding, 1..L = blocks, L+1 = head)
  bool decay = false;      // takes weight decay
  int64_t valid_rows = 0;  // rows that are not vocabulary padding (== rows elsewhere)
  std::string tied_to;     // name of the tensor that owns the storage, empty if its own
  uint32_t id = 0;         // stable number of the tensor in the whole model; keys its random numbers

  int64_t count() const { return rows * cols; }
};

using ParamList = std::vector<ParamSpec>;

}  // namespace thinwire
