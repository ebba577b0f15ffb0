// Links the installed libraries from outside the tree: counts the parameters of a GPT-2.
#include <cstdio>

#include "engine/base/core/version.h"
#include "engine/base/ops/ops.h"
#include "model/params.h"

int main() {
  thinwire::ModelConfig m;
  m.layers = 12, m.hidden = 768, m.heads = m.kv_heads = 12, m.head_dim = 64, m.ffn = 3072, m.vocab = 50257,
  m.padded_vocab = 50304;
  m.max_positions = 1024;
  std::printf("%s %s %lld\n", thinwire::version_string().c_str(), thinwire::cpu_ops().isa().c_str(),
              static_cast<long long>(thinwire::count_parameters(thinwire::list_parameters(m), false)));
}
