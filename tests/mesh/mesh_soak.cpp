// Random layouts against one rank, for as long as it is told: mesh_soak [--minutes M] [--seed S] [--ranks N]
// [--layouts L] [--least K] [--context 1] [--nccl 1] [--full-minutes M]. --layouts: so many, each under every family,
// instead of minutes. --least: not fewer, however long they take. --context 1: sequences are cut in all of them.
// --nccl 1: ranks are devices that talk over the strict stand-in of NCCL (tests/support/fake_nccl.h). --full-minutes:
// instead of --minutes in scripts/test.sh full.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "engine/run/config/resolver.h"
#include "tests/mesh/mesh_harness.h"
#include "tests/support/thorough.h"

namespace {

using namespace thinwire::mesh;
using thinwire::data_ranks_on_node;

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> choices) {
  return *(choices.begin() + random() % choices.size());
}

Layout random_layout(std::mt19937_64& random, const Model& model, int samples, int most, bool cut, bool nccl) {
  Layout l;
  l.fake_nccl = nccl;
  do {
    l.pipeline = pick(random, {1, 1, 2, 3, 4}), l.tensor = pick(random, {1, 1, 2, 3, 4});
    l.data = pick(random, {1, 2, 3, 4, 6, 8});
    l.context = cut ? pick(random, {2, 3, 4, 5}) : pick(random, {1, 1, 2, 3, 4});
  } while (l.ranks() > most || l.ranks() == 1 || samples % l.data != 0);
  do {
    l.accumulation = 1 + static_cast<int>(random() % 6);
  } while (samples % (l.data * l.accumulation) != 0);
  l.sequence_parallel = random() % 2 == 0;
  if (l.pipeline > 1) {
    l.schedule = pick(random, {"gpipe", "1f1b", "interleaved", "zb_h1"});
    if (l.schedule == "interleaved") {
      l.chunks = 2 + static_cast<int>(random() % 2);
      if (l.pipeline * l.chunks > model.layers) l.schedule = "1f1b", l.chunks = 1;
    }
    l.embedding = pick(random, {"", "fused", "two_step"});
    l.partition = pick(random, {"", "uniform", "parameters"});
  }
  // Nodes of any size that holds equally many ranks of each data-parallel group, context-parallel ranks included.
  const int replicas = l.data * l.context;
  const char* levels[] = {"replicated", "pair", "node", "global"};
  int64_t on_node = 0;
  if (replicas > 1 && random() % 2 == 0) {
    l.ranks_per_node = 1 + static_cast<int>(random() % static_cast<uint64_t>(l.ranks()));
    on_node = data_ranks_on_node(l.ranks(), replicas, l.tensor, l.ranks_per_node);
    if (on_node == 0) l.ranks_per_node = 0;
  }
  const int64_t widths[] = {1, replicas % 2 == 0 ? 2 : 0, on_node, replicas};  // 0: there is no such level
  const auto fits = [&](int inner, int outer) {
    return inner <= outer && widths[inner] > 0 && widths[outer] > 0 && widths[outer] % widths[inner] == 0;
  };
  int w, g, o;
  do {
    w = static_cast<int>(random() % 4), g = static_cast<int>(random() % 4), o = static_cast<int>(random() % 4);
  } while (!fits(w, g) || !fits(g, o));
  l.weights = levels[w], l.gradients = levels[g], l.optimizer = levels[o];
  if (const int s = static_cast<int>(random() % 3); s > 0 && s < w && fits(s, w)) l.secondary = levels[s];
  if (w > 0) l.hold = pick(random, {"", "unit", "micro_batch", "step"});
  l.recompute = pick(random, {"", "", "selective", "full"});
  const bool by_heads = 24 % (2 * l.context) == 0 && 12 / l.tensor % l.context == 0;
  if (l.context > 1)
    l.more.push_back(std::string("cp_comm_type=") + (by_heads ? pick(random, {"all_gather", "a2a", "p2p", "p2p"})
                                                              : pick(random, {"all_gather", "p2p", "p2p"})));
  // In chunks, in memory or outside (of a GPU: of the host), where these are not refused.
  if (random() % 3 == 0 && !(l.sequence_parallel && l.tensor > 1) && l.schedule != "zb_h1" &&
      (l.context == 1 || l.more.back() == "cp_comm_type=all_gather")) {
    l.more.push_back("sequence_chunk_size=" + std::to_string(1 + random() % 11));
    if (nccl) l.more.emplace_back("device=cuda");
    if (random() % 2 == 0)
      l.more.emplace_back(std::string("activation_offload=") +
                          (!nccl && std::getenv("THINWIRE_TEST_DEVICE") == nullptr ? "disk" : "host"));
  }
  const char* sums = pick(random, {"", "checksum=true", "checksum=between_nodes"});
  if (*sums != '\0' && !nccl) l.more.emplace_back(sums);  // with sums messages go through the host
  return l;
}

}  // namespace

int main(int argc, char** argv) {
  double minutes = 1.0;
  uint64_t seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  int most = 8, layouts = 0, least = 1;
  bool cut = false, nccl = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--minutes") == 0) minutes = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--full-minutes") == 0 && thinwire::test::thorough()) minutes = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--ranks") == 0) most = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--least") == 0) least = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--layouts") == 0) layouts = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--context") == 0) cut = std::atoi(argv[i + 1]) != 0;
    if (std::strcmp(argv[i], "--nccl") == 0) nccl = std::atoi(argv[i + 1]) != 0;
  }
  std::mt19937_64 random(seed);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(minutes * 60.0);
  int runs = 0, failures = 0;
  Worst worst;
  const auto more = [&] {
    return layouts > 0 ? runs < 3 * layouts : runs < least || std::chrono::steady_clock::now() < end;
  };
  while (more()) {
    Model model;
    model.family = pick(random, {"gpt2", "gpt2_untied", "neox", "llama", "llama_tied"});
    model.layers = pick(random, {5, 7});
    if (random() % 4 == 0) model.dropout = 0.1;
    if (random() % 4 == 0) model.documents = true;
    if (random() % 4 == 0) model.window = static_cast<int>(random() % 12);
    const Layout layout = random_layout(random, model, 24, most, cut, nccl);
    for (const char* family : {"gpt2", "neox", "llama"}) {
      if (layouts > 0) model.family = family;
      const std::string what = compare(model, layout, 24, 4, &worst);
      ++runs;
      if (!what.empty()) ++failures, std::printf("FAIL %s\n", what.c_str());
      if (layouts == 0) break;
    }
  }
  std::printf(
      "%d layouts, %d failures; worst relative difference: loss %.2g, gradient norm %.2g, %.2g of the tolerance\n",
      runs, failures, worst.loss, worst.norm, worst.of_tolerance);
  return failures == 0 && runs >= least ? 0 : 1;
}
