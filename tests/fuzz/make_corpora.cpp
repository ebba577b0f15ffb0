// Writes the seeds of tests/fuzz/corpora anew: encoders' payloads for every spec of every target, whole and damaged.
//
//   make_corpora DIRECTORY
// Deterministic. Inputs that a fuzzing run found worth keeping are added beside them by hand and are left alone.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace thinwire::fuzz;

void write(const std::filesystem::path& path, const std::vector<uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_corpora DIRECTORY\n";
    return 64;
  }
  const uint16_t counts[] = {101, 37, 130, 17, 66, 8};
  for (const Target& target : targets()) {
    const std::filesystem::path directory = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(directory);
    std::mt19937 rng(static_cast<unsigned>(target.name.size()));
    const bool framed = target.name == "mpc" || target.name == "entropy";
    const size_t seeds = framed ? 6 : target.specs.size();
    for (size_t i = 0; i < seeds; ++i) {
      Header header{static_cast<uint8_t>(i), counts[i % 6], kFit, static_cast<uint8_t>(i * 7)};
      if (target.name == "ecsq" && i % 4 != 1) header.count = static_cast<uint16_t>(512 + i * 37);  // Huffman codes
      if (i % 2 == 1) header.flags |= kAccumulate;
      if (framed || target.name == "cast") header.flags |= static_cast<uint8_t>(i % 3 << 2);
      if (framed && i % 3 != 0) header.flags &= static_cast<uint8_t>(~kAccumulate);
      header.flags |= static_cast<uint8_t>(i % 4 << 4);
      if (target.name == "coder") header.extra = static_cast<uint8_t>(i % 4 << 5);
      std::vector<uint8_t> input = make_input(target, header, 10 + i);
      write(directory / ("good_" + std::to_string(i)), input);
      if (input.size() <= kFuzzHeader || i % 3 != 0) continue;
      for (int flip = 0; flip < 3; ++flip)
        input[kFuzzHeader + rng() % (input.size() - kFuzzHeader)] ^= static_cast<uint8_t>(1u << rng() % 8);
      write(directory / ("flipped_" + std::to_string(i)), input);
      input[3] &= static_cast<uint8_t>(~kFit);
      input.resize(input.size() - 1 - rng() % (input.size() - kFuzzHeader));
      write(directory / ("short_" + std::to_string(i)), input);
    }
  }
  return 0;
}
