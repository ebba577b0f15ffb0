// Reads CPUID once and applies THINWIRE_ISA.
#include "engine/base/ops/isa.h"

#include <cpuid.h>

#include <cstdlib>
#include <string_view>

#include "engine/base/core/error.h"

namespace thinwire {
namespace {

bool has_f16c() {  // which older Clang's __builtin_cpu_supports does not know
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

Isa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
    throw_bad_config(
        "this processor has no AVX2 with FMA and F16C; thinwire needs an x86-64 processor of 2013 or later");
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  Isa best = Isa::kAvx2;
  if (avx512) best = __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
  const char* wanted = std::getenv("THINWIRE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (isa_name(isa) != std::string_view(wanted)) continue;
    if (isa > best)
      throw_bad_config(std::string("THINWIRE_ISA=") + wanted + ": this machine has at most " + isa_name(best));
    return isa;
  }
  throw_bad_config(std::string("THINWIRE_ISA=") + wanted + ": use avx2, avx512 or avx512_bf16");
}

}  // namespace

Isa active_isa() {
  static const Isa isa = detect();
  return isa;
}

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
  }
  return "?";
}

}  // namespace thinwire
