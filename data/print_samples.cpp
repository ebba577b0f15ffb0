// Samples as JSON lines.
#include "data/print_samples.h"

#include <string>
#include <vector>

#include "engine/base/core/error.h"

namespace thinwire {

void print_samples(const SampleStream& stream, int64_t n, std::ostream& out) {
  const int64_t size = stream.size(Split::kTrain);
  if (n < 0 || n > size)
    throw_usage("--print-samples " + std::to_string(n) + ": the training split has " + std::to_string(size) +
                " samples; ask for 0 to " + std::to_string(size) + ", or raise train_iters");
  std::vector<int32_t> tokens(static_cast<size_t>(stream.seq_length()) + 1);
  std::string line;
  for (int64_t i = 0; i < n; ++i) {
    stream.read(Split::kTrain, i, tokens);
    line = "{\"sample\":" + std::to_string(i) + ",\"tokens\":[";
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (t > 0) line += ',';
      line += std::to_string(tokens[t]);
    }
    line += "]}\n";
    out << line;
  }
  out.flush();
  if (!out) throw_io("--print-samples: writing the samples failed");
}

}  // namespace thinwire
