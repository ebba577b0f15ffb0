// Our parameters <-> the tensors of Hugging Face files: names, transposed Conv1D matrices, split or differently ordered
// rows.
//
// Rows of ours are rows of theirs (gpt2: columns, its Conv1D stores [in, out]). Attention rows of ours go by KV group
// [q_0..q_{r-1} | k | v]; gpt_neox has the same order, gpt2 keeps q, k and v in thirds, llama in three tensors;
// SwiGLU's gate and up are two tensors in llama. All three rotate halves, as we do: no permutation inside a head.
// Vocabulary padding is zero on import and left out on export; a tied head is not stored.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/base/core/param_spec.h"
#include "engine/run/checkpoint/hf_config.h"
#include "engine/run/checkpoint/safetensors.h"

namespace thinwire {

// The tensors of an HF directory (model.safetensors, or shards with model.safetensors.index.json) or of one
// .safetensors file. Throws Error(kBadData) when there are none or a name is in two files.
class HfTensors {
 public:
  explicit HfTensors(const std::string& path);
  const SafetensorsFile* find(const std::string& name) const;  // the file that holds it, nullptr if none
  std::vector<std::string> names() const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;
};

// config.json of an HF directory, or beside one .safetensors file. Throws Error(kBadData).
nlohmann::json read_hf_config(const std::string& source);
// The model that it describes; errors name the file.
ModelConfig read_hf_model(const std::string& source, int64_t vocab_multiple = 128);

// Rows [our_row, our_row + rows) of our tensor are rows [hf_row, ...) of theirs (columns if transposed). Vectors count
// as matrices with one column.
struct HfPiece {
  int64_t our_row = 0, hf_row = 0, rows = 0;
};

class HfMapping {
 public:
  // `params`: list_parameters(config). Throws as hf_family_of does; a parameter that the family has no name for is a
  // CHECK. transformers: whose names are written; version 4 finds the head of gpt_neox as embed_out.weight alone, 5
  // also as lm_head.weight.
  HfMapping(const ModelConfig& config, const ParamList& params, int transformers = 5);

  // Reads every parameter (weights, or gradients under the same names) in the order of the list and hands it on as
  // rows x cols floats. A missing prefix `transformer.` / `gpt_neox.` / `model.` in the file is understood. Throws
  // Error(kBadData) for missing tensors, other shapes, and tensors that belong to no parameter of this model.
  void read_hf(const HfTensors& source,
               const std::function<void(const ParamSpec& param, std::vector<float> values)>& take) const;

  // Writes DIR/config.json and DIR/model.safetensors (shards of at most `shard_bytes` with an index if larger), F32,
  // BF16 or F16. `source(name)` gives our rows x cols floats. Existing files of these names are replaced.
  void write_hf(const std::string& directory, const std::function<std::vector<float>(const std::string& name)>& source,
                StDtype dtype, uint64_t shard_bytes = uint64_t{5} << 30) const;

  // The id that config.json gives for the end of a document; without this call none.
  void set_end_of_document(int64_t id) { end_of_document_ = id; }

  HfFamily family() const { return family_; }

 private:
  // A tensor of theirs and the piecewise copy between it and the one parameter of ours that it belongs to.
  struct HfTensor {
    std::string name;
    size_t param = 0;            // index into params_
    int64_t rows = 0, cols = 1;  // as [out, in], before transposing
    bool is_vector = false, transposed = false;
    std::vector<HfPiece> pieces;

    std::vector<int64_t> shape() const {  // as theirs
      if (is_vector) return {rows};
      return transposed ? std::vector<int64_t>{cols, rows} : std::vector<int64_t>{rows, cols};
    }
    // Calls copy(element of ours, element of theirs) for all that both have.
    template <typename F>
    void for_each(const F& copy) const {
      for (const HfPiece& piece : pieces) {
        for (int64_t r = 0; r < piece.rows; ++r) {
          const int64_t theirs = piece.hf_row + r;
          for (int64_t c = 0; c < cols; ++c)
            copy((piece.our_row + r) * cols + c, transposed ? c * rows + theirs : theirs * cols + c);
        }
      }
    }
  };

  void map_parameter(size_t index);
  bool map_layer_parameter(size_t index, const std::string& layer, const std::string& rest);
  void add(size_t index, const std::string& hf_name, std::vector<HfPiece> pieces, bool transposed = false);
  void add_whole(size_t index, const std::string& hf_name, bool transposed = false);
  void add_attention(size_t index, const std::string& prefix, const std::string& kind);
  std::string name_in(const HfTensors& source, const HfTensor& tensor) const;
  void refuse_strangers(const HfTensors& source, const std::set<std::string>& used) const;

  ModelConfig config_;
  ParamList params_;
  HfFamily family_;
  int transformers_ = 5;
  int64_t end_of_document_ = -1;
  std::vector<HfTensor> tensors_;  // in the order of params_
};

}  // namespace thinwire
