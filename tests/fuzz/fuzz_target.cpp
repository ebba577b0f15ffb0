// libFuzzer's entry. The environment variable THINWIRE_FUZZ_TARGET names the target.
#include <cstdlib>
#include <stdexcept>

#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Anything that play() lets through but success and bad data is uncaught here, which libFuzzer reports as a crash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const thinwire::fuzz::Target& target = []() -> const thinwire::fuzz::Target& {
    const char* name = std::getenv("THINWIRE_FUZZ_TARGET");
    if (name == nullptr) throw std::runtime_error("THINWIRE_FUZZ_TARGET names no target");
    return thinwire::fuzz::target(name);
  }();
  thinwire::fuzz::play(target, {data, size});
  return 0;
}
