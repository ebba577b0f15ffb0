// libFuzzer's entry. The environment variable THINWIRE_FUZZ_TARGET names the target.
#include <signal.h>
#include <sys/time.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// An input must not take longer than this. By the process's own time: libFuzzer's -timeout also counts what others
// took.
static void limit_time() {
  const itimerval ten_seconds{{0, 0}, {10, 0}};
  ::setitimer(ITIMER_VIRTUAL, &ten_seconds, nullptr);
}

// Anything that play() lets through but success and the promised refusal is uncaught here, which libFuzzer reports as a
// crash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Play = std::function<bool(std::span<const uint8_t>)>;
  static const Play play = []() -> Play {
    ::signal(SIGVTALRM, [](int) { std::abort(); });
    const char* name = std::getenv("THINWIRE_FUZZ_TARGET");
    if (name == nullptr) throw std::runtime_error("THINWIRE_FUZZ_TARGET names no target");
    if (const thinwire::fuzz::Parser* parser = thinwire::fuzz::find_parser(name)) return parser->play;
    const thinwire::fuzz::Target& target = thinwire::fuzz::target(name);
    return [&target](std::span<const uint8_t> input) { return thinwire::fuzz::play(target, input); };
  }();
  limit_time();
  play({data, size});
  return 0;
}
