// libFuzzer's entry, built once per target (THINWIRE_FUZZ_TARGET).
#include <exception>

#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Anything that play() lets through but success and bad data is uncaught here, which libFuzzer reports as a crash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const thinwire::fuzz::Target& target = thinwire::fuzz::target(THINWIRE_FUZZ_TARGET);
  thinwire::fuzz::play(target, {data, size});
  return 0;
}
