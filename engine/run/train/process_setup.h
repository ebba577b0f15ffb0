// What must be in force before the OpenMP runtime starts, and how a program turns an Error into its exit.
#pragma once

#include <functional>
#include <string>

namespace thinwire {

// OpenMP threads that spin while idle were measured to cost 100 times the CPU time on shared cores. The runtime reads
// OMP_WAIT_POLICY before main, so this sets it and executes the program again, once. A value set by the user is kept.
void ensure_passive_waiting(char** argv);

// Runs body(); an Error becomes "error: ..." on stderr and its exit code, anything else 70. Returns the exit code.
int run_program(const std::string& name, const std::function<int()>& body);

}  // namespace thinwire
