// Sentences made of the words of layout values.
#include "engine/run/config/layout_text.h"

#include "engine/run/config/enum_words.h"

namespace thinwire {

std::string placement_text(const PlacementLevels& p) {
  const Level w = p.weights, g = p.gradients, o = p.optimizer;
  const std::string levels =
      "(" + std::string(name_of(w)) + ", " + name_of(g) + ", " + name_of(o) + ")";  // as papers write placements
  std::string text;
  if (w == Level::kReplicated && g == Level::kReplicated && o == Level::kReplicated)
    text = "replicated";
  else if (w == Level::kReplicated && g == Level::kReplicated && o == Level::kGlobal)
    text = "ZeRO-1";
  else if (w == Level::kReplicated && g == Level::kGlobal && o == Level::kGlobal)
    text = "ZeRO-2";
  else if (w == Level::kGlobal && g == Level::kGlobal && o == Level::kGlobal)
    text = "ZeRO-3";
  else if (w == g && g == o)
    text = "MiCS " + levels;
  else if (w == Level::kPair && g == Level::kNode && o == Level::kGlobal)
    text = "3-level partition " + levels;
  else
    text = "placement " + levels;
  if (p.secondary != Level::kReplicated) text += std::string(" + secondary ") + name_of(p.secondary) + " (hpZ)";
  return text;
}

std::string layout_text(const RunConfig& c) {
  const LayoutConfig& l = c.layout;
  const auto count = [](int64_t n, const std::string& one, const std::string& more) {
    return std::to_string(n) + " " + (n == 1 ? one : more);
  };
  const int64_t ranks = l.pipeline * l.data * l.tensor;
  std::string text = count(ranks, "rank", "ranks");
  if (ranks > 1) {
    std::string parts;
    const auto add = [&](const std::string& part) { parts += (parts.empty() ? "" : " x ") + part; };
    if (l.pipeline > 1) {
      std::string order = word_of(l.schedule_kind);
      if (l.schedule_kind == ScheduleKind::kInterleaved) order += ", " + std::to_string(l.virtual_chunks) + " chunks";
      if (l.partition != PartitionMethod::kUniform) order += ", cut by " + word_of(l.partition);
      add(count(l.pipeline, "stage", "stages") + " (" + order + ")");
    }
    if (l.data > l.context || (l.data > 1 && l.context == 1))
      add(std::to_string(l.data / l.context) + " data (" + placement_text(l.placement) + ")");
    if (l.context > 1) add(std::to_string(l.context) + " context");
    if (l.tensor > 1) add(std::to_string(l.tensor) + " tensor" + (l.sequence_parallel ? " (sequence parallel)" : ""));
    text += " = " + parts;
  }
  text += "; " + count(c.accumulation, "micro-batch", "micro-batches") + " of " +
          count(c.data.micro_batch, "sequence", "sequences");
  if (l.data > 1 && l.placement.weights != Level::kReplicated)
    text += std::string("; gathered weights held for ") + (l.hold == Hold::kUnit         ? "one use"
                                                           : l.hold == Hold::kMicroBatch ? "a micro-batch"
                                                                                         : "the step");
  if (l.pipeline > 1 && c.model.tied_head)
    text += std::string("; embedding ") + (l.embedding_sync == EmbeddingSyncKind::kFused ? "fused" : "two-step");
  if (l.ranks_per_node > 0) text += "; nodes of " + std::to_string(l.ranks_per_node);
  return text;
}

}  // namespace thinwire
