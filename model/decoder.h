// Inference with a cache: feeds tokens of one sequence, keeps the qkv rows of every layer, returns the last token's
// logits.
#pragma once

#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"

namespace thinwire {

class Decoder {
 public:
  // One rank that holds the whole model. Room for `capacity` positions; at most `chunk` tokens are fed at once (a
  // longer prompt is fed in pieces).
  Decoder(const ModelConfig& config, ParamStore& store, int64_t capacity, int64_t chunk, Ports& ports, Arena& arena,
          Device* device, Stream* stream);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Appends tokens ([n] i32 device, n <= chunk) and returns the logits [padded vocab] behind the last one, on the
  // device.
  View feed(Exec& exec, View tokens);
  void reset() { position_ = 0; }  // forgets what was fed

 private:
  int64_t capacity_, chunk_, position_ = 0;
  RotaryTables rotary_;
  Embedding embedding_;
  NoUnitEvents events_;
  std::vector<Block> blocks_;
  Head head_;
  BlockActivations activations_;  // one shared set: nothing is kept for a backward
  View other_x_;                  // the residual stream alternates between two buffers
  std::vector<View>
      cache_;  // per layer: [capacity, qkv] rows; queries are kept too, so that the product writes in place
  BlockScratch scratch_;
  HeadActivations head_activations_;
  HeadScratch head_scratch_;
};

}  // namespace thinwire
